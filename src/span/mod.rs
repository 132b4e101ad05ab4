#![doc = include_str!("../../docs/spans.md")]

mod active;
mod future;
mod managed;
mod redaction;
mod spawn;
mod trace_fn;

pub use active::{EnteredSpan, SpanHandle};
pub use future::SpanFuture;
pub use managed::{ManagedSpan, client_span, managed_span, span_cm};
pub use redaction::{redact_attribute_keys, safe_set_span_attributes};
pub use spawn::{spawn, spawn_blocking};
pub use trace_fn::{TraceFn, trace_fn};
