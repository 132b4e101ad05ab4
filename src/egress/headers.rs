//! What goes into a request's headers.

use opentelemetry::Context;
use opentelemetry::baggage::{Baggage, BaggageExt as _};
use opentelemetry::trace::{Span as _, SpanContext, TraceContextExt as _, TraceFlags};
use opentelemetry_sdk::trace::Span;
use reqwest::Request;

use super::attempt::Mark;
use crate::config::settings::PropagatorChoice;
use crate::propagation;
use crate::rollout::{ROLLOUT_ID, RolloutId};
use crate::telemetry::Telemetry;

/// W3C Trace Context Level 2: the right-most seven bytes of the trace id are random.
const RANDOM: TraceFlags = TraceFlags::new(0x02);

/// Writes the trace context and the baggage. Returns how the request can be told from others.
pub(super) fn inject(
    telemetry: &Telemetry,
    request: &mut Request,
    span: Option<&Span>,
    cx: &Context,
    rollout: Option<&RolloutId>,
    internal: bool,
) -> Mark {
    let mut choice = telemetry.propagators();
    if choice.baggage
        && let Some(baggage) = baggage_for(cx.baggage(), rollout, internal)
    {
        choice.baggage = false;
        propagation::inject_baggage(&baggage, request.headers_mut());
    }
    let parent = cx.span();
    let parent = parent.span_context();
    let mark = match span.map(|span| span.span_context()).filter(|own| own.is_valid()) {
        Some(own) if parent.is_valid() || !telemetry.random_ids() => {
            propagation::inject(own, cx, request.headers_mut(), choice);
            Mark::ParentId(own.span_id())
        }
        Some(root) => {
            let flags = root.trace_flags() | RANDOM;
            let root = SpanContext::new(root.trace_id(), root.span_id(), flags, false, root.trace_state().clone());
            propagation::inject(&root, cx, request.headers_mut(), choice);
            Mark::ParentId(root.span_id())
        }
        None => pass_on(request, parent, cx, choice),
    };
    if choice.trace_context { mark } else { Mark::Extensions }
}

/// What goes on from a request that this process serves, where no span of its own shows the call.
fn pass_on(request: &mut Request, parent: &SpanContext, cx: &Context, choice: PropagatorChoice) -> Mark {
    if parent.is_valid() && !parent.is_sampled() {
        // In an unsampled trace every call has a parent id of its own.
        let id = propagation::fresh_span_id();
        let own = SpanContext::new(parent.trace_id(), id, parent.trace_flags(), false, parent.trace_state().clone());
        propagation::inject(&own, cx, request.headers_mut(), choice);
        return Mark::ParentId(id);
    }
    // In a sampled one the callee hangs under the caller's span.
    propagation::inject(parent, cx, request.headers_mut(), choice);
    Mark::Extensions
}

/// Other baggage than the context's, where the destination calls for it: the rollout id goes to Gym servers only.
fn baggage_for(baggage: &Baggage, rollout: Option<&RolloutId>, internal: bool) -> Option<Baggage> {
    let known = if baggage.is_empty() { None } else { baggage.get(ROLLOUT_ID) };
    match (rollout, known) {
        (Some(id), known) if internal && known.is_none_or(|known| known.as_str() != id.as_str()) => {
            let mut baggage = copy(baggage);
            baggage.insert(ROLLOUT_ID, id.to_value().as_str().into_owned());
            Some(baggage)
        }
        (_, Some(_)) if !internal => {
            let mut baggage = copy(baggage);
            baggage.remove(ROLLOUT_ID);
            Some(baggage)
        }
        _ => None,
    }
}

fn copy(baggage: &Baggage) -> Baggage {
    let mut copy = Baggage::new();
    for (key, (value, metadata)) in baggage {
        copy.insert_with_metadata(key.clone(), value.clone(), metadata.clone());
    }
    copy
}
