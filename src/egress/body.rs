//! A response whose call ends with its body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use reqwest::{Response, ResponseBuilderExt as _};

use super::call::{Call, End};
use super::error_type::Failure;

/// Makes `call` end with the body of `response`: at its end, at its failure, or when it is dropped.
///
/// Status, version, headers, extensions, URL and length of the response stay what they are.
pub(super) fn watch(mut response: Response, mut call: Call) -> Response {
    let url = response.url().clone();
    // reqwest keeps the URL outside the `http::Response` and takes it back from the extensions, where only this
    // builder can put it.
    let mut builder = http::Response::builder();
    if let Some(extensions) = builder.extensions_mut() {
        *extensions = std::mem::take(response.extensions_mut());
    }
    let with_url = builder.url(url).body(());
    let (mut parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
    if let Ok(with_url) = with_url {
        parts.extensions = with_url.into_parts().0.extensions;
    }
    let call = if body.is_end_stream() {
        call.end = End::Complete;
        drop(call);
        None
    } else {
        Some(call)
    };
    Response::from(http::Response::from_parts(parts, reqwest::Body::wrap(WatchedBody { body, call })))
}

struct WatchedBody {
    body: reqwest::Body,
    /// Until the body has ended.
    call: Option<Call>,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let end = match &frame {
            None => End::Complete,
            Some(Err(error)) => End::Failed(Failure::of_body(error)),
            // A reader need not come back after these to be told that there is nothing more.
            Some(Ok(frame)) if frame.is_trailers() || self.body.is_end_stream() => End::Complete,
            Some(Ok(_)) => return Poll::Ready(frame),
        };
        if let Some(mut call) = self.call.take() {
            call.end = end;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
