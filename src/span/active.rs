//! A span that is open, and the ways it can end.

use std::fmt;

use opentelemetry::context::ContextGuard;
use opentelemetry::trace::{SpanRef, Status, TraceContextExt as _};
use opentelemetry::{Context, KeyValue};

use super::redaction::safe_set_span_attributes;

/// How a failure is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorStyle {
    /// The status description is `Type: message`, not the message alone.
    pub(super) with_type: bool,
    /// An `exception` event is recorded.
    pub(super) with_event: bool,
}

/// Owns an open span and ends it when dropped.
pub(super) struct ActiveSpan {
    pub(super) handle: SpanHandle,
    pub(super) errors: ErrorStyle,
    /// What it means to be dropped now.
    pub(super) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    /// A future that was dropped before it was done.
    Cancelled,
    Panicked,
}

impl ActiveSpan {
    /// Marks the span as failed by an `Err`.
    pub(super) fn failed<E: fmt::Display>(&self, error: &E) {
        self.handle.record(error, self.errors);
    }

    pub(super) fn context(&self) -> Option<&Context> {
        self.handle.cx.as_ref()
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        let Some(cx) = &self.handle.cx else { return };
        let span = cx.span();
        let mark = match self.end {
            End::Complete => None,
            End::Cancelled => Some("cancelled"),
            End::Panicked => Some("panic"),
        };
        if let Some(mark) = mark {
            span.set_attribute(KeyValue::new("error.type", mark));
            span.set_status(Status::error(mark));
        }
        span.end();
    }
}

/// An open span, for the code inside it. Where the span's group is off, every method does nothing.
#[derive(Clone, Default)]
pub struct SpanHandle {
    pub(super) cx: Option<Context>,
}

impl SpanHandle {
    /// Whether attributes would be exported.
    pub fn is_recording(&self) -> bool {
        self.cx.as_ref().is_some_and(|cx| cx.span().is_recording())
    }

    /// Sets attributes, withholding what [`safe_set_span_attributes`] withholds. The closure is only called when the
    /// span records.
    pub fn set_attributes<I: IntoIterator<Item = KeyValue>>(&self, attributes: impl FnOnce() -> I) {
        self.recording(|span| safe_set_span_attributes(span, attributes()));
    }

    /// Records a failure that the code inside dealt with itself: an `exception` event and status ERROR.
    pub fn record_error<E: fmt::Display>(&self, error: &E) {
        self.record(error, ErrorStyle { with_type: false, with_event: true });
    }

    /// The context in which this span is the current one; `None` where there is no span.
    pub fn context(&self) -> Option<&Context> {
        self.cx.as_ref()
    }

    fn record<E: fmt::Display>(&self, error: &E, style: ErrorStyle) {
        self.recording(|span| {
            let kind = std::any::type_name::<E>();
            let message = error.to_string();
            if style.with_event {
                let attributes =
                    vec![KeyValue::new("exception.type", kind), KeyValue::new("exception.message", message.clone())];
                span.add_event("exception", attributes);
            }
            let description = if style.with_type { format!("{}: {message}", short(kind)) } else { message };
            span.set_status(Status::error(description));
        });
    }

    fn recording(&self, f: impl FnOnce(&SpanRef<'_>)) {
        if let Some(cx) = &self.cx {
            let span = cx.span();
            if span.is_recording() {
                f(&span);
            }
        }
    }
}

/// A type's name without the path that leads to it.
fn short(name: &str) -> &str {
    let end = name.find('<').unwrap_or(name.len());
    name[..end].rfind("::").map_or(name, |at| &name[at + 2..])
}

impl fmt::Debug for SpanHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cx {
            Some(cx) => f.debug_tuple("SpanHandle").field(cx.span().span_context()).finish(),
            None => f.write_str("SpanHandle(off)"),
        }
    }
}

/// A span that is current on this thread until this is dropped, which ends it. Made by
/// [`ManagedSpan::enter`](super::ManagedSpan::enter).
///
/// When it is dropped by a panic, the span gets status ERROR and `error.type` `panic`. Not for use across an `await`:
/// there, [`ManagedSpan::run`](super::ManagedSpan::run).
#[must_use = "the span ends when this is dropped"]
pub struct EnteredSpan {
    /// Goes first, so that the span ends outside of its own context.
    _attached: Option<ContextGuard>,
    pub(super) active: ActiveSpan,
}

impl EnteredSpan {
    pub(super) fn new(active: ActiveSpan) -> Self {
        Self { _attached: active.context().map(|cx| cx.clone().attach()), active }
    }

    /// The open span.
    pub fn handle(&self) -> &SpanHandle {
        &self.active.handle
    }

    /// Marks the span as failed, as an `Err` from [`ManagedSpan::try_in_scope`](super::ManagedSpan::try_in_scope) would.
    pub fn fail<E: fmt::Display>(&self, error: &E) {
        self.active.failed(error);
    }
}

impl Drop for EnteredSpan {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.active.end = End::Panicked;
        }
    }
}

impl fmt::Debug for EnteredSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnteredSpan").field(&self.active.handle).finish()
    }
}
