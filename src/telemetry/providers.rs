//! Makes the SDK's providers from resolved settings.

use std::sync::Arc;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{LogExporter, SdkLoggerProvider};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanExporter};

use super::accounting::{BatchLogs, BatchSpans, CountedMetricExporter, ExporterComponent, LossLedger, LossReporter};
use super::console::{ConsoleLogExporter, ConsoleMetricExporter, ConsoleSpanExporter, LineWriter};
use super::otlp;
use crate::config::settings::{ExporterChoice, RootSampler, SamplerChoice, Settings};
use crate::diagnostics::{self, Pace};

/// The providers that we made, and what belongs to them.
#[derive(Debug, Default)]
pub(super) struct Providers {
    pub tracer: Option<SdkTracerProvider>,
    pub meter: Option<SdkMeterProvider>,
    pub logger: Option<SdkLoggerProvider>,
    pub otlp: Option<otlp::Shared>,
    pub ledger: LossLedger,
    pub reporter: Option<LossReporter>,
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

        let ledger = LossLedger::new();
        let pace = Arc::new(Pace::default());
        let wants_otlp = [traces, metrics, logs].contains(&ExporterChoice::Otlp);
        let mut refusals = Refusals::default();
        let otlp = match wants_otlp.then(|| otlp::Shared::start(&pace, &ledger)) {
            Some(Ok(otlp)) => Some(otlp),
            Some(Err(line)) => {
                diagnostics::warn(&line);
                None
            }
            None => None,
        };
        let make = Maker { settings, resource, ledger: &ledger };
        let stdout = LineWriter::stdout();
        let tracer = match traces {
            ExporterChoice::Off => None,
            ExporterChoice::Console => {
                Some(make.tracer(ConsoleSpanExporter::new(stdout.clone()), console("console_span_exporter")))
            }
            ExporterChoice::Otlp => otlp
                .as_ref()
                .and_then(|otlp| {
                    refusals.note("traces", otlp.spans(&settings.otlp_traces, settings.span_batch.scheduled_delay))
                })
                .map(|(exporter, component)| make.tracer(exporter, component)),
        };
        let meter = match metrics {
            ExporterChoice::Off => None,
            ExporterChoice::Console => Some(make.meter(
                ConsoleMetricExporter::new(stdout.clone(), settings.temporality),
                console("console_metric_exporter"),
            )),
            ExporterChoice::Otlp => otlp
                .as_ref()
                .and_then(|otlp| {
                    // The SDK's reader knows no timeout of its own.
                    let mut otlp_settings = settings.otlp_metrics.clone();
                    otlp_settings.timeout = otlp_settings.timeout.min(settings.metric_timeout);
                    let exporter = otlp.metrics(&otlp_settings, settings.metric_interval, settings.temporality);
                    refusals.note("metrics", exporter)
                })
                .map(|(exporter, component)| make.meter(exporter, component)),
        };
        let logger = match logs {
            ExporterChoice::Off => None,
            ExporterChoice::Console => {
                Some(make.logger(ConsoleLogExporter::new(stdout), console("console_log_exporter")))
            }
            ExporterChoice::Otlp => otlp
                .as_ref()
                .and_then(|otlp| {
                    refusals.note("logs", otlp.logs(&settings.otlp_logs, settings.log_batch.scheduled_delay))
                })
                .map(|(exporter, component)| make.logger(exporter, component)),
        };
        refusals.tell();
        let reporter = (tracer.is_some() || meter.is_some() || logger.is_some())
            .then(|| LossReporter::start(&ledger, meter.is_some().then_some(settings.metric_interval), pace));
        // No thread without work.
        let used = [(traces, tracer.is_some()), (metrics, meter.is_some()), (logs, logger.is_some())]
            .contains(&(ExporterChoice::Otlp, true));
        Self { tracer, meter, logger, otlp: otlp.filter(|_| used), ledger, reporter }
    }
}

/// Why signals are not exported, in one line for each reason.
#[derive(Default)]
struct Refusals(Vec<(String, Vec<&'static str>)>);

impl Refusals {
    fn note<T>(&mut self, signal: &'static str, exporter: Result<T, String>) -> Option<T> {
        let why = match exporter {
            Ok(exporter) => return Some(exporter),
            Err(why) => why,
        };
        match self.0.iter_mut().find(|(known, _)| *known == why) {
            Some((_, signals)) => signals.push(signal),
            None => self.0.push((why, vec![signal])),
        }
        None
    }

    fn tell(self) {
        for (why, signals) in self.0 {
            diagnostics::warn(&format!("{why}; not exported: {}", signals.join(", ")));
        }
    }
}

fn console(component_type: &'static str) -> ExporterComponent {
    ExporterComponent { component_type, server: None }
}

struct Maker<'a> {
    settings: &'a Settings,
    resource: &'a Resource,
    ledger: &'a LossLedger,
}

impl Maker<'_> {
    fn tracer(&self, exporter: impl SpanExporter + 'static, component: ExporterComponent) -> SdkTracerProvider {
        let limits = self.settings.limits;
        let processor = BatchSpans::start(
            exporter,
            component,
            &self.settings.span_batch,
            limits.attribute_value_length,
            self.ledger,
        );
        SdkTracerProvider::builder()
            .with_resource(self.resource.clone())
            .with_sampler(sampler(self.settings.sampler))
            .with_max_attributes_per_span(limits.attributes_per_span)
            .with_max_events_per_span(limits.events_per_span)
            .with_max_links_per_span(limits.links_per_span)
            .with_max_attributes_per_event(limits.attributes_per_event)
            .with_max_attributes_per_link(limits.attributes_per_link)
            .with_span_processor(processor)
            .build()
    }

    fn meter(&self, exporter: impl PushMetricExporter, component: ExporterComponent) -> SdkMeterProvider {
        let exporter = CountedMetricExporter::new(exporter, component, self.ledger);
        let reader = PeriodicReader::builder(exporter).with_interval(self.settings.metric_interval).build();
        SdkMeterProvider::builder().with_resource(self.resource.clone()).with_reader(reader).build()
    }

    fn logger(&self, exporter: impl LogExporter + 'static, component: ExporterComponent) -> SdkLoggerProvider {
        let processor = BatchLogs::start(exporter, component, &self.settings.log_batch, self.ledger);
        SdkLoggerProvider::builder().with_resource(self.resource.clone()).with_log_processor(processor).build()
    }
}

fn sampler(choice: SamplerChoice) -> Sampler {
    let root = match choice.root {
        RootSampler::AlwaysOn => Sampler::AlwaysOn,
        RootSampler::AlwaysOff => Sampler::AlwaysOff,
        RootSampler::TraceIdRatio(ratio) => Sampler::TraceIdRatioBased(ratio),
    };
    if choice.parent_based { Sampler::ParentBased(Box::new(root)) } else { root }
}
