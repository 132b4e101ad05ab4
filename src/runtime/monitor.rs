//! Monitoring of a runtime, asked for explicitly.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::monitored::Monitored;
use super::registry::Registry;
use crate::telemetry::Telemetry;

/// Monitors one tokio runtime for as long as it lives. What is measured: see [the module](crate::runtime).
///
/// Monitoring ends when this is dropped, when the telemetry handle is shut down or its last clone is dropped, and
/// when the runtime ends. It never keeps a runtime alive.
///
/// ```
/// use nemo_gym_telemetry::Telemetry;
/// use nemo_gym_telemetry::runtime::RuntimeMonitor;
///
/// let telemetry = Telemetry::builder().build();
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// let monitor = RuntimeMonitor::builder(&telemetry).with_runtime_name("verifier").start(runtime.handle());
/// # std::io::Result::Ok(())
/// ```
#[must_use = "monitoring ends when this is dropped; `detach` leaves it to the telemetry handle"]
pub struct RuntimeMonitor {
    registry: Weak<Registry>,
    /// `None`: someone else monitors the runtime, or nobody can.
    monitored: Option<Arc<Monitored>>,
}

impl RuntimeMonitor {
    /// Choices for a monitor whose metrics go to this telemetry handle.
    pub fn builder(telemetry: &Telemetry) -> RuntimeMonitorBuilder {
        RuntimeMonitorBuilder {
            registry: telemetry.runtime_monitors().registry.clone(),
            runtime_name: None,
            sample_interval: None,
            stuck_threshold: None,
        }
    }

    /// Whether this monitor is at work. False from the beginning if the runtime was monitored already or metrics
    /// are off, and after the end of the runtime or of the telemetry handle.
    pub fn is_running(&self) -> bool {
        self.registry.upgrade().zip(self.monitored.as_ref()).is_some_and(|(registry, monitored)| {
            registry.live().runtimes.iter().any(|runtime| Arc::ptr_eq(runtime, monitored))
        })
    }

    /// The value of `nemo.gym.runtime.name`, if the runtime's points carry one.
    pub fn runtime_name(&self) -> Option<&str> {
        self.monitored.as_ref()?.name.as_deref()
    }

    /// Lets monitoring go on until the runtime or the telemetry handle ends.
    pub fn detach(mut self) {
        self.monitored = None;
    }
}

impl Drop for RuntimeMonitor {
    fn drop(&mut self) {
        if let Some((registry, monitored)) = self.registry.upgrade().zip(self.monitored.take()) {
            registry.remove(&monitored);
        }
    }
}

impl fmt::Debug for RuntimeMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeMonitor")
            .field("runtime_name", &self.runtime_name())
            .field("is_running", &self.is_running())
            .finish_non_exhaustive()
    }
}

/// Choices for a [`RuntimeMonitor`]. Made by [`RuntimeMonitor::builder`].
#[must_use]
pub struct RuntimeMonitorBuilder {
    registry: Arc<Registry>,
    runtime_name: Option<String>,
    sample_interval: Option<Duration>,
    stuck_threshold: Option<Duration>,
}

impl RuntimeMonitorBuilder {
    /// The runtime's name: attribute `nemo.gym.runtime.name` of all its points. Default: the name that was given to
    /// the runtime's own builder, or none. When a live runtime has the name already, a number is appended.
    pub fn with_runtime_name(mut self, name: impl Into<String>) -> Self {
        self.runtime_name = Some(name.into());
        self
    }

    /// Time between two samples of the lag, 1 ms to a day. Default: the telemetry handle's
    /// `event_loop_sample_interval_seconds`, 1 s.
    pub fn with_sample_interval(mut self, interval: Duration) -> Self {
        self.sample_interval = Some(interval);
        self
    }

    /// How long a worker must make no progress to count as stuck, 1 ms to a day. Default: 100 ms. Keep it well above 61
    /// times the longest poll that is normal for your tasks.
    pub fn with_stuck_threshold(mut self, threshold: Duration) -> Self {
        self.stuck_threshold = Some(threshold);
        self
    }

    /// Starts monitoring. Does nothing when the runtime is monitored already, has ended, or metrics are off.
    ///
    /// May be called on any thread, inside the runtime or outside.
    pub fn start(self, runtime: &Handle) -> RuntimeMonitor {
        let mut settings = self.registry.settings();
        settings.sample_interval = self.sample_interval.unwrap_or(settings.sample_interval);
        settings.stuck_threshold = self.stuck_threshold.unwrap_or(settings.stuck_threshold);
        RuntimeMonitor {
            monitored: self.registry.start(runtime, self.runtime_name.as_deref(), settings),
            registry: Arc::downgrade(&self.registry),
        }
    }
}

impl fmt::Debug for RuntimeMonitorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeMonitorBuilder")
            .field("runtime_name", &self.runtime_name)
            .field("sample_interval", &self.sample_interval)
            .field("stuck_threshold", &self.stuck_threshold)
            .finish_non_exhaustive()
    }
}
