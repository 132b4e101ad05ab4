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
        // Dropped before the state: what the handler holds ends before its request does.
        #[pin]
        inner: F,
        state: Option<RequestState>,
        report: Option<MatchedPath>,
    }
}

impl<F> ResponseFuture<F> {
    /// Nothing to be done.
    #[inline]
    pub(super) fn off(inner: F) -> Self {
        Self { inner, state: None, report: None }
    }

    /// The route is reported to the layer further out, which has the request.
    pub(super) fn reporting(inner: F, route: Option<MatchedPath>) -> Self {
        Self { inner, state: None, report: route }
    }

    #[inline]
    pub(super) fn on(inner: F, state: RequestState) -> Self {
        Self { inner, state: Some(state), report: None }
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
        let Some(state) = this.state else {
            let mut result = ready!(this.inner.poll(cx));
            if let (Some(route), Ok(response)) = (this.report.take(), &mut result) {
                report::report(response, route);
            }
            return Poll::Ready(result.map(|response| response.map(ResponseBody::untouched)));
        };
        // Should the handler unwind, the state is dropped as it is now.
        state.end = End::Panicked;
        let result = {
            let _current = state.cx.clone().attach();
            this.inner.poll(cx)
        };
        state.end = End::Cancelled;
        Poll::Ready(match ready!(result) {
            Ok(mut response) => {
                state.head(&mut response);
                let state = this.state.take();
                Ok(ResponseBody::wrap(response, state))
            }
            Err(error) => {
                state.end = End::ServiceError;
                *this.state = None;
                Err(error)
            }
        })
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
