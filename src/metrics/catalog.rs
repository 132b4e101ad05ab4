//! Name, unit, description and buckets of every metric this crate can emit.
//!
//! Sources: OpenTelemetry semantic conventions for `http.*` and `process.*` and `otel.sdk.*`; the Python original
//! for `gym.*`.

use opentelemetry::metrics::AsyncInstrument;
use opentelemetry::metrics::{
    Counter, Gauge, Histogram, Meter, ObservableCounter, ObservableGauge, ObservableUpDownCounter, UpDownCounter,
};

/// How a metric is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Monotonic sum.
    Counter,
    /// Sum that goes both ways.
    UpDownCounter,
    /// Last value.
    Gauge,
    /// Distribution.
    Histogram,
}

/// One metric of the crate.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// Instrument name.
    pub name: &'static str,
    /// Instrument kind.
    pub kind: Kind,
    /// Unit (UCUM); empty where upstream's is.
    pub unit: &'static str,
    /// One sentence.
    pub description: &'static str,
    /// Explicit bucket boundaries of a histogram; empty for the others.
    pub boundaries: &'static [f64],
    /// Attribute keys that its points may carry.
    pub attributes: &'static [&'static str],
}

impl Metric {
    pub(crate) fn f64_histogram(&self, meter: &Meter) -> Histogram<f64> {
        meter
            .f64_histogram(self.name)
            .with_unit(self.unit)
            .with_description(self.description)
            .with_boundaries(self.boundaries.to_vec())
            .build()
    }
    #[allow(dead_code)]
    pub(crate) fn u64_counter(&self, meter: &Meter) -> Counter<u64> {
        meter.u64_counter(self.name).with_unit(self.unit).with_description(self.description).build()
    }
    #[allow(dead_code)]
    pub(crate) fn i64_up_down_counter(&self, meter: &Meter) -> UpDownCounter<i64> {
        meter.i64_up_down_counter(self.name).with_unit(self.unit).with_description(self.description).build()
    }
    #[allow(dead_code)]
    pub(crate) fn u64_gauge(&self, meter: &Meter) -> Gauge<u64> {
        meter.u64_gauge(self.name).with_unit(self.unit).with_description(self.description).build()
    }
    #[allow(dead_code)]
    pub(crate) fn f64_gauge(&self, meter: &Meter) -> Gauge<f64> {
        meter.f64_gauge(self.name).with_unit(self.unit).with_description(self.description).build()
    }
    #[allow(dead_code)]
    pub(crate) fn observe_u64_gauge(
        &self,
        meter: &Meter,
        f: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static,
    ) -> ObservableGauge<u64> {
        meter
            .u64_observable_gauge(self.name)
            .with_unit(self.unit)
            .with_description(self.description)
            .with_callback(f)
            .build()
    }
    #[allow(dead_code)]
    pub(crate) fn observe_f64_gauge(
        &self,
        meter: &Meter,
        f: impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static,
    ) -> ObservableGauge<f64> {
        meter
            .f64_observable_gauge(self.name)
            .with_unit(self.unit)
            .with_description(self.description)
            .with_callback(f)
            .build()
    }
    #[allow(dead_code)]
    pub(crate) fn observe_u64_counter(
        &self,
        meter: &Meter,
        f: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static,
    ) -> ObservableCounter<u64> {
        meter
            .u64_observable_counter(self.name)
            .with_unit(self.unit)
            .with_description(self.description)
            .with_callback(f)
            .build()
    }
    #[allow(dead_code)]
    pub(crate) fn observe_f64_counter(
        &self,
        meter: &Meter,
        f: impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static,
    ) -> ObservableCounter<f64> {
        meter
            .f64_observable_counter(self.name)
            .with_unit(self.unit)
            .with_description(self.description)
            .with_callback(f)
            .build()
    }
    #[allow(dead_code)]
    pub(crate) fn observe_i64_up_down_counter(
        &self,
        meter: &Meter,
        f: impl Fn(&dyn AsyncInstrument<i64>) + Send + Sync + 'static,
    ) -> ObservableUpDownCounter<i64> {
        meter
            .i64_observable_up_down_counter(self.name)
            .with_unit(self.unit)
            .with_description(self.description)
            .with_callback(f)
            .build()
    }
}

/// Advised buckets of HTTP durations in seconds (HTTP semantic conventions).
pub const HTTP_DURATION_S: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

const fn histogram(
    name: &'static str,
    unit: &'static str,
    boundaries: &'static [f64],
    attributes: &'static [&'static str],
    description: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Histogram, unit, description, boundaries, attributes }
}
#[allow(dead_code)]
const fn counter(
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    description: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, unit, description, boundaries: &[], attributes }
}
#[allow(dead_code)]
const fn up_down(
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    description: &'static str,
) -> Metric {
    Metric { name, kind: Kind::UpDownCounter, unit, description, boundaries: &[], attributes }
}
#[allow(dead_code)]
const fn gauge(
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    description: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, description, boundaries: &[], attributes }
}

/// `http.server.request.duration`
pub const HTTP_SERVER_REQUEST_DURATION: Metric = histogram(
    "http.server.request.duration",
    "s",
    HTTP_DURATION_S,
    &[
        "http.request.method",
        "url.scheme",
        "http.route",
        "http.response.status_code",
        "error.type",
        "network.protocol.version",
    ],
    "Duration of HTTP server requests.",
);

// Delivery accounting (OpenTelemetry semantic conventions, SDK metrics).

/// What a processor has handed on or lost.
const PROCESSED: &[&str] = &["otel.component.type", "otel.component.name", "error.type"];
/// What an exporter has delivered or lost.
const EXPORTED: &[&str] =
    &["otel.component.type", "otel.component.name", "server.address", "server.port", "error.type"];

/// `otel.sdk.processor.span.processed`
pub const OTEL_SDK_PROCESSOR_SPAN_PROCESSED: Metric = counter(
    "otel.sdk.processor.span.processed",
    "{span}",
    PROCESSED,
    "The number of spans for which the processing has finished, either successful or failed.",
);
/// `otel.sdk.processor.log.processed`
pub const OTEL_SDK_PROCESSOR_LOG_PROCESSED: Metric = counter(
    "otel.sdk.processor.log.processed",
    "{log_record}",
    PROCESSED,
    "The number of log records for which the processing has finished, either successful or failed.",
);
/// `otel.sdk.exporter.span.exported`
pub const OTEL_SDK_EXPORTER_SPAN_EXPORTED: Metric = counter(
    "otel.sdk.exporter.span.exported",
    "{span}",
    EXPORTED,
    "The number of spans for which the export has finished, either successful or failed.",
);
/// `otel.sdk.exporter.log.exported`
pub const OTEL_SDK_EXPORTER_LOG_EXPORTED: Metric = counter(
    "otel.sdk.exporter.log.exported",
    "{log_record}",
    EXPORTED,
    "The number of log records for which the export has finished, either successful or failed.",
);
/// `otel.sdk.exporter.metric_data_point.exported`
pub const OTEL_SDK_EXPORTER_METRIC_DATA_POINT_EXPORTED: Metric = counter(
    "otel.sdk.exporter.metric_data_point.exported",
    "{data_point}",
    EXPORTED,
    "The number of metric data points for which the export has finished, either successful or failed.",
);

/// Every metric above.
pub const ALL: &[Metric] = &[
    HTTP_SERVER_REQUEST_DURATION,
    OTEL_SDK_PROCESSOR_SPAN_PROCESSED,
    OTEL_SDK_PROCESSOR_LOG_PROCESSED,
    OTEL_SDK_EXPORTER_SPAN_EXPORTED,
    OTEL_SDK_EXPORTER_LOG_EXPORTED,
    OTEL_SDK_EXPORTER_METRIC_DATA_POINT_EXPORTED,
];
