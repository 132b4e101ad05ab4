//! The gauges that show the latest sample.
//!
//! They are observable: a series that is not observed ends, which is how a dead server's does. Callbacks cannot be
//! taken back, so they are made once per telemetry handle and look through the profilers that live.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use super::{MemorySample, ServerMemory, Shared};
use crate::metrics::catalog::{self, Metric};

/// A value and its `memory.type`, where there are any.
type Series = (Option<u64>, Option<&'static str>);

/// The memory gauges of one telemetry handle.
pub(crate) struct MemoryGauges {
    profilers: Arc<Mutex<Vec<Weak<Shared>>>>,
}

impl MemoryGauges {
    pub(crate) fn new(meter: &Meter) -> Self {
        let gauges = Self { profilers: Arc::default() };
        gauges.host(meter, &catalog::GYM_HOST_MEMORY_USAGE, |s| Some(s.host?.used));
        gauges.host(meter, &catalog::GYM_HOST_MEMORY_AVAILABLE, |s| Some(s.host?.available));
        gauges.host(meter, &catalog::GYM_HOST_MEMORY_TOTAL, |s| Some(s.host?.total));
        gauges.host(meter, &catalog::GYM_HOST_MEMORY_SAMPLED_PEAK, |s| Some(s.host?.sampled_peak));
        gauges.host(meter, &catalog::GYM_CGROUP_MEMORY_USAGE, |s| Some(s.cgroup?.usage));
        gauges.host(meter, &catalog::GYM_CGROUP_MEMORY_LIMIT, |s| Some(s.cgroup?.limit));
        gauges.servers(meter, &catalog::GYM_SERVER_MEMORY_USAGE, |server| {
            [(Some(server.rss), Some("rss")), (server.pss, Some("pss"))]
        });
        gauges.servers(meter, &catalog::GYM_SERVER_MEMORY_SAMPLED_PEAK, |server| {
            [(Some(server.peak_rss), Some("rss")), (server.peak_pss, Some("pss"))]
        });
        gauges.servers(meter, &catalog::GYM_SERVER_PROCESSES, |server| [(Some(server.processes), None)]);
        gauges
    }

    pub(super) fn show(&self, profiler: &Arc<Shared>) {
        let mut profilers = self.profilers.lock().unwrap_or_else(PoisonError::into_inner);
        profilers.retain(|profiler| profiler.strong_count() > 0);
        profilers.push(Arc::downgrade(profiler));
    }

    /// Stops every profiler of this telemetry handle.
    pub(crate) fn stop(&self) {
        let profilers = std::mem::take(&mut *self.profilers.lock().unwrap_or_else(PoisonError::into_inner));
        profilers.iter().filter_map(Weak::upgrade).for_each(|profiler| profiler.stop());
    }

    fn host(&self, meter: &Meter, metric: &Metric, value: fn(&MemorySample) -> Option<u64>) {
        let profilers = self.profilers.clone();
        metric.observe_u64_gauge(meter, move |gauge| {
            for sample in latest(&profilers) {
                if let Some(value) = value(&sample) {
                    gauge.observe(value, &[]);
                }
            }
        });
    }

    fn servers<const N: usize>(&self, meter: &Meter, metric: &Metric, values: fn(&ServerMemory) -> [Series; N]) {
        let profilers = self.profilers.clone();
        metric.observe_u64_gauge(meter, move |gauge: &dyn AsyncInstrument<u64>| {
            for sample in latest(&profilers) {
                for server in &sample.servers {
                    for (value, memory_type) in values(server) {
                        let Some(value) = value else { continue };
                        let mut attributes = crate::startup::identity_attributes(&server.identity);
                        attributes.push(KeyValue::new("process.pid", i64::from(server.pid)));
                        attributes.extend(memory_type.map(|kind| KeyValue::new("memory.type", kind)));
                        gauge.observe(value, &attributes);
                    }
                }
            }
        });
    }
}

fn latest(profilers: &Mutex<Vec<Weak<Shared>>>) -> Vec<Arc<MemorySample>> {
    let profilers = profilers.lock().unwrap_or_else(PoisonError::into_inner);
    profilers.iter().filter_map(|profiler| profiler.upgrade()?.latest()).collect()
}
