//! Name, unit, description and buckets of every metric this crate can emit.
//!
//! Sources: OpenTelemetry semantic conventions for `http.*` and `process.*` and `otel.sdk.*`; the Python original
//! for `gym.*`.

mod http_client;
mod runtime;

use opentelemetry::metrics::AsyncInstrument;
use opentelemetry::metrics::{
    Counter, Histogram, Meter, ObservableCounter, ObservableGauge, ObservableUpDownCounter, UpDownCounter,
};

pub use http_client::*;
pub use runtime::*;

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
    pub(crate) fn u64_histogram(&self, meter: &Meter) -> Histogram<u64> {
        meter
            .u64_histogram(self.name)
            .with_unit(self.unit)
            .with_description(self.description)
            .with_boundaries(self.boundaries.to_vec())
            .build()
    }
    pub(crate) fn u64_counter(&self, meter: &Meter) -> Counter<u64> {
        meter.u64_counter(self.name).with_unit(self.unit).with_description(self.description).build()
    }
    pub(crate) fn i64_up_down_counter(&self, meter: &Meter) -> UpDownCounter<i64> {
        meter.i64_up_down_counter(self.name).with_unit(self.unit).with_description(self.description).build()
    }
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
const fn counter(
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    description: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, unit, description, boundaries: &[], attributes }
}
const fn up_down(
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    description: &'static str,
) -> Metric {
    Metric { name, kind: Kind::UpDownCounter, unit, description, boundaries: &[], attributes }
}
const fn gauge(
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    description: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, description, boundaries: &[], attributes }
}

// HTTP server (HTTP semantic conventions)

const SERVER_ATTRIBUTES: &[&str] = &[
    "http.request.method",
    "url.scheme",
    "http.route",
    "http.response.status_code",
    "error.type",
    "network.protocol.version",
];

/// Duration of a server's requests, from the head of the request to the end of the response body.
pub const HTTP_SERVER_REQUEST_DURATION: Metric = histogram(
    "http.server.request.duration",
    "s",
    HTTP_DURATION_S,
    SERVER_ATTRIBUTES,
    "Duration of HTTP server requests.",
);
/// Requests whose response body has not ended.
pub const HTTP_SERVER_ACTIVE_REQUESTS: Metric = up_down(
    "http.server.active_requests",
    "{request}",
    &["http.request.method", "url.scheme"],
    "Number of active HTTP server requests.",
);
/// Opt-in: bytes of the response body that were taken by the connection.
pub const HTTP_SERVER_RESPONSE_BODY_SIZE: Metric = histogram(
    "http.server.response.body.size",
    "By",
    BODY_SIZE_BY,
    SERVER_ATTRIBUTES,
    "Size of HTTP server response bodies.",
);
const BODY_SIZE_BY: &[f64] =
    &[0.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];

// Gym servers

/// Buckets of rollouts, verdicts and model calls: from milliseconds to an hour.
pub const GYM_DURATION_MS: &[f64] = &[
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    120_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// Duration of `/run`, failed ones too.
pub const GYM_ROLLOUT_DURATION: Metric =
    histogram("gym.rollout.duration_ms", "ms", GYM_DURATION_MS, &[], "Duration of a rollout.");
/// Ended rollouts.
pub const GYM_ROLLOUT_COMPLETED: Metric = counter(
    "gym.rollout.completed_total",
    "1",
    &["nemo.gym.rollout.outcome"],
    "Rollouts that ended, by outcome (success, failure).",
);
/// Duration of `/verify`, failed ones too.
pub const GYM_VERIFY_DURATION: Metric =
    histogram("gym.verify.duration_ms", "ms", GYM_DURATION_MS, &[], "Duration of a verification.");
/// Share of verifications that did not fail, since the start of the process.
pub const GYM_VERIFY_SUCCESS_RATE: Metric = gauge(
    "gym.verify.success_rate",
    "",
    &[],
    "Share of verifications that did not fail (whatever the reward), since the start.",
);
/// Ended verifications: what the success rate is made of.
pub const GYM_VERIFY_COMPLETED: Metric = counter(
    "gym.verify.completed_total",
    "1",
    &["nemo.gym.verify.outcome"],
    "Verifications that ended, by outcome (success, failure).",
);
/// Duration of a model server's generation routes, to the end of the response body.
pub const GYM_MODEL_CALL_DURATION: Metric = histogram(
    "gym.model.call_duration_ms",
    "ms",
    GYM_DURATION_MS,
    MODEL_ATTRIBUTES,
    "Duration of a model call, to the end of its response.",
);
/// Time to the first body byte of a model server's generation routes.
pub const GYM_MODEL_TIME_TO_FIRST_BYTE: Metric = histogram(
    "gym.model.time_to_first_byte_ms",
    "ms",
    GYM_DURATION_MS,
    MODEL_ATTRIBUTES,
    "Time from the request to the first byte of the response body of a model call.",
);
const MODEL_ATTRIBUTES: &[&str] = &["nemo.gym.model.dialect", "nemo.gym.server.name"];
/// Requests in flight, all routes together.
pub const GYM_SERVER_REQUESTS_IN_FLIGHT: Metric =
    gauge("gym.server.requests.in_flight", "{request}", &[], "Requests whose response body has not ended.");

const INGRESS: &[Metric] = &[
    HTTP_SERVER_REQUEST_DURATION,
    HTTP_SERVER_ACTIVE_REQUESTS,
    HTTP_SERVER_RESPONSE_BODY_SIZE,
    GYM_ROLLOUT_DURATION,
    GYM_ROLLOUT_COMPLETED,
    GYM_VERIFY_DURATION,
    GYM_VERIFY_SUCCESS_RATE,
    GYM_VERIFY_COMPLETED,
    GYM_MODEL_CALL_DURATION,
    GYM_MODEL_TIME_TO_FIRST_BYTE,
    GYM_SERVER_REQUESTS_IN_FLIGHT,
];

// Start-up and memory of servers, sandboxes

/// Buckets of start-ups: from 100 ms to an hour.
pub const GYM_STARTUP_MS: &[f64] = &[
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    120_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];
/// Buckets of sandbox operations: from 250 ms to 30 minutes.
pub const GYM_SANDBOX_MS: &[f64] =
    &[250.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0, 600_000.0, 1_800_000.0];

/// From the spawn of a server to its first healthy probe; recorded by the supervisor.
pub const GYM_SERVER_STARTUP_DURATION: Metric = histogram(
    "gym.server.startup_duration_ms",
    "ms",
    GYM_STARTUP_MS,
    IDENTITY,
    "Time from the spawn of a server to its first healthy probe.",
);
/// One stage of a server's own start-up; recorded by the server.
pub const GYM_SERVER_STARTUP_STAGE_DURATION: Metric = histogram(
    "gym.server.startup_stage_duration_ms",
    "ms",
    GYM_STARTUP_MS,
    &["nemo.gym.server.name", "nemo.gym.server.type", "nemo.gym.server.worker", "nemo.gym.startup.stage"],
    "Duration of one stage of a server's start-up.",
);
/// Servers that are up; the supervisor's alone.
pub const GYM_SERVERS_ACTIVE: Metric = gauge("gym.servers.active", "", &[], "Servers that are up.");
const IDENTITY: &[&str] = &["nemo.gym.server.name", "nemo.gym.server.type"];

/// Sum over a server's process tree.
pub const GYM_SERVER_MEMORY_USAGE: Metric =
    gauge("gym.server.memory.usage", "By", SERVER_MEMORY, "Memory of a server's process tree, by type (rss, pss).");
/// Largest sum of all samples.
pub const GYM_SERVER_MEMORY_SAMPLED_PEAK: Metric = gauge(
    "gym.server.memory.sampled_peak",
    "By",
    SERVER_MEMORY,
    "Largest sampled memory of a server's process tree, by type (rss, pss).",
);
/// Live processes of a server's tree.
pub const GYM_SERVER_PROCESSES: Metric = gauge(
    "gym.server.processes",
    "{process}",
    &["nemo.gym.server.name", "nemo.gym.server.type", "process.pid"],
    "Live processes of a server's process tree.",
);
const SERVER_MEMORY: &[&str] = &["nemo.gym.server.name", "nemo.gym.server.type", "process.pid", "memory.type"];

/// Total minus available.
pub const GYM_HOST_MEMORY_USAGE: Metric =
    gauge("gym.host.memory.usage", "By", &[], "Memory of the host that is not available (total - available).");
/// `MemAvailable`
pub const GYM_HOST_MEMORY_AVAILABLE: Metric =
    gauge("gym.host.memory.available", "By", &[], "Memory of the host that programs may get without swapping.");
/// `MemTotal`
pub const GYM_HOST_MEMORY_TOTAL: Metric = gauge("gym.host.memory.total", "By", &[], "Memory of the host.");
/// Largest usage of all samples.
pub const GYM_HOST_MEMORY_SAMPLED_PEAK: Metric =
    gauge("gym.host.memory.sampled_peak", "By", &[], "Largest sampled gym.host.memory.usage.");
/// What the group that sets the tightest limit uses. Not upstream's.
pub const GYM_CGROUP_MEMORY_USAGE: Metric = gauge(
    "gym.cgroup.memory.usage",
    "By",
    &[],
    "Memory, page cache included, used by the control group that sets the supervisor's tightest limit.",
);
/// The tightest control group limit; no series where nothing limits. Not upstream's.
pub const GYM_CGROUP_MEMORY_LIMIT: Metric =
    gauge("gym.cgroup.memory.limit", "By", &[], "Tightest control group memory limit on the supervisor.");

/// Sandboxes that were started and not stopped.
pub const GYM_SANDBOX_ACTIVE: Metric =
    up_down("gym.sandbox.active", "{sandbox}", SANDBOX, "Sandboxes that were started and not stopped.");
/// Duration of starts, failed and cancelled ones too.
pub const GYM_SANDBOX_STARTUP_DURATION: Metric =
    histogram("gym.sandbox.startup_duration_ms", "ms", GYM_SANDBOX_MS, SANDBOX, "Duration of a sandbox's start.");
/// Duration of executions, failed and cancelled ones too.
pub const GYM_SANDBOX_EXEC_DURATION: Metric =
    histogram("gym.sandbox.exec_duration_ms", "ms", GYM_SANDBOX_MS, SANDBOX, "Duration of an execution in a sandbox.");
/// Repeated attempts to create a sandbox.
pub const GYM_SANDBOX_CREATE_RETRY: Metric =
    counter("gym.sandbox.create_retry_total", "1", SANDBOX, "Repeated attempts to create a sandbox.");
const SANDBOX: &[&str] = &["nemo.gym.sandbox.provider"];

const SUPERVISOR: &[Metric] = &[
    GYM_SERVER_STARTUP_DURATION,
    GYM_SERVER_STARTUP_STAGE_DURATION,
    GYM_SERVERS_ACTIVE,
    GYM_SERVER_MEMORY_USAGE,
    GYM_SERVER_MEMORY_SAMPLED_PEAK,
    GYM_SERVER_PROCESSES,
    GYM_HOST_MEMORY_USAGE,
    GYM_HOST_MEMORY_AVAILABLE,
    GYM_HOST_MEMORY_TOTAL,
    GYM_HOST_MEMORY_SAMPLED_PEAK,
    GYM_CGROUP_MEMORY_USAGE,
    GYM_CGROUP_MEMORY_LIMIT,
    GYM_SANDBOX_ACTIVE,
    GYM_SANDBOX_STARTUP_DURATION,
    GYM_SANDBOX_EXEC_DURATION,
    GYM_SANDBOX_CREATE_RETRY,
];

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

const ACCOUNTING: &[Metric] = &[
    OTEL_SDK_PROCESSOR_SPAN_PROCESSED,
    OTEL_SDK_PROCESSOR_LOG_PROCESSED,
    OTEL_SDK_EXPORTER_SPAN_EXPORTED,
    OTEL_SDK_EXPORTER_LOG_EXPORTED,
    OTEL_SDK_EXPORTER_METRIC_DATA_POINT_EXPORTED,
];

/// Every metric of the crate, by room.
pub const ALL: &[&[Metric]] = &[INGRESS, http_client::METRICS, SUPERVISOR, ACCOUNTING, runtime::METRICS];
