//! Every instrument of the crate: the catalogue of names, units and buckets, and the instruments
//! of the request path, made once per telemetry handle.

pub mod catalog;

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::metrics::{Histogram, Meter};
use opentelemetry_sdk::metrics::SdkMeterProvider;

/// Scope of the `gym.*` metrics: upstream's, so that dashboards find them.
pub(crate) const METER_SCOPE: &str = "nemo.lens";

/// The instruments of a telemetry handle.
pub(crate) struct Instruments {
    /// For rooms that make instruments of their own (runtime, supervisor, sandbox).
    pub(crate) meter: Meter,
    pub(crate) server_duration: Histogram<f64>,
}

impl Instruments {
    pub(crate) fn new(provider: &SdkMeterProvider) -> Self {
        let meter = provider.meter(METER_SCOPE);
        Self { server_duration: catalog::HTTP_SERVER_REQUEST_DURATION.f64_histogram(&meter), meter }
    }
}
