//! The three signals and what differs between them on the wire.

use crate::config::settings::OtlpProtocol;
use crate::telemetry::accounting;

/// What an exporter carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl Signal {
    /// The signal's word in messages, variable names and paths.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Signal::Traces => "traces",
            Signal::Metrics => "metrics",
            Signal::Logs => "logs",
        }
    }

    /// What there is many of.
    pub(super) const fn items(self) -> &'static str {
        match self {
            Signal::Traces => "spans",
            Signal::Metrics => "metric data points",
            Signal::Logs => "log records",
        }
    }

    pub(super) const fn in_ledger(self) -> accounting::Signal {
        match self {
            Signal::Traces => accounting::Signal::Spans,
            Signal::Metrics => accounting::Signal::MetricDataPoints,
            Signal::Logs => accounting::Signal::LogRecords,
        }
    }

    /// `otel.component.type` of the exporter (semantic conventions, OpenTelemetry SDK metrics).
    pub(super) const fn component_type(self, protocol: OtlpProtocol) -> &'static str {
        match (self, protocol) {
            (Signal::Traces, OtlpProtocol::Grpc) => "otlp_grpc_span_exporter",
            (Signal::Traces, OtlpProtocol::HttpProtobuf) => "otlp_http_span_exporter",
            (Signal::Metrics, OtlpProtocol::Grpc) => "otlp_grpc_metric_exporter",
            (Signal::Metrics, OtlpProtocol::HttpProtobuf) => "otlp_http_metric_exporter",
            (Signal::Logs, OtlpProtocol::Grpc) => "otlp_grpc_log_exporter",
            (Signal::Logs, OtlpProtocol::HttpProtobuf) => "otlp_http_log_exporter",
        }
    }

    /// The path that OTLP/HTTP appends to a base endpoint (OTLP exporter specification).
    pub(super) const fn http_path(self) -> &'static str {
        match self {
            Signal::Traces => "/v1/traces",
            Signal::Metrics => "/v1/metrics",
            Signal::Logs => "/v1/logs",
        }
    }

    /// The path of the gRPC method.
    #[cfg(feature = "otlp-grpc")]
    pub(super) const fn grpc_path(self) -> &'static str {
        match self {
            Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        }
    }
}
