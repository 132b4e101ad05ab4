//! The runtimes that a telemetry handle monitors.
//!
//! The SDK cannot unregister an observable callback. There is therefore one callback per instrument and handle, and
//! it walks the list kept here: a runtime that has ended is no longer on it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use opentelemetry::metrics::{Histogram, Meter};
use tokio::runtime::Handle;

use super::monitored::{MonitorSettings, Monitored};
use super::{instruments, process, sampler};
use crate::config::settings::Settings;
use crate::telemetry::Telemetry;

/// Starts monitoring the runtime that this is called on, once per telemetry handle. Cheap enough for every request.
#[inline]
pub(crate) fn ensure_started(telemetry: &Telemetry) {
    let monitors = telemetry.runtime_monitors();
    if !monitors.registry.settled.load(Relaxed) {
        monitors.registry.start_current();
    }
}

/// What a telemetry handle owns of the monitor. Ends with it.
pub(crate) struct Monitors {
    pub(super) registry: Arc<Registry>,
}

impl Monitors {
    /// Nothing runs and no instrument exists before a runtime is monitored. With `enabled` false none ever is.
    pub(crate) fn new(meter: Meter, enabled: bool) -> Self {
        Self {
            registry: Arc::new(Registry {
                meter,
                settings: OnceLock::new(),
                settled: AtomicBool::new(!enabled),
                lag_samples: OnceLock::new(),
                live: Mutex::new(Live { stopped: !enabled, ..Live::default() }),
                changed: Condvar::new(),
            }),
        }
    }

    /// Says how runtimes are monitored from now on. The first call counts.
    pub(crate) fn configure(&self, settings: &Settings) {
        let _ = self.registry.settings.set(settings.into());
    }

    /// Records what was measured since each runtime's last sample: for the export that ends telemetry.
    pub(crate) fn close_samples(&self) {
        self.registry.live().runtimes.iter().for_each(|runtime| runtime.lag.close_sample());
    }

    /// Ends all monitoring for good. What was measured and not recorded yet is recorded first.
    pub(crate) fn stop(&self) {
        self.registry.stop();
    }
}

impl Drop for Monitors {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(super) struct Registry {
    meter: Meter,
    settings: OnceLock<MonitorSettings>,
    /// There is nothing to start: a runtime is monitored, or none ever will be.
    settled: AtomicBool,
    /// Exists once the observable instruments do.
    lag_samples: OnceLock<Histogram<f64>>,
    live: Mutex<Live>,
    /// Wakes the sampler.
    changed: Condvar,
}

/// Never held while an instrument is made: the SDK runs the callbacks, which lock this, under a lock of its own.
#[derive(Default)]
pub(super) struct Live {
    pub(super) runtimes: Vec<Arc<Monitored>>,
    pub(super) stopped: bool,
    /// A sampler thread is running, and looks at `runtimes` before it ends.
    pub(super) sampling: bool,
}

impl Registry {
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has changed, or for this long.
    pub(super) fn wait<'a>(&self, live: MutexGuard<'a, Live>, timeout: std::time::Duration) -> MutexGuard<'a, Live> {
        self.changed.wait_timeout(live, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn settings(&self) -> MonitorSettings {
        self.settings.get().copied().unwrap_or_else(|| (&Settings::default()).into())
    }

    #[cold]
    fn start_current(self: &Arc<Self>) {
        if let Ok(handle) = Handle::try_current() {
            self.settled.store(true, Relaxed);
            self.start(&handle, None, self.settings());
        }
    }

    /// Monitors a runtime, unless it is monitored already or monitoring has ended.
    pub(super) fn start(
        self: &Arc<Self>,
        handle: &Handle,
        name: Option<&str>,
        settings: MonitorSettings,
    ) -> Option<Arc<Monitored>> {
        if self.live().stopped {
            return None;
        }
        let lag_samples = self.lag_samples();
        let (id, name) = (handle.id(), name.or(handle.name()).map(str::trim).filter(|name| !name.is_empty()));
        let monitored = {
            let mut live = self.live();
            if live.stopped || live.runtimes.iter().any(|runtime| runtime.id == id) {
                return None;
            }
            let name = unused_name(name, &live.runtimes);
            let monitored = Arc::new(Monitored::new(handle, name, settings.within_bounds(), lag_samples));
            live.runtimes.push(monitored.clone());
            sampler::ensure_running(self, &mut live);
            monitored
        };
        self.changed.notify_one();
        let enrolment = Enrolment { registry: Arc::downgrade(self), monitored: monitored.clone() };
        let task = handle.spawn(async move { enrolment.monitored.lag.run().await });
        let _ = monitored.task.set(task.abort_handle());
        Some(monitored)
    }

    /// Ends the monitoring of one runtime. Returns whether it had not ended before.
    pub(super) fn remove(&self, monitored: &Arc<Monitored>) -> bool {
        let removed = {
            let mut live = self.live();
            let position = live.runtimes.iter().position(|runtime| Arc::ptr_eq(runtime, monitored));
            position.map(|position| live.runtimes.swap_remove(position))
        };
        if removed.is_some() {
            self.changed.notify_one();
            end(monitored);
        }
        removed.is_some()
    }

    fn stop(&self) {
        let runtimes = {
            let mut live = self.live();
            live.stopped = true;
            std::mem::take(&mut live.runtimes)
        };
        self.settled.store(true, Relaxed);
        self.changed.notify_one();
        runtimes.iter().for_each(end);
    }

    fn lag_samples(self: &Arc<Self>) -> &Histogram<f64> {
        self.lag_samples.get_or_init(|| {
            process::observe(&self.meter, &Arc::downgrade(self));
            instruments::observe(&self.meter, &Arc::downgrade(self))
        })
    }
}

fn end(monitored: &Arc<Monitored>) {
    monitored.lag.close_sample();
    if let Some(task) = monitored.task.get() {
        task.abort();
    }
}

/// The lag task's hold on the list: dropped with the task, which is when its runtime ends at the latest.
struct Enrolment {
    registry: Weak<Registry>,
    monitored: Arc<Monitored>,
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        if registry.remove(&self.monitored) {
            // The runtime has ended and the process goes on: the next request may come from another one.
            registry.settled.store(registry.live().stopped, Relaxed);
        }
    }
}

/// The wanted name, or the first free one of `name-2`, `name-3` …: two live runtimes never share a series.
fn unused_name(wanted: Option<&str>, live: &[Arc<Monitored>]) -> Option<String> {
    let taken = |name: Option<&str>| live.iter().any(|runtime| runtime.name.as_deref() == name);
    if !taken(wanted) {
        return wanted.map(str::to_owned);
    }
    let stem = wanted.unwrap_or("runtime");
    (2..).map(|n: u32| format!("{stem}-{n}")).find(|name| !taken(Some(name)))
}
