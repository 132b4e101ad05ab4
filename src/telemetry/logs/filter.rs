//! What passes.

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use crate::diagnostics;

/// Libraries that exporters work with: what they say while a batch is sent would be sent with the next
/// one, for ever. Their families (`hyper_util`, `tower_http`, `opentelemetry_sdk`, …) count as well.
const FAMILIES: &[&str] = &["hyper", "h2", "tonic", "reqwest", "rustls", "tower", "opentelemetry"];
/// Further crates on whose threads and under whose calls exporters work.
const CRATES: &[&str] = &["mio", "want", "tokio_util", "tokio_rustls"];

/// Whether a target belongs to a library whose events never pass.
fn is_excluded(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    // Some use the package's name, with hyphens.
    let is = |known: &str| {
        name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('_') || rest.starts_with('-'))
    };
    FAMILIES.iter().any(|family| is(family))
        || CRATES.iter().any(|known| name == *known || name.replace('-', "_") == *known)
}

fn allowed(metadata: &Metadata<'_>) -> bool {
    !is_excluded(metadata.target())
}

/// Which signals the layer feeds.
#[derive(Clone, Copy, Debug)]
pub(super) struct On {
    pub(super) spans: bool,
    pub(super) logs: bool,
}

/// The hint of a filter that lets nothing above `level` pass, or nothing at all.
fn hint(on: bool, level: LevelFilter) -> LevelFilter {
    if on { level } else { LevelFilter::OFF }
}

/// Spans that become OpenTelemetry spans. `RUST_LOG` does not matter here: a log level must not break a trace.
pub(super) fn spans(on: On) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(move |metadata| on.spans && metadata.is_span() && *metadata.level() <= Level::INFO && allowed(metadata))
        .with_max_level_hint(hint(on.spans, LevelFilter::INFO))
}

/// Spans, and the events that become events of their span: all from `INFO` up, or only errors where
/// events are exported as log records.
pub(super) fn spans_and_events(on: On) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(move |metadata| {
        let least = if metadata.is_event() && on.logs { Level::ERROR } else { Level::INFO };
        on.spans && *metadata.level() <= least && allowed(metadata)
    })
    .with_max_level_hint(hint(on.spans, LevelFilter::INFO))
}

/// Events that become log records: those that `RUST_LOG` allows, without those of excluded libraries.
#[derive(Debug)]
pub(super) struct LogFilter {
    on: On,
    env: EnvFilter,
}

impl LogFilter {
    pub(super) fn new(on: On, directives: &str) -> Self {
        Self { on, env: env_filter(directives) }
    }
}

impl<S> Filter<S> for LogFilter
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        self.on.logs && allowed(metadata) && Filter::enabled(&self.env, metadata, context)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.on.logs && allowed(metadata) {
            Filter::<S>::callsite_enabled(&self.env, metadata)
        } else {
            Interest::never()
        }
    }

    /// Never below what spans need: of layers joined by `and_then` over a bare registry, the last one's
    /// hint is taken for all (tracing-subscriber 0.3.23).
    fn max_level_hint(&self) -> Option<LevelFilter> {
        let logs = if self.on.logs { Filter::<S>::max_level_hint(&self.env)? } else { LevelFilter::OFF };
        Some(logs.max(hint(self.on.spans, LevelFilter::INFO)))
    }

    // Directives may depend on the spans around an event.
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        Filter::on_new_span(&self.env, attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        Filter::on_record(&self.env, id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        Filter::on_enter(&self.env, id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        Filter::on_exit(&self.env, id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        Filter::on_close(&self.env, id, context);
    }
}

/// The filter of `RUST_LOG`; `info` where there is none or it cannot be read.
pub(super) fn env_filter(directives: &str) -> EnvFilter {
    let builder = || EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    builder().parse(directives).unwrap_or_else(|_| {
        diagnostics::warn_once("RUST_LOG cannot be read: info is used");
        builder().parse_lossy("")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporters_libraries_are_excluded_with_their_families() {
        for target in [
            "hyper",
            "hyper::proto::h1",
            "hyper_util::client::legacy",
            "h2::codec",
            "tonic::transport",
            "reqwest::connect",
            "rustls::client::hs",
            "rustls_platform_verifier",
            "tower",
            "tower::buffer::worker",
            "tower_http::trace",
            "opentelemetry",
            "opentelemetry_sdk",
            "opentelemetry-otlp",
            "opentelemetry_otlp::exporter",
            "mio::poll",
            "tokio-util::codec",
        ] {
            assert!(is_excluded(target), "{target}");
        }
        for target in
            ["", "hyperion", "h2o", "towers::x", "my_server", "my::hyper", "log", "reqwests", "nemo_gym_telemetry"]
        {
            assert!(!is_excluded(target), "{target}");
        }
    }
}
