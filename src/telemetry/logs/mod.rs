#![doc = include_str!("../../../docs/tracing.md")]
#![doc = include_str!("../../../docs/logs.md")]

mod appender;
mod fields;
mod filter;
mod spans;

use opentelemetry::logs::LoggerProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Subscriber;
use tracing_log::{AsLog as _, LogTracer};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

use super::Telemetry;
use crate::diagnostics;

use appender::LogAppender;
use filter::{LogFilter, On};
use spans::SpanCompanion;

impl Telemetry {
    /// A [`tracing_subscriber`] layer that carries this process's `tracing` spans and events into its telemetry.
    ///
    /// * Spans of level `INFO` and above become OpenTelemetry spans through tracing-opentelemetry, when
    ///   traces are on. They nest under the spans of this crate, and those under them.
    /// * Events become log records, when logs are on, as `RUST_LOG` allows (default `info`). Without logs they
    ///   are events of the `tracing` span they occur in.
    /// * Nothing of hyper, h2, tonic, reqwest, rustls, tower and OpenTelemetry itself passes, at any level.
    ///
    /// With telemetry off the layer does nothing and enables nothing. It may stand anywhere in a stack, with
    /// filters of its own around it; use it in one subscriber.
    pub fn tracing_layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let tracer = self.makes_spans().then(|| self.tracer_provider().tracer("tracing-opentelemetry"));
        let logger = self.logger_provider().filter(|_| self.is_enabled());
        layer_with(tracer, logger, &rust_log())
    }
}

/// Installs a subscriber for servers that have none: [`Telemetry::tracing_layer`], plus lines of text on
/// stderr as `RUST_LOG` allows (default `info`); records of the `log` crate come along.
///
/// Returns whether it was installed. A global subscriber that exists already stays as it is, and so does a
/// logger of the `log` crate: add [`Telemetry::tracing_layer`] to the former yourself.
pub fn init_tracing(telemetry: &Telemetry) -> bool {
    let text = fmt::layer()
        .with_writer(std::io::stderr)
        // It would print them, and panic where stderr is closed.
        .log_internal_errors(false)
        .with_filter(filter::env_filter(&rust_log()));
    let subscriber = Registry::default().with(telemetry.tracing_layer()).with(text);
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        diagnostics::warn_once("a tracing subscriber exists already: add Telemetry::tracing_layer() to it");
        return false;
    }
    let _ = LogTracer::init_with_filter(LevelFilter::current().as_log());
    true
}

fn rust_log() -> String {
    std::env::var("RUST_LOG").unwrap_or_default()
}

/// What is off stays in the stack, behind a filter that lets nothing pass: `Option` layers are not told
/// the dispatcher they belong to (tracing-subscriber 0.3.23).
fn layer_with<S>(
    tracer: Option<SdkTracer>,
    logger: Option<&SdkLoggerProvider>,
    directives: &str,
) -> impl Layer<S> + Send + Sync + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let on = On { spans: tracer.is_some(), logs: logger.is_some() };
    let bridge = tracing_opentelemetry::layer()
        .with_tracer(tracer.unwrap_or_else(|| SdkTracerProvider::builder().build().tracer("")))
        // Its names for these are not those of the semantic conventions, or only of its own.
        .with_location(false)
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
