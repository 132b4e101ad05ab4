//! The response body: it carries the request's state to the end of the response.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response, StatusCode};
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
        length: Length,
    }

    impl<B> PinnedDrop for ResponseBody<B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(state) = this.state
                && state.end == End::Cancelled
                && this.length.is_reached(state.sent)
            {
                state.end = End::Complete;
            }
        }
    }
}

/// Bytes after which a connection asks for no more.
#[derive(Clone, Copy)]
enum Length {
    /// Said by the body: it is there already, or as good as.
    Exact(u64),
    /// Said by a `Content-Length` alone.
    Declared(u64),
    Unknown,
}

impl Length {
    #[inline]
    fn of<B: Body>(body: &B, headers: &HeaderMap) -> Self {
        if let Some(length) = body.size_hint().exact() {
            return Length::Exact(length);
        }
        let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        declared.map_or(Length::Unknown, Length::Declared)
    }

    fn is_reached(self, sent: u64) -> bool {
        match self {
            Length::Exact(length) | Length::Declared(length) => sent >= length,
            Length::Unknown => false,
        }
    }
}

impl<B> ResponseBody<B> {
    #[inline]
    pub(super) fn untouched(inner: B) -> Self {
        Self { inner, state: None, length: Length::Unknown }
    }
}

impl<B: Body> ResponseBody<B> {
    #[inline]
    pub(super) fn wrap(mut response: Response<B>, mut state: RequestState) -> Response<Self> {
        state.head(&mut response);
        let (parts, inner) = response.into_parts();
        let body = if ends_with_head(state.method, parts.status) || inner.is_end_stream() {
            state.end = End::Complete;
            drop(state);
            Self::untouched(inner)
        } else {
            Self { length: Length::of(&inner, &parts.headers), inner, state: Some(state) }
        };
        Response::from_parts(parts, body)
    }
}

/// Responses whose body, if there is one, is never sent: the connection drops it unread.
#[inline]
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
            // A body of known length runs no code that would look for a context; attaching one would be a twentieth of
            // the layer's whole cost.
            let _current = (!matches!(this.length, Length::Exact(_))).then(|| state.cx.clone().attach());
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
