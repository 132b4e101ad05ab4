//! The candidates on the server's side. The peers are set up as their documentation shows.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::MatchedPath;
use axum::http::{Request, Response, header};
use axum_tracing_opentelemetry::middleware::OtelAxumLayer;
use nemo_gym_telemetry::Telemetry;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use opentelemetry_instrumentation_tower::http::server as instrumentation;
use tower_http::trace::TraceLayer;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::table::Row;
use crate::telemetry;

/// The first one is what the others are compared with.
pub const ROWS: &[Row] = &[
    Row("bare", "router alone"),
    Row("own-off", "this layer around the router, off"),
    Row("own-unsampled", "– unsampled, metrics"),
    Row("own-spans", "– sampled, no metrics"),
    Row("own", "– sampled, metrics"),
    Row("own-one-span", "– sampled, metrics, SERVER span alone"),
    Row("own-inner-off", "this layer in `Router::layer`, off"),
    Row("own-inner-unsampled", "– unsampled, metrics"),
    Row("own-inner-spans", "– sampled, no metrics"),
    Row("own-inner", "– sampled, metrics"),
    Row("instrumentation-unsampled", "opentelemetry-instrumentation-tower, unsampled, metrics"),
    Row("instrumentation-spans", "– sampled, no metrics"),
    Row("instrumentation", "– sampled, metrics"),
    Row("axum-tracing-unsampled", "axum-tracing-opentelemetry, unsampled"),
    Row("axum-tracing", "– sampled"),
    Row("trace-layer-unsampled", "tower-http TraceLayer, unsampled"),
    Row("trace-layer", "– sampled"),
];

/// Whether the caller of a candidate has sampled its trace.
pub fn sampled(name: &str) -> bool {
    !name.ends_with("-unsampled")
}

/// What is done with a candidate. Generic, as a layer around a router is not boxed.
pub trait Bench {
    fn run<S, B>(self, service: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>;
}

pub fn run(name: &str, router: Router, bench: impl Bench) {
    let layer = |telemetry: Telemetry| GymTelemetryLayer::new(&telemetry);
    let router = match name.trim_end_matches("-unsampled") {
        "bare" => router,
        "own-off" => return bench.run(layer(Telemetry::disabled()).layer(router)),
        "own-spans" => return bench.run(layer(telemetry::own("all", false)).layer(router)),
        "own" => return bench.run(layer(telemetry::own("all", true)).layer(router)),
        "own-one-span" => return bench.run(layer(telemetry::own("server", true)).layer(router)),
        "own-inner-off" => router.layer(layer(Telemetry::disabled())),
        "own-inner-spans" => router.layer(layer(telemetry::own("all", false))),
        "own-inner" => router.layer(layer(telemetry::own("all", true))),
        "instrumentation-spans" => {
            telemetry::global(false);
            let built = instrumentation::LayerBuilder::builder().with_metrics(false).build();
            router.layer(built.expect("the layer without metrics"))
        }
        "instrumentation" => {
            telemetry::global(true);
            router.layer(instrumentation::Layer::new())
        }
        "axum-tracing" => {
            telemetry::global_through_tracing();
            router.layer(OtelAxumLayer::default())
        }
        "trace-layer" => {
            telemetry::global_through_tracing();
            trace_layer(router)
        }
        _ => panic!("no candidate {name}"),
    };
    bench.run(router);
}

/// Alone it reads no trace context, names every span `request` and records nothing of the HTTP conventions. This gives its
/// spans what the others' have by themselves, and takes its log lines away, which would become events of the spans.
fn trace_layer(router: Router) -> Router {
    let layer = TraceLayer::new_for_http()
        .make_span_with(server_span)
        .on_request(())
        .on_response(|response: &Response<Body>, _: Duration, span: &Span| {
            span.record("http.response.status_code", i64::from(response.status().as_u16()));
        })
        .on_body_chunk(())
        .on_eos(())
        .on_failure(());
    router.layer(layer)
}

fn server_span(request: &Request<Body>) -> Span {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (method, route) = (request.method().as_str(), request.extensions().get::<MatchedPath>());
    let route = route.map_or("", MatchedPath::as_str);
    let (host, port) = text(header::HOST).split_once(':').unwrap_or((text(header::HOST), "80"));
    let span = tracing::info_span!(
        "server",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        network.protocol.version = "1.1",
        server.address = host,
        server.port = port.parse::<i64>().unwrap_or(80),
        url.path = request.uri().path(),
        url.scheme = "http",
        user_agent.original = text(header::USER_AGENT),
    );
    let carrier = opentelemetry_http::HeaderExtractor(request.headers());
    let parent = opentelemetry::global::get_text_map_propagator(|propagator| propagator.extract(&carrier));
    // Fails for a span that no subscriber has taken.
    span.set_parent(parent).expect("the subscriber of this bench");
    span
}
