//! Every instrument of the crate: the catalogue of names, units and buckets, and the instruments
//! of the request path, made once per telemetry handle.

mod bound;
pub mod catalog;
mod gym;
mod http_server;

use opentelemetry::metrics::{Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;

use crate::config::ServerIdentity;
pub(crate) use bound::LazyHistogram;
pub use gym::ModelDialect;
pub(crate) use gym::{Gym, ms};
pub(crate) use http_server::{ActiveRequest, HttpServer};

/// Scope of the `gym.*` metrics: upstream's, so that dashboards find them.
pub(crate) const METER_SCOPE: &str = "nemo.lens";

/// The instruments of a telemetry handle.
pub(crate) struct Instruments {
    /// For rooms that make instruments of their own (runtime, supervisor, sandbox).
    pub(crate) meter: Meter,
    pub(crate) http_server: HttpServer,
    pub(crate) gym: Gym,
}

impl Instruments {
    pub(crate) fn new(provider: &SdkMeterProvider, identity: &ServerIdentity) -> Self {
        let meter = provider.meter(METER_SCOPE);
        let http_server = HttpServer::new(&meter);
        Self { gym: Gym::new(&meter, identity), http_server, meter }
    }
}
