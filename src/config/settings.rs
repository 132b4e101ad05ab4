//! What initialisation needs to know, resolved once from the environment and the configuration block.

use std::path::PathBuf;
use std::time::Duration;

use opentelemetry_sdk::metrics::Temporality;

use crate::span_group::SpanGroups;

/// Resolved settings: every default applied, every bad value replaced and warned about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Telemetry is on (and `OTEL_SDK_DISABLED` does not say otherwise).
    pub enabled: bool,
    /// `OTEL_SDK_DISABLED`: off, whatever else is set.
    pub sdk_disabled: bool,
    pub span_groups: SpanGroups,
    pub traces: ExporterChoice,
    pub metrics: ExporterChoice,
    pub logs: ExporterChoice,
    /// The run id from the environment or the block, else `SLURM_JOB_ID`, else 12 generated hex digits.
    pub run_id: String,
    /// The service's name before a server name is appended.
    pub service_name: String,
    pub service_name_per_server: bool,
    pub sampler: SamplerChoice,
    pub propagators: PropagatorChoice,
    pub limits: SpanLimitSettings,
    pub span_batch: BatchSettings,
    pub log_batch: BatchSettings,
    pub metric_interval: Duration,
    pub metric_timeout: Duration,
    pub temporality: Temporality,
    pub otlp_traces: OtlpSettings,
    pub otlp_metrics: OtlpSettings,
    pub otlp_logs: OtlpSettings,
    pub memory_profiling_enabled: bool,
    pub memory_profiling_interval: Duration,
    pub event_loop_sample_interval: Duration,
    /// A worker that shows no progress for this long counts as stuck.
    pub event_loop_stuck_threshold: Duration,
}

/// Where a signal goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExporterChoice {
    /// The signal is not made at all.
    Off,
    /// JSON lines on stdout.
    Console,
    Otlp,
}

/// A sampler by the specification's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SamplerChoice {
    /// Follow the parent's decision where there is a parent.
    pub parent_based: bool,
    pub root: RootSampler,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RootSampler {
    AlwaysOn,
    AlwaysOff,
    TraceIdRatio(f64),
}

/// Which parts of a context are read from and written to headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PropagatorChoice {
    pub trace_context: bool,
    pub baggage: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanLimitSettings {
    pub attributes_per_span: u32,
    pub events_per_span: u32,
    pub links_per_span: u32,
    pub attributes_per_event: u32,
    pub attributes_per_link: u32,
    /// Longest attribute text in characters; `None`: no limit.
    pub attribute_value_length: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchSettings {
    pub max_queue_size: usize,
    pub max_export_batch_size: usize,
    pub scheduled_delay: Duration,
    pub export_timeout: Duration,
}

/// One signal's OTLP settings. Header values are secret: `Debug` shows names only.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OtlpSettings {
    pub endpoint: Option<OtlpEndpoint>,
    pub protocol: OtlpProtocol,
    /// Percent-decoded, malformed ones already dropped.
    pub headers: Vec<(String, String)>,
    pub timeout: Duration,
    pub gzip: bool,
    pub certificate: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    /// `OTEL_EXPORTER_OTLP_INSECURE` for gRPC endpoints without a scheme.
    pub insecure: bool,
}

/// An endpoint as it was configured. Not judged here: what is no usable URL switches its signal off where
/// the exporters are made, as a default or another variable's value would be a place that nobody named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtlpEndpoint {
    /// Trimmed, otherwise as given.
    pub text: String,
    /// The variable or block field to name in messages.
    pub source: &'static str,
    /// From a signal's own variable: used as is, no path is joined.
    pub signal_specific: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtlpProtocol {
    Grpc,
    HttpProtobuf,
}

impl std::fmt::Debug for OtlpSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtlpSettings")
            .field("endpoint", &self.endpoint)
            .field("protocol", &self.protocol)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("timeout", &self.timeout)
            .field("gzip", &self.gzip)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    /// What an empty environment means.
    fn default() -> Self {
        let otlp = OtlpSettings {
            endpoint: None,
            protocol: OtlpProtocol::Grpc,
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
            gzip: false,
            certificate: None,
            client_certificate: None,
            client_key: None,
            insecure: false,
        };
        let batch = BatchSettings {
            max_queue_size: 65_536,
            max_export_batch_size: 512,
            scheduled_delay: Duration::from_secs(5),
            export_timeout: Duration::from_secs(30),
        };
        Self {
            enabled: false,
            sdk_disabled: false,
            span_groups: SpanGroups::DEFAULT,
            traces: ExporterChoice::Otlp,
            metrics: ExporterChoice::Otlp,
            logs: ExporterChoice::Off,
            run_id: String::new(),
            service_name: "nemo-gym".to_owned(),
            service_name_per_server: true,
            sampler: SamplerChoice { parent_based: true, root: RootSampler::AlwaysOn },
            propagators: PropagatorChoice { trace_context: true, baggage: true },
            limits: SpanLimitSettings {
                attributes_per_span: 128,
                events_per_span: 128,
                links_per_span: 128,
                attributes_per_event: 128,
                attributes_per_link: 128,
                attribute_value_length: None,
            },
            span_batch: batch,
            log_batch: BatchSettings { scheduled_delay: Duration::from_secs(1), ..batch },
            metric_interval: Duration::from_secs(10),
            metric_timeout: Duration::from_secs(30),
            temporality: Temporality::Cumulative,
            otlp_traces: otlp.clone(),
            otlp_metrics: otlp.clone(),
            otlp_logs: otlp,
            memory_profiling_enabled: false,
            memory_profiling_interval: Duration::from_secs(1),
            event_loop_sample_interval: Duration::from_secs(1),
            event_loop_stuck_threshold: Duration::from_millis(100),
        }
    }
}
