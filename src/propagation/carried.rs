//! Between the fields of a message and a `Context`, whatever the carrier.

use http::HeaderValue;
use opentelemetry::Context;
use opentelemetry::baggage::{Baggage, BaggageExt};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceState};

use super::sidecar::Sidecar;
use super::traceparent::{self, RANDOM, Traceparent};
use super::tracestate::{self, Held, Members};

/// What a message brought.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The caller's span: remote, its flags masked to sampled and random. `None`: a new trace starts.
    pub(super) span_context: Option<SpanContext>,
    pub(super) sidecar: Option<Sidecar>,
    /// The members that were good; `None` where there were none.
    pub(super) baggage: Option<Baggage>,
}

impl Received {
    /// Reads the one `traceparent` and, when it is good, the lines of `tracestate`. `shared` is the
    /// only such line, if there is only one.
    pub(super) fn read<'a, L: Iterator<Item = Option<&'a str>>>(
        traceparent: &[u8],
        tracestate: impl FnOnce() -> L,
        shared: Option<&HeaderValue>,
        retaining: bool,
    ) -> Self {
        let Some(Traceparent { trace_id, span_id, flags }) = traceparent::parse(traceparent) else {
            return Self::default();
        };
        let random = flags & RANDOM == RANDOM;
        let mut retain = retaining || random && !flags.is_sampled();
        let mut state = TraceState::NONE;
        let mut list = None;
        let mut lines = tracestate().peekable();
        if lines.peek().is_some()
            && let Some(members) = Members::parse(lines)
            && !members.is_empty()
        {
            let held: Held;
            (state, held) = members.trace_state();
            retain |= !members.all_in(held);
            if retain {
                list = members.header_value(shared).map(|text| (text, held));
            }
        }
        let parent = Some((span_id, flags));
        Self {
            span_context: Some(SpanContext::new(trace_id, span_id, flags, true, state)),
            sidecar: retain.then_some(Sidecar { trace_id, random, parent, tracestate: list }),
            baggage: None,
        }
    }

    /// `base` with what was received on top; a clone of it when nothing was.
    pub(super) fn into_context(self, base: &Context) -> Context {
        let mut cx = match self.sidecar {
            Some(sidecar) => base.with_value(sidecar),
            None => base.clone(),
        };
        if let Some(baggage) = self.baggage {
            cx = cx.with_baggage(baggage);
        }
        match self.span_context {
            Some(span_context) => cx.with_remote_span_context(span_context),
            None => cx,
        }
    }
}

/// The caller's span of a message without `tracestate`, where `SpanContext` loses nothing of it. (It does of the
/// random flag in an unsampled trace: the SDK clears it.)
#[inline]
pub(super) fn span_context(traceparent: &[u8]) -> Option<SpanContext> {
    let Traceparent { trace_id, span_id, flags } = traceparent::parse(traceparent)?;
    let lossless = flags.is_sampled() || flags & RANDOM != RANDOM;
    lossless.then(|| SpanContext::new(trace_id, span_id, flags, true, TraceState::NONE))
}

/// What a message takes along.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) traceparent: Traceparent,
    pub(super) tracestate: Option<HeaderValue>,
}

impl Outgoing {
    /// In an unsampled trace, whose spans nobody will look for, a parent id of this message's own.
    pub(super) fn with_own_parent_id(mut self) -> Self {
        if !self.traceparent.flags.is_sampled() {
            self.traceparent.span_id = fresh_span_id();
        }
        self
    }
}

/// What to send for a span in `cx`; `None` where there is no trace to pass on.
pub(super) fn outgoing(span_context: &SpanContext, cx: &Context) -> Option<Outgoing> {
    let sidecar = cx.get::<Sidecar>();
    if !span_context.is_valid() {
        return sidecar.and_then(passed_on);
    }
    let trace_id = span_context.trace_id();
    let sidecar = sidecar.filter(|sidecar| sidecar.trace_id == trace_id);
    let mut flags = span_context.trace_flags();
    if sidecar.is_some_and(|sidecar| sidecar.random) {
        flags = flags | RANDOM;
    }
    let list = sidecar.and_then(|sidecar| sidecar.tracestate.as_ref()).map(|(text, held)| (text, *held));
    Some(Outgoing {
        traceparent: Traceparent { trace_id, span_id: span_context.span_id(), flags },
        tracestate: tracestate::outgoing(span_context.trace_state(), list),
    })
}

/// What was received, as it came: nothing here took part in a sampled trace, so its parent is still
/// the right one. In an unsampled trace every call gets a parent id of its own.
fn passed_on(sidecar: &Sidecar) -> Option<Outgoing> {
    let (span_id, mut flags) = sidecar.parent?;
    if sidecar.random {
        flags = flags | RANDOM;
    }
    let traceparent = Traceparent { trace_id: sidecar.trace_id, span_id, flags };
    let tracestate = sidecar.tracestate.as_ref().map(|(text, _)| text.clone());
    Some(Outgoing { traceparent, tracestate }.with_own_parent_id())
}

/// A random span id, never zero.
pub(crate) fn fresh_span_id() -> SpanId {
    SpanId::from(rand::random::<std::num::NonZeroU64>().get())
}
