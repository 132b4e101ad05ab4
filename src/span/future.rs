//! A future inside a span.

use std::fmt;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};

use pin_project_lite::pin_project;

use super::active::{ActiveSpan, End};

pin_project! {
    /// A future inside a span: the span is current whenever the future is polled, and while it is dropped.
    ///
    /// Made by [`ManagedSpan::run`](super::ManagedSpan::run) and [`ManagedSpan::try_run`](super::ManagedSpan::try_run).
    #[must_use = "futures do nothing unless polled"]
    pub struct SpanFuture<F: Future> {
        // `None` once it is done.
        #[pin]
        future: Option<F>,
        span: Option<ActiveSpan>,
        on_output: fn(&ActiveSpan, &F::Output),
    }

    impl<F: Future> PinnedDrop for SpanFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            {
                let _attached = this.span.as_ref().and_then(ActiveSpan::context).map(|cx| cx.clone().attach());
                this.future.set(None);
            }
            *this.span = None;
        }
    }
}

impl<F: Future> SpanFuture<F> {
    pub(super) fn new(span: Option<ActiveSpan>, future: F) -> Self {
        Self { future: Some(future), span, on_output: |_, _| {} }
    }

    pub(super) fn recording_errors<T, E: fmt::Display>(span: Option<ActiveSpan>, future: F) -> Self
    where
        F: Future<Output = Result<T, E>>,
    {
        let on_output = |span: &ActiveSpan, output: &Result<T, E>| {
            if let Err(error) = output {
                span.failed(error);
            }
        };
        Self { future: Some(future), span, on_output }
    }
}

impl<F: Future> Future for SpanFuture<F> {
    type Output = F::Output;

    /// # Panics
    /// When it is polled again after it was done, as futures may.
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let future = this.future.as_mut().as_pin_mut().expect("polled after it was done");
        let Some(span) = this.span else {
            let output = ready!(future.poll(cx));
            this.future.set(None);
            return Poll::Ready(output);
        };
        // What it stays should the poll unwind.
        span.end = End::Panicked;
        let output = {
            let _attached = span.context().map(|cx| cx.clone().attach());
            match future.poll(cx) {
                Poll::Ready(output) => output,
                Poll::Pending => {
                    span.end = End::Cancelled;
                    return Poll::Pending;
                }
            }
        };
        {
            let _attached = span.context().map(|cx| cx.clone().attach());
            this.future.set(None);
        }
        span.end = End::Complete;
        (this.on_output)(span, &output);
        *this.span = None;
        Poll::Ready(output)
    }
}

impl<F: Future> fmt::Debug for SpanFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanFuture").field("span", &self.span.as_ref().map(|span| &span.handle)).finish_non_exhaustive()
    }
}
