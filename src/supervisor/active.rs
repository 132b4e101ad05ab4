//! `gym.servers.active`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use opentelemetry::metrics::Meter;

use crate::metrics::catalog;
use crate::telemetry::Telemetry;

/// The servers of one telemetry handle that are up. The gauge exists from the first one on, so that only a supervisor
/// has it.
pub(crate) struct ActiveServers(Arc<AtomicU64>);

impl ActiveServers {
    pub(crate) fn new(meter: &Meter) -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let observed = count.clone();
        catalog::GYM_SERVERS_ACTIVE.observe_u64_gauge(meter, move |gauge| gauge.observe(observed.load(Relaxed), &[]));
        Self(count)
    }
}

/// A server that is up: counts as one in `gym.servers.active` until it is dropped.
///
/// [`StartingServer::healthy`](super::StartingServer::healthy) gives one.
#[derive(Debug)]
#[must_use = "the server counts as active until this is dropped"]
pub struct ActiveServer {
    count: Option<Arc<AtomicU64>>,
}

impl ActiveServer {
    /// Counts a server that was started without [`SupervisorStartup`](super::SupervisorStartup).
    pub fn new(telemetry: &Telemetry) -> Self {
        let count = telemetry.switches().metrics().then(|| telemetry.instruments().active_servers().0.clone());
        if let Some(count) = &count {
            count.fetch_add(1, Relaxed);
        }
        Self { count }
    }
}

impl Drop for ActiveServer {
    fn drop(&mut self) {
        if let Some(count) = &self.count {
            count.fetch_sub(1, Relaxed);
        }
    }
}
