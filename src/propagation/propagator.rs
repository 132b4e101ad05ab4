//! The propagator behind OpenTelemetry's own interface, for any carrier.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue};
use opentelemetry::Context;
use opentelemetry::baggage::BaggageExt;
use opentelemetry::propagation::text_map_propagator::FieldIter;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;

use super::carried::{self, Outgoing, Received};
use super::headers::{self, TraceHeaders};
use super::{BAGGAGE, TRACEPARENT, TRACESTATE, baggage};
use crate::config::settings::PropagatorChoice;

/// Trace Context Level 2 and Baggage over any carrier, as strict as
/// [`GymTelemetryLayer`](crate::ingress) and [`TracePropagation`](crate::egress) are over HTTP.
///
/// `init_telemetry` installs it as the global propagator. See the [module](super) for what it reads,
/// keeps and writes.
///
/// ```
/// use nemo_gym_telemetry::GymPropagator;
/// use nemo_gym_telemetry::opentelemetry::propagation::TextMapPropagator;
/// use nemo_gym_telemetry::opentelemetry::trace::TraceContextExt;
/// use std::collections::HashMap;
///
/// let propagator = GymPropagator::new();
/// let message = HashMap::from([(
///     "traceparent".to_owned(),
///     "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03".to_owned(),
/// )]);
/// let cx = propagator.extract(&message);
/// assert!(cx.span().span_context().is_remote());
///
/// let mut next = HashMap::new();
/// propagator.inject_context(&cx, &mut next);
/// assert_eq!(next["traceparent"], message["traceparent"]);
/// assert!(!next.contains_key("tracestate"));
/// ```
///
/// # What a carrier can hide
/// * An [`Extractor`] shows text only, and most show one line of a repeated field unless they
///   implement `get_all`. [`extract_headers`](Self::extract_headers) sees the bytes and every line.
/// * An [`Injector`] cannot remove: a `tracestate` of an earlier message stays in a carrier that is
///   used again. [`inject_headers`](Self::inject_headers) removes it.
///
/// # Parent ids
/// A propagator sees a context, not calls. In a sampled trace it sends the id of the current span, so
/// several messages sent under one span share it: start a CLIENT or PRODUCER span for each, as
/// `TracePropagation` does. A received context with no span of this process on it goes on as it came.
/// In an unsampled trace, whose spans nobody will look for, every injection makes a parent id of its
/// own.
#[derive(Clone, Copy, Debug)]
pub struct GymPropagator {
    choice: PropagatorChoice,
}

impl Default for GymPropagator {
    fn default() -> Self {
        Self::new()
    }
}

impl GymPropagator {
    /// Trace context and baggage, as `OTEL_PROPAGATORS` has it by default.
    pub const fn new() -> Self {
        Self::with_choice(PropagatorChoice { trace_context: true, baggage: true })
    }

    pub(crate) const fn with_choice(choice: PropagatorChoice) -> Self {
        Self { choice }
    }

    /// Whether `traceparent` and `tracestate` are read and written. Default: yes.
    #[must_use]
    pub const fn with_trace_context(mut self, on: bool) -> Self {
        self.choice.trace_context = on;
        self
    }

    /// Whether `baggage` is read and written. Default: yes.
    #[must_use]
    pub const fn with_baggage(mut self, on: bool) -> Self {
        self.choice.baggage = on;
        self
    }

    /// Reads the headers of a message on top of `cx`; a clone of `cx` where they say nothing.
    pub fn extract_headers(&self, cx: &Context, headers: &HeaderMap) -> Context {
        TraceHeaders::scan(headers).extract(headers, self.choice, true).into_context(cx)
    }

    /// Writes the identity of the current span in `cx`, and its baggage, into the headers of a
    /// message, in place of whatever trace headers are there. They stay as they are where there is no
    /// trace to pass on; a `baggage` header stays where the context has no baggage.
    pub fn inject_headers(&self, cx: &Context, headers: &mut HeaderMap) {
        headers::write(outgoing(cx), cx, headers, self.choice);
    }
}

/// A propagator's message: see "Parent ids" at [`GymPropagator`].
fn outgoing(cx: &Context) -> Option<Outgoing> {
    carried::outgoing(cx.span().span_context(), cx).map(Outgoing::with_own_parent_id)
}

static FIELDS: LazyLock<[String; 3]> = LazyLock::new(|| [TRACEPARENT, TRACESTATE, BAGGAGE].map(str::to_owned));

impl TextMapPropagator for GymPropagator {
    fn inject_context(&self, cx: &Context, injector: &mut dyn Injector) {
        if self.choice.trace_context
            && let Some(outgoing) = outgoing(cx)
        {
            injector.set(TRACEPARENT, outgoing.traceparent.to_string());
            set(injector, TRACESTATE, outgoing.tracestate);
        }
        if self.choice.baggage {
            set(injector, BAGGAGE, baggage::header_value(cx.baggage()));
        }
    }

    fn extract_with_context(&self, cx: &Context, extractor: &dyn Extractor) -> Context {
        let lines = |name| extractor.get_all(name).unwrap_or_default();
        let mut received = Received::default();
        if self.choice.trace_context
            && let [traceparent] = lines(TRACEPARENT)[..]
        {
            let tracestate = || lines(TRACESTATE).into_iter().map(Some);
            received = Received::read(traceparent.as_bytes(), tracestate, None, true);
        }
        if self.choice.baggage {
            received.baggage = baggage::parse(lines(BAGGAGE).into_iter().map(str::as_bytes));
        }
        received.into_context(cx)
    }

    /// The fields that this propagator reads and writes.
    fn fields(&self) -> FieldIter<'_> {
        FieldIter::new(match (self.choice.trace_context, self.choice.baggage) {
            (true, true) => &FIELDS[..],
            (true, false) => &FIELDS[..2],
            (false, true) => &FIELDS[2..],
            (false, false) => &[],
        })
    }
}

fn set(injector: &mut dyn Injector, name: &str, value: Option<HeaderValue>) {
    if let Some(value) = value.as_ref().and_then(|value| value.to_str().ok()) {
        injector.set(name, value.to_owned());
    }
}
