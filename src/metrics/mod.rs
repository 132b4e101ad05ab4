//! Every instrument of the crate: the catalogue of names, units and buckets, and the instruments
//! of the request path, made once per telemetry handle.

mod bound;
pub mod catalog;
mod gym;
mod http_client;
mod http_server;

use std::sync::OnceLock;

use opentelemetry::metrics::{Histogram, Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;

use crate::config::ServerIdentity;
pub(crate) use bound::LazyHistogram;
pub use gym::ModelDialect;
pub(crate) use gym::{Gym, ms};
pub(crate) use http_client::{Durations, HttpClient};
pub(crate) use http_server::{ActiveRequest, HttpServer};

/// Scope of the `gym.*` metrics: upstream's, so that dashboards find them.
pub(crate) const METER_SCOPE: &str = "nemo.lens";

/// The instruments of a telemetry handle.
pub(crate) struct Instruments {
    /// For rooms that make instruments of their own (runtime, supervisor, sandbox).
    pub(crate) meter: Meter,
    pub(crate) http_server: HttpServer,
    http_client: OnceLock<HttpClient>,
    pub(crate) gym: Gym,
    #[cfg(feature = "supervisor")]
    startup: OnceLock<Histogram<f64>>,
    startup_stage: OnceLock<Histogram<f64>>,
    sandbox: OnceLock<crate::sandbox::SandboxInstruments>,
    #[cfg(feature = "supervisor")]
    active_servers: OnceLock<crate::supervisor::ActiveServers>,
    #[cfg(feature = "supervisor")]
    memory: OnceLock<crate::supervisor::memory::MemoryGauges>,
}

impl Instruments {
    pub(crate) fn new(provider: &SdkMeterProvider, identity: &ServerIdentity) -> Self {
        let meter = provider.meter(METER_SCOPE);
        let http_server = HttpServer::new(&meter);
        Self {
            gym: Gym::new(&meter, identity),
            http_server,
            http_client: OnceLock::new(),
            meter,
            #[cfg(feature = "supervisor")]
            startup: OnceLock::new(),
            startup_stage: OnceLock::new(),
            sandbox: OnceLock::new(),
            #[cfg(feature = "supervisor")]
            active_servers: OnceLock::new(),
            #[cfg(feature = "supervisor")]
            memory: OnceLock::new(),
        }
    }

    // Made at their first use: most processes never need them.

    #[inline]
    pub(crate) fn http_client(&self) -> &HttpClient {
        self.http_client.get_or_init(|| HttpClient::new(&self.meter))
    }

    #[cfg(feature = "supervisor")]
    pub(crate) fn startup(&self) -> &Histogram<f64> {
        self.startup.get_or_init(|| catalog::GYM_SERVER_STARTUP_DURATION.f64_histogram(&self.meter))
    }
    pub(crate) fn startup_stage(&self) -> &Histogram<f64> {
        self.startup_stage.get_or_init(|| catalog::GYM_SERVER_STARTUP_STAGE_DURATION.f64_histogram(&self.meter))
    }
    pub(crate) fn sandbox(&self) -> &crate::sandbox::SandboxInstruments {
        self.sandbox.get_or_init(|| crate::sandbox::SandboxInstruments::new(&self.meter))
    }
    #[cfg(feature = "supervisor")]
    pub(crate) fn active_servers(&self) -> &crate::supervisor::ActiveServers {
        self.active_servers.get_or_init(|| crate::supervisor::ActiveServers::new(&self.meter))
    }
    /// Ends what fills instruments on threads of its own.
    pub(crate) fn stop(&self) {
        #[cfg(feature = "supervisor")]
        if let Some(memory) = self.memory.get() {
            memory.stop();
        }
    }
    #[cfg(feature = "supervisor")]
    pub(crate) fn memory(&self) -> &crate::supervisor::memory::MemoryGauges {
        self.memory.get_or_init(|| crate::supervisor::memory::MemoryGauges::new(&self.meter))
    }
}
