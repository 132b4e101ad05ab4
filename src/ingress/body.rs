//! The response body: it carries the request's state to the end of the response.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::http::Method;
use super::request::{End, RequestState};

pin_project! {
    /// Response body of [`GymTelemetryService`](super::GymTelemetryService): the inner body, unchanged, and the request's
    /// telemetry, which ends with it.
    pub struct ResponseBody<B> {
        #[pin]
        inner: B,
        state: Option<RequestState>,
        // Bytes after which a connection asks for no more, if it is known.
        length: Option<u64>,
    }

    impl<B> PinnedDrop for ResponseBody<B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(state) = this.state
                && state.end == End::Cancelled
                && this.length.is_some_and(|length| state.sent >= length)
            {
                state.end = End::Complete;
            }
        }
    }
}

impl<B> ResponseBody<B> {
    #[inline]
    pub(super) fn untouched(inner: B) -> Self {
        Self { inner, state: None, length: None }
    }
}

impl<B: Body> ResponseBody<B> {
    #[inline]
    pub(super) fn wrap(response: Response<B>, state: Option<RequestState>) -> Response<Self> {
        let (parts, inner) = response.into_parts();
        let mut body = Self { inner, state, length: None };
        if let Some(state) = &mut body.state {
            if ends_with_head(state.method, parts.status) || body.inner.is_end_stream() {
                state.end = End::Complete;
                body.state = None;
            } else {
                // What hyper sends is the header's length, where a header says one.
                body.length = body.inner.size_hint().exact().or_else(|| {
                    parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
                });
            }
        }
        Response::from_parts(parts, body)
    }
}

/// Responses whose body, if there is one, is never sent: the connection drops it unread.
fn ends_with_head(method: Method, status: StatusCode) -> bool {
    method == Method::Head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || method == Method::Connect && status.is_success()
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let Some(state) = this.state else { return this.inner.poll_frame(cx) };
        state.end = End::Panicked;
        let polled = {
            let _current = state.cx.clone().attach();
            this.inner.as_mut().poll_frame(cx)
        };
        state.end = End::Cancelled;
        let polled_frame = ready!(polled);
        let end = match &polled_frame {
            None => End::Complete,
            Some(Err(_)) => End::BodyError,
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    state.sent(data.remaining());
                }
                // Neither after trailers nor once the body says that it is over does a connection ask again.
                if frame.is_trailers() || this.inner.is_end_stream() {
                    End::Complete
                } else {
                    return Poll::Ready(polled_frame);
                }
            }
        };
        state.end = end;
        *this.state = None;
        Poll::Ready(polled_frame)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::untouched(B::default())
    }
}

impl<B: fmt::Debug> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").field("inner", &self.inner).finish_non_exhaustive()
    }
}
