//! A request on its way to the head of its response.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::extract::MatchedPath;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use super::body::ResponseBody;
use super::report;
use super::request::{End, RequestState};

pin_project! {
    /// Future of [`GymTelemetryService`](super::GymTelemetryService).
    pub struct ResponseFuture<F> {
        // Dropped before what goes with it: what a handler holds ends before its request does.
        #[pin]
        inner: F,
        with: With,
    }
}

/// What goes with a request.
enum With {
    Nothing,
    Telemetry(RequestState),
    /// A layer further out has the request; it is told the route.
    Report(MatchedPath),
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn off(inner: F) -> Self {
        Self { inner, with: With::Nothing }
    }

    pub(super) fn reporting(inner: F, route: Option<MatchedPath>) -> Self {
        Self { inner, with: route.map_or(With::Nothing, With::Report) }
    }

    #[inline]
    pub(super) fn on(inner: F, state: RequestState) -> Self {
        Self { inner, with: With::Telemetry(state) }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = match this.with {
            With::Telemetry(state) => {
                // Should the handler unwind, the state is dropped as it is now.
                state.end = End::Panicked;
                let _current = state.cx.clone().attach();
                let polled = this.inner.poll(cx);
                state.end = End::Cancelled;
                polled
            }
            _ => this.inner.poll(cx),
        };
        let result = ready!(polled);
        Poll::Ready(match (std::mem::replace(this.with, With::Nothing), result) {
            (With::Nothing, result) => result.map(|response| response.map(ResponseBody::untouched)),
            (With::Telemetry(state), Ok(response)) => Ok(ResponseBody::wrap(response, state)),
            (With::Telemetry(mut state), Err(error)) => {
                state.end = End::ServiceError;
                Err(error)
            }
            (With::Report(route), mut result) => {
                if let Ok(response) = &mut result {
                    report::report(response, route);
                }
                result.map(|response| response.map(ResponseBody::untouched))
            }
        })
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
