//! Off means off (PERF-01): not one allocation more than a layer that passes through and has the same body type.

mod allocation_support;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, Response};
use http_body_util::BodyExt;
use nemo_gym_telemetry::Telemetry;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use tower::{Layer, Service, ServiceExt};

fn router() -> Router {
    Router::new().route("/verify", post(|| async { r#"{"reward":1.0}"# }))
}

/// Allocations of one request, the response body read to its end.
async fn allocations<S, B>(service: S) -> u64
where
    S: Service<Request<Body>, Response = Response<B>, Error = std::convert::Infallible> + Clone,
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: std::fmt::Debug,
{
    let mut counts = Vec::new();
    for _ in 0..5 {
        let request =
            Request::post("/verify").header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let request = request.body(Body::empty()).unwrap();
        let service = service.clone();
        let before = allocation_support::of_thread();
        let response = service.oneshot(request).await.unwrap();
        let mut body = std::pin::pin!(response.into_body());
        while let Some(frame) = body.frame().await {
            drop(frame.unwrap());
        }
        counts.push(allocation_support::of_thread() - before);
    }
    *counts.iter().min().unwrap()
}

#[tokio::test]
async fn a_disabled_layer_allocates_nothing() {
    let off = GymTelemetryLayer::new(&Telemetry::disabled());
    assert_eq!(allocations(off.layer(router())).await, allocations(router()).await, "around the router");
    // In `Router::layer` axum boxes any layer's future, and the body of any layer that has its own.
    let pass_through = router().layer(PassThroughLayer);
    assert_eq!(allocations(router().layer(off)).await, allocations(pass_through).await, "in Router::layer");
}

#[derive(Clone, Debug)]
struct PassThroughLayer;

impl<S> Layer<S> for PassThroughLayer {
    type Service = PassThrough<S>;
    fn layer(&self, inner: S) -> PassThrough<S> {
        PassThrough(inner, std::sync::Arc::new(()))
    }
}

/// As thin as a layer of the same shape can be: shared state, and a body type of its own.
#[derive(Clone, Debug)]
struct PassThrough<S>(S, #[expect(dead_code, reason = "shared state is part of the shape")] std::sync::Arc<()>);

impl<S, B> Service<Request<Body>> for PassThrough<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Wrapped<B>>;
    type Error = S::Error;
    type Future = futures_util::future::MapOk<S::Future, fn(Response<B>) -> Response<Wrapped<B>>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        futures_util::TryFutureExt::map_ok(self.0.call(request), |response| response.map(|inner| Wrapped { inner }))
    }
}

pin_project_lite::pin_project! {
    struct Wrapped<B> {
        #[pin]
        inner: B,
    }
}

impl<B: http_body::Body> http_body::Body for Wrapped<B> {
    type Data = B::Data;
    type Error = B::Error;
    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<B::Data>, B::Error>>> {
        self.project().inner.poll_frame(cx)
    }
    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}
