//! The `tracing` layer: the user's spans and log records.

mod appender;
mod fields;
mod filter;
mod spans;

use opentelemetry::logs::LoggerProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

use appender::LogAppender;
use filter::{LogFilter, On};
use spans::SpanCompanion;

/// What is off stays in the stack, behind a filter that lets nothing pass: `Option` layers are not told
/// the dispatcher they belong to (tracing-subscriber 0.3.23).
fn layer_with<S>(
    tracer: Option<SdkTracer>,
    logger: Option<&SdkLoggerProvider>,
    directives: &str,
) -> impl Layer<S> + Send + Sync + 'static
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let on = On { spans: tracer.is_some(), logs: logger.is_some() };
    let bridge = tracing_opentelemetry::layer()
        .with_tracer(tracer.unwrap_or_else(|| SdkTracerProvider::builder().build().tracer("")))
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false);
    let appender = LogAppender::new(logger.map(|provider| provider.logger("")));
    // The companion comes first: at the close of a span it has the last word on attributes.
    SpanCompanion::new(on.logs)
        .with_filter(filter::spans_and_events(on))
        .and_then(bridge.with_filter(filter::spans(on)))
        .and_then(appender.with_filter(LogFilter::new(on, directives)))
}

#[cfg(test)]
mod tests;
