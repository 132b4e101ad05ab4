//! Makes the SDK's providers from resolved settings.

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{
    BatchConfigBuilder as LogBatchConfig, BatchLogProcessor, LogExporter, SdkLoggerProvider,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder as SpanBatchConfig, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanExporter,
};

use super::console::{ConsoleLogExporter, ConsoleMetricExporter, ConsoleSpanExporter, LineWriter};
use super::otlp;
use crate::config::settings::{ExporterChoice, RootSampler, SamplerChoice, Settings};
use crate::diagnostics;

/// The providers that we made, and what their exporters share.
#[derive(Debug, Default)]
pub(super) struct Providers {
    pub tracer: Option<SdkTracerProvider>,
    pub meter: Option<SdkMeterProvider>,
    pub logger: Option<SdkLoggerProvider>,
    pub otlp: Option<otlp::Shared>,
}

/// Which signals somebody else provides for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandedIn {
    pub tracer: bool,
    pub meter: bool,
    pub logger: bool,
}

impl HandedIn {
    pub(super) fn any(self) -> bool {
        self.tracer || self.meter || self.logger
    }
}

impl Providers {
    /// Makes a provider for every signal that is on and not provided for. A signal that cannot be set up
    /// is said and left out; the others go on.
    pub(super) fn build(settings: &Settings, resource: &Resource, handed_in: HandedIn) -> Self {
        let unless = |handed_in: bool, choice| if handed_in { ExporterChoice::Off } else { choice };
        let traces = unless(handed_in.tracer, settings.traces);
        let metrics = unless(handed_in.meter, settings.metrics);
        let logs = unless(handed_in.logger, settings.logs);

        let otlp =
            if [traces, metrics, logs].contains(&ExporterChoice::Otlp) { said(otlp::Shared::start()) } else { None };
        let stdout = LineWriter::stdout();
        let tracer = match traces {
            ExporterChoice::Off => None,
            ExporterChoice::Console => Some(tracer(ConsoleSpanExporter::new(stdout.clone()), settings, resource)),
            ExporterChoice::Otlp => otlp
                .as_ref()
                .and_then(|otlp| said(otlp.spans(&settings.otlp_traces, settings.span_batch.scheduled_delay)))
                .map(|exporter| tracer(exporter, settings, resource)),
        };
        let meter = match metrics {
            ExporterChoice::Off => None,
            ExporterChoice::Console => {
                Some(meter(ConsoleMetricExporter::new(stdout.clone(), settings.temporality), settings, resource))
            }
            ExporterChoice::Otlp => otlp
                .as_ref()
                .and_then(|otlp| {
                    said(otlp.metrics(&settings.otlp_metrics, settings.metric_interval, settings.temporality))
                })
                .map(|exporter| meter(exporter, settings, resource)),
        };
        let logger = match logs {
            ExporterChoice::Off => None,
            ExporterChoice::Console => Some(logger(ConsoleLogExporter::new(stdout), settings, resource)),
            ExporterChoice::Otlp => otlp
                .as_ref()
                .and_then(|otlp| said(otlp.logs(&settings.otlp_logs, settings.log_batch.scheduled_delay)))
                .map(|exporter| logger(exporter, settings, resource)),
        };
        Self { tracer, meter, logger, otlp }
    }
}

/// The value, or the line that says why there is none.
fn said<T>(result: Result<T, String>) -> Option<T> {
    result.inspect_err(|line| diagnostics::warn(line)).ok()
}

fn tracer(exporter: impl SpanExporter + 'static, settings: &Settings, resource: &Resource) -> SdkTracerProvider {
    let batch = settings.span_batch;
    let config = SpanBatchConfig::default()
        .with_max_queue_size(batch.max_queue_size)
        .with_max_export_batch_size(batch.max_export_batch_size)
        .with_scheduled_delay(batch.scheduled_delay)
        .build();
    let limits = settings.limits;
    SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_sampler(sampler(settings.sampler))
        .with_max_attributes_per_span(limits.attributes_per_span)
        .with_max_events_per_span(limits.events_per_span)
        .with_max_links_per_span(limits.links_per_span)
        .with_max_attributes_per_event(limits.attributes_per_event)
        .with_max_attributes_per_link(limits.attributes_per_link)
        .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(config).build())
        .build()
}

fn meter(exporter: impl PushMetricExporter, settings: &Settings, resource: &Resource) -> SdkMeterProvider {
    let reader = PeriodicReader::builder(exporter).with_interval(settings.metric_interval).build();
    SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(reader).build()
}

fn logger(exporter: impl LogExporter + 'static, settings: &Settings, resource: &Resource) -> SdkLoggerProvider {
    let batch = settings.log_batch;
    let config = LogBatchConfig::default()
        .with_max_queue_size(batch.max_queue_size)
        .with_max_export_batch_size(batch.max_export_batch_size)
        .with_scheduled_delay(batch.scheduled_delay)
        .build();
    SdkLoggerProvider::builder()
        .with_resource(resource.clone())
        .with_log_processor(BatchLogProcessor::builder(exporter).with_batch_config(config).build())
        .build()
}

fn sampler(choice: SamplerChoice) -> Sampler {
    let root = match choice.root {
        RootSampler::AlwaysOn => Sampler::AlwaysOn,
        RootSampler::AlwaysOff => Sampler::AlwaysOff,
        RootSampler::TraceIdRatio(ratio) => Sampler::TraceIdRatioBased(ratio),
    };
    if choice.parent_based { Sampler::ParentBased(Box::new(root)) } else { root }
}
