//! One pipeline for every candidate: the SDK's batch processor with its defaults and an exporter that drops, so that nothing
//! of a request waits for an export; a periodic reader that has nothing to do while a bench runs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use opentelemetry::global;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing_subscriber::layer::SubscriberExt;

static DRAIN: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
static EXPORTED: AtomicUsize = AtomicUsize::new(0);

/// Empties the queue of spans, between what is measured.
pub fn drain() {
    if let Some(drain) = DRAIN.get() {
        drain();
    }
}

pub fn drain_by(drain: impl Fn() + Send + Sync + 'static) {
    assert!(DRAIN.set(Box::new(drain)).is_ok(), "one pipeline a process");
}

pub fn exported() -> usize {
    EXPORTED.load(Relaxed)
}

pub fn count_exported(spans: usize) {
    EXPORTED.fetch_add(spans, Relaxed);
}

#[derive(Debug)]
struct Dropping;

impl SpanExporter for Dropping {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        count_exported(batch.len());
        Ok(())
    }
}

impl PushMetricExporter for Dropping {
    async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
        Ok(())
    }
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

fn spans() -> SdkTracerProvider {
    let provider = SdkTracerProvider::builder().with_batch_exporter(Dropping).build();
    let drained = provider.clone();
    drain_by(move || drop(drained.force_flush()));
    provider
}

fn metrics() -> SdkMeterProvider {
    let reader = PeriodicReader::builder(Dropping).with_interval(Duration::from_secs(3600)).build();
    SdkMeterProvider::builder().with_reader(reader).build()
}

/// This crate's, with these span groups on.
pub fn own(groups: &str, with_metrics: bool) -> Telemetry {
    let builder = Telemetry::builder()
        .with_environment(Environment::from_iter([("NEMO_GYM_OTEL_SPAN_GROUPS", groups)]))
        .with_identity(ServerIdentity::new("example_server", ServerType::ResourcesServers))
        .with_tracer_provider(spans())
        .with_parent_based_sampler();
    if with_metrics { builder.with_meter_provider(metrics()) } else { builder }.build()
}

/// The process-wide providers, which is where the peers look.
pub fn global(with_metrics: bool) -> SdkTracerProvider {
    let provider = spans();
    global::set_text_map_propagator(TraceContextPropagator::new());
    global::set_tracer_provider(provider.clone());
    if with_metrics {
        global::set_meter_provider(metrics());
    }
    provider
}

/// As [`global`], with tracing-opentelemetry between the peer's `tracing` spans and the provider.
pub fn global_through_tracing() {
    let layer = tracing_opentelemetry::layer().with_tracer(global(false).tracer("peers"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).expect("the first subscriber");
}
