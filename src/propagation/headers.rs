//! Propagation over a [`HeaderMap`], on the bytes.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::baggage::{Baggage, BaggageExt};
use opentelemetry::trace::{SpanContext, TraceContextExt};

use super::baggage;
use super::carried::{self, Outgoing, Received};
use crate::config::settings::PropagatorChoice;

static TRACEPARENT: HeaderName = HeaderName::from_static(super::TRACEPARENT);
static TRACESTATE: HeaderName = HeaderName::from_static(super::TRACESTATE);
static BAGGAGE: HeaderName = HeaderName::from_static(super::BAGGAGE);

/// The propagation fields of a message, gathered while its headers are read once.
#[derive(Debug, Default)]
pub(crate) struct TraceHeaders<'a> {
    traceparent: Field<'a>,
    tracestate: Field<'a>,
    baggage: Field<'a>,
}

/// The lines of one field, as far as they need no memory.
#[derive(Clone, Copy, Debug, Default)]
enum Field<'a> {
    #[default]
    Absent,
    Once(&'a HeaderValue),
    Repeated,
}

impl<'a> Field<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        *self = match self {
            Field::Absent => Field::Once(value),
            _ => Field::Repeated,
        };
    }

    fn once(self) -> Option<&'a HeaderValue> {
        if let Field::Once(value) = self { Some(value) } else { None }
    }

    /// All lines, in order.
    fn lines(self, name: &'static str, headers: &'a HeaderMap) -> impl Iterator<Item = &'a HeaderValue> {
        let repeated = matches!(self, Field::Repeated).then(|| headers.get_all(name).iter());
        self.once().into_iter().chain(repeated.into_iter().flatten())
    }
}

impl<'a> TraceHeaders<'a> {
    /// Takes a header into account.
    #[inline]
    pub(crate) fn visit(&mut self, name: &HeaderName, value: &'a HeaderValue) {
        // Compared as names, not as text: a standard name, as most are, differs by its kind.
        let field = if *name == TRACEPARENT {
            &mut self.traceparent
        } else if *name == TRACESTATE {
            &mut self.tracestate
        } else if *name == BAGGAGE {
            &mut self.baggage
        } else {
            return;
        };
        field.add(value);
    }

    /// All headers, for callers without a pass of their own.
    pub(crate) fn scan(headers: &'a HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            found.visit(name, value);
        }
        found
    }

    /// Whether there is baggage to be read.
    #[inline]
    pub(crate) fn has_baggage(&self) -> bool {
        !matches!(self.baggage, Field::Absent)
    }

    /// What was received, as a context of its own. `headers` is the map that was visited.
    ///
    /// Beside the span context goes only what would be lost under a running provider whose sampler is
    /// parent-based. With `retaining`, the received identity goes there in any case (three allocations
    /// more): for samplers that can drop what a parent sampled, and where no spans are made.
    ///
    /// Most requests bring a `traceparent` and nothing else; for them the many parts that may be
    /// received are never made.
    #[inline]
    pub(crate) fn context(&self, headers: &'a HeaderMap, choice: PropagatorChoice, retaining: bool) -> Context {
        if let (Field::Once(traceparent), Field::Absent, Field::Absent) =
            (self.traceparent, self.tracestate, self.baggage)
            && choice.trace_context
            && !retaining
            && let Some(span_context) = carried::span_context(traceparent.as_bytes())
        {
            return Context::new().with_remote_span_context(span_context);
        }
        self.extract(headers, choice, retaining).into_context(&Context::new())
    }

    /// What was received, for a caller with a context to put it in.
    pub(super) fn extract(&self, headers: &'a HeaderMap, choice: PropagatorChoice, retaining: bool) -> Received {
        let mut received = match self.traceparent {
            Field::Once(traceparent) if choice.trace_context => Received::read(
                traceparent.as_bytes(),
                || self.tracestate.lines(super::TRACESTATE, headers).map(|line| line.to_str().ok()),
                self.tracestate.once(),
                retaining,
            ),
            _ => Received::default(),
        };
        if choice.baggage && !matches!(self.baggage, Field::Absent) {
            received.baggage = baggage::parse(self.baggage.lines(super::BAGGAGE, headers).map(HeaderValue::as_bytes));
        }
        received
    }
}

/// Writes a span's identity and the context's baggage into `headers`, in place of whatever was there.
///
/// Exactly one `traceparent` and at most one `tracestate`, never an empty one. Where the span context
/// is not valid, because its provider is shut down or telemetry is suppressed, what was received goes
/// on from `cx`; with nothing received either, `headers` stay as they are. A `baggage` header stays
/// where the context has no baggage.
pub(crate) fn inject(span_context: &SpanContext, cx: &Context, headers: &mut HeaderMap, choice: PropagatorChoice) {
    write(carried::outgoing(span_context, cx), cx, headers, choice);
}

pub(super) fn write(outgoing: Option<Outgoing>, cx: &Context, headers: &mut HeaderMap, choice: PropagatorChoice) {
    if choice.trace_context
        && let Some(outgoing) = outgoing
        && let Ok(traceparent) = HeaderValue::from_bytes(&outgoing.traceparent.format())
    {
        set(headers, &TRACEPARENT, Some(traceparent));
        set(headers, &TRACESTATE, outgoing.tracestate);
    }
    if choice.baggage && !cx.baggage().is_empty() {
        inject_baggage(cx.baggage(), headers);
    }
}

/// Writes this baggage in place of whatever was there; none of it leaves no such header.
pub(crate) fn inject_baggage(baggage: &Baggage, headers: &mut HeaderMap) {
    set(headers, &BAGGAGE, baggage::header_value(baggage));
}

fn set(headers: &mut HeaderMap, name: &'static HeaderName, value: Option<HeaderValue>) {
    match value {
        // A map of 32 768 entries takes no more; then there is nothing to be done.
        Some(value) => drop(headers.try_insert(name, value)),
        None => drop(headers.remove(name)),
    }
}
