//! Carries a matched route out to a layer around the router, on the response.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::extract::MatchedPath;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

/// In a response's extensions: the route that a router further in matched.
#[derive(Clone, Debug)]
pub(crate) struct MatchedRoute(pub(crate) MatchedPath);

/// Reports the route that was matched; nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportRouteLayer;

impl<S> Layer<S> for ReportRouteLayer {
    type Service = ReportRoute<S>;
    fn layer(&self, inner: S) -> ReportRoute<S> {
        ReportRoute { inner }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ReportRoute<S> {
    inner: S,
}

impl<S, B, R> Service<Request<B>> for ReportRoute<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ReportRouteFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let route = request.extensions().get::<MatchedPath>().cloned();
        ReportRouteFuture { inner: self.inner.call(request), route }
    }
}

pin_project! {
    #[derive(Debug)]
    pub(crate) struct ReportRouteFuture<F> {
        #[pin]
        inner: F,
        route: Option<MatchedPath>,
    }
}

impl<F, R, E> Future for ReportRouteFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut result = ready!(this.inner.poll(cx));
        if let (Ok(response), Some(route)) = (&mut result, this.route.take()) {
            report(response, route);
        }
        Poll::Ready(result)
    }
}

/// Leaves the route on the response unless one further in has: that one knows the whole template.
pub(crate) fn report<R>(response: &mut Response<R>, route: MatchedPath) {
    if response.extensions().get::<MatchedRoute>().is_none() {
        response.extensions_mut().insert(MatchedRoute(route));
    }
}
