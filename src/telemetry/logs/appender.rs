//! `tracing` events as OpenTelemetry log records.

use std::sync::OnceLock;
use std::time::SystemTime;

use opentelemetry::Context as OtelContext;
use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, Severity};
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_sdk::logs::SdkLogger;
use tracing::dispatcher::WeakDispatch;
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_log::NormalizeEvent as _;
use tracing_opentelemetry::get_otel_context;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::fields::{EventFields, any_value};

/// Emits every event it sees. The record carries the ids of the OpenTelemetry span that is active, made
/// through `tracing` or not, and none where none is.
#[derive(Debug)]
pub(super) struct LogAppender {
    logger: Option<SdkLogger>,
    dispatch: OnceLock<WeakDispatch>,
}

impl LogAppender {
    pub(super) fn new(logger: Option<SdkLogger>) -> Self {
        Self { logger, dispatch: OnceLock::new() }
    }

    /// The context that an event asks for: its explicit parent's, none for an explicit root, else the current one.
    fn context_of(&self, event: &Event<'_>) -> Option<OtelContext> {
        if event.is_root() {
            return Some(OtelContext::new());
        }
        let parent = event.parent()?;
        let dispatch = self.dispatch.get().and_then(WeakDispatch::upgrade)?;
        get_otel_context(parent, &dispatch)
    }
}

impl<S> Layer<S> for LogAppender
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        let _ = self.dispatch.set(dispatch.downgrade());
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let Some(logger) = self.logger.as_ref().filter(|_| !OtelContext::is_current_telemetry_suppressed()) else {
            return;
        };
        let normalized = event.normalized_metadata();
        let metadata = normalized.as_ref().unwrap_or_else(|| event.metadata());
        let (severity, text) = severity(*metadata.level());
        let mut record = logger.create_log_record();
        record.set_timestamp(SystemTime::now());
        record.set_target(metadata.target().to_owned());
        record.set_severity_number(severity);
        record.set_severity_text(text);
        // Most names are only `event file:line`; one that the author gave is an event's name.
        let name = event.metadata().name();
        if !name.starts_with("event ") && name != "log event" {
            record.set_event_name(name);
        }

        let mut fields = EventFields::default();
        event.record(&mut fields);
        if let Some(message) = fields.message {
            record.set_body(AnyValue::from(message));
        }
        if let Some(file) = metadata.file() {
            record.add_attribute("code.file.path", file.to_owned());
        }
        if let Some(module) = metadata.module_path() {
            // The nearest that `tracing` knows: an event does not tell its function.
            record.add_attribute("code.function.name", module.to_owned());
        }
        if let Some(line) = metadata.line() {
            record.add_attribute("code.line.number", i64::from(line));
        }
        for attribute in fields.attributes {
            if !is_code_location(attribute.key.as_str()) {
                record.add_attribute(attribute.key, any_value(attribute.value));
            }
        }

        let _attached = self.context_of(event).map(OtelContext::attach);
        // The SDK takes any active span for a valid one.
        if OtelContext::map_current(|context| context.has_active_span() && !context.span().span_context().is_valid()) {
            let _none = OtelContext::new().attach();
            logger.emit(record);
        } else {
            logger.emit(record);
        }
    }
}

/// Keys that the appender sets itself; a record must not carry a key twice.
fn is_code_location(key: &str) -> bool {
    matches!(key, "code.file.path" | "code.function.name" | "code.line.number")
}

fn severity(level: Level) -> (Severity, &'static str) {
    match level {
        Level::TRACE => (Severity::Trace, "TRACE"),
        Level::DEBUG => (Severity::Debug, "DEBUG"),
        Level::INFO => (Severity::Info, "INFO"),
        Level::WARN => (Severity::Warn, "WARN"),
        Level::ERROR => (Severity::Error, "ERROR"),
    }
}
