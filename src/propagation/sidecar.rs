//! What the SDK's span context cannot hold, kept beside it in the `Context`.

use http::HeaderValue;
use opentelemetry::Context;
use opentelemetry::trace::{SpanId, TraceContextExt, TraceFlags, TraceId};

use super::tracestate::Held;

/// Travels in a `Context` next to the span, tied to its trace id: in a context that has since got
/// another root it is stale and says nothing.
///
/// * The random flag: the SDK clears it on spans that a sampler drops and cannot set it on a root.
/// * The tracestate as received: [`TraceState`](opentelemetry::trace::TraceState) refuses valid Level 2 keys.
/// * The received identity: the SDK's spans hide it once it is shut down or suppressed.
#[derive(Clone, Debug)]
pub(crate) struct Sidecar {
    pub(super) trace_id: TraceId,
    pub(super) random: bool,
    /// To go on with where there is no valid span.
    pub(super) parent: Option<(SpanId, TraceFlags)>,
    /// All members, and which of them the span context shows.
    pub(super) tracestate: Option<(HeaderValue, Held)>,
}

/// Marks the trace that starts in `cx` as one whose id this process made at random: its flags go out
/// as 03, or 02 when it is not sampled. Only for roots whose id generator is known to be random. `cx`
/// as it is where the SDK made no trace, being shut down or suppressed.
pub(crate) fn mark_new_root(cx: Context, trace_id: TraceId) -> Context {
    if trace_id == TraceId::INVALID {
        return cx;
    }
    let parent = {
        let span = cx.span();
        let root = span.span_context();
        (root.trace_id() == trace_id).then(|| (root.span_id(), root.trace_flags()))
    };
    cx.with_value(Sidecar { trace_id, random: true, parent, tracestate: None })
}
