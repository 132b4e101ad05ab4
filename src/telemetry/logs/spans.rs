//! What the bridge of tracing-opentelemetry leaves to be done for spans.

use std::sync::OnceLock;

use opentelemetry::Context as OtelContext;
use opentelemetry::trace::{SpanRef, Status, TraceContextExt as _};
use tracing::dispatcher::WeakDispatch;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_opentelemetry::get_otel_context;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::fields::{EventFields, WideIntegers};

/// Stands before the bridge, which makes text of unsigned and 128-bit integers and knows span events only
/// in that way: keeps such fields and sets them as integers when the span closes (the exporter's
/// side keeps the last value of a key), and writes the events of spans itself.
#[derive(Debug)]
pub(super) struct SpanCompanion {
    /// Events are exported as log records: only errors concern a span.
    logs_on: bool,
    dispatch: OnceLock<WeakDispatch>,
}

impl SpanCompanion {
    pub(super) fn new(logs_on: bool) -> Self {
        Self { logs_on, dispatch: OnceLock::new() }
    }

    /// Works on the OpenTelemetry span behind a `tracing` span.
    fn with_span(&self, id: &Id, work: impl FnOnce(SpanRef<'_>)) {
        let dispatch = self.dispatch.get().and_then(WeakDispatch::upgrade);
        if let Some(context) = dispatch.and_then(|dispatch| get_otel_context(id, &dispatch)) {
            work(context.span());
        }
    }
}

impl<S> Layer<S> for SpanCompanion
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        let _ = self.dispatch.set(dispatch.downgrade());
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut integers = WideIntegers::default();
        attributes.record(&mut integers);
        if !integers.0.is_empty()
            && let Some(span) = context.span(id)
        {
            span.extensions_mut().replace(integers);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut integers = span.extensions_mut().remove::<WideIntegers>().unwrap_or_default();
        values.record(&mut integers);
        if !integers.0.is_empty() {
            span.extensions_mut().replace(integers);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if OtelContext::is_current_telemetry_suppressed() {
            return;
        }
        let Some(span) = context.event_span(event) else { return };
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let failed = *event.metadata().level() == Level::ERROR;
        self.with_span(&span.id(), |span| {
            if failed {
                span.set_status(Status::error(fields.error.clone().unwrap_or_default()));
            }
            let name = match (&fields.error, fields.message) {
                (Some(_), _) => "exception".into(),
                (None, Some(message)) => message.into(),
                (None, None) => event.metadata().name().into(),
            };
            if !self.logs_on || fields.error.is_some() {
                span.add_event::<std::borrow::Cow<'static, str>>(name, fields.attributes);
            }
        });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let integers = context.span(&id).and_then(|span| span.extensions_mut().remove::<WideIntegers>());
        if let Some(integers) = integers {
            self.with_span(&id, |span| span.set_attributes(integers.0));
        }
    }
}
