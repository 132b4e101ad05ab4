//! Name, unit, description and buckets of every metric this crate can emit.
//!
//! Sources: OpenTelemetry semantic conventions for `http.*` and `process.*` and `otel.sdk.*`; the Python original
//! for `gym.*`.

mod runtime;

use opentelemetry::metrics::AsyncInstrument;
use opentelemetry::metrics::{
    Counter, Gauge, Histogram, Meter, ObservableCounter, ObservableGauge, ObservableUpDownCounter, UpDownCounter,
};

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
/// Opt-in: the request's `Content-Length`.
pub const HTTP_SERVER_REQUEST_BODY_SIZE: Metric = histogram(
    "http.server.request.body.size",
    "By",
    BODY_SIZE_BY,
    SERVER_ATTRIBUTES,
    "Size of HTTP server request bodies.",
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
    HTTP_SERVER_REQUEST_BODY_SIZE,
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

/// Every metric of the crate, by room.
pub const ALL: &[&[Metric]] = &[INGRESS, runtime::METRICS];
