//! One monitored runtime: what is read from it and what is kept between two reads.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;
use tokio::runtime::{Handle, Id, RuntimeMetrics};
use tokio::task::AbortHandle;
use tokio_metrics::RuntimeIntervals;

use super::lag::Lag;
use super::stuck::{Published, Stuck, Workers};
use crate::config::settings::Settings;
use crate::metrics::LazyHistogram;

/// How a runtime is monitored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonitorSettings {
    pub(super) sample_interval: Duration,
    pub(super) stuck_threshold: Duration,
}

impl MonitorSettings {
    const SHORTEST: Duration = Duration::from_millis(1);
    /// Keeps sums of times and intervals far from overflow.
    const LONGEST: Duration = Duration::from_secs(86_400);

    pub(super) fn within_bounds(self) -> Self {
        Self {
            sample_interval: self.sample_interval.clamp(Self::SHORTEST, Self::LONGEST),
            stuck_threshold: self.stuck_threshold.clamp(Self::SHORTEST, Self::LONGEST),
        }
    }
}

impl From<&Settings> for MonitorSettings {
    fn from(settings: &Settings) -> Self {
        Self {
            sample_interval: settings.event_loop_sample_interval,
            stuck_threshold: settings.event_loop_stuck_threshold,
        }
    }
}

/// What is known of a live runtime. It holds handles into the runtime, which do not keep it running but do keep some
/// of its memory and its epoll descriptor: it is dropped as soon as the runtime ends.
pub(super) struct Monitored {
    pub(super) id: Id,
    pub(super) name: Option<String>,
    /// Attributes of all its points: its name, if it has one.
    pub(super) attributes: Vec<KeyValue>,
    pub(super) metrics: RuntimeMetrics,
    pub(super) lag: Lag,
    pub(super) settings: MonitorSettings,
    pub(super) task: OnceLock<AbortHandle>,
    workers: Mutex<Workers>,
    intervals: Mutex<RuntimeIntervals>,
}

impl Monitored {
    pub(super) fn new(
        handle: &Handle,
        name: Option<String>,
        settings: MonitorSettings,
        lag_samples: &Histogram<f64>,
    ) -> Self {
        let metrics = handle.metrics();
        let attributes: Vec<_> = name.iter().map(|name| KeyValue::new("nemo.gym.runtime.name", name.clone())).collect();
        let workers = (0..metrics.num_workers()).map(|worker| published(&metrics, worker));
        Self {
            id: handle.id(),
            lag: Lag::new(settings.sample_interval, LazyHistogram::new(lag_samples, attributes.clone())),
            workers: Mutex::new(Workers::new(settings.stuck_threshold, Instant::now(), workers)),
            intervals: Mutex::new(tokio_metrics::RuntimeMonitor::new(handle).intervals()),
            name,
            attributes,
            metrics,
            settings,
            task: OnceLock::new(),
        }
    }

    /// Looks at the workers. Returns when to look again, and the stuck ones if one has become stuck since the last
    /// call.
    pub(super) fn look(&self) -> (Duration, Option<Stuck>) {
        self.with_workers(|workers| (workers.next_sample(), workers.take_news()))
    }

    /// Most workers stuck at one time since the last call.
    pub(super) fn take_stuck_workers(&self) -> usize {
        self.with_workers(Workers::take_worst_count)
    }

    /// Longest time that a stuck worker has made no progress since the last call.
    pub(super) fn take_stuck_age(&self) -> Duration {
        self.with_workers(Workers::take_worst_age)
    }

    /// How often a worker has become stuck.
    pub(super) fn stalls(&self) -> u64 {
        self.with_workers(|workers| workers.stalls())
    }

    /// Every read looks at the workers first: an export must not depend on how fresh the sampler's look is.
    fn with_workers<T>(&self, read: impl FnOnce(&mut Workers) -> T) -> T {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.sample(Instant::now(), |worker| published(&self.metrics, worker));
        read(&mut workers)
    }

    /// Share of the workers' time spent running tasks since the last call. A block that began in an earlier interval
    /// is published in full when it ends: such a share is cut to 1.
    pub(super) fn take_busy_ratio(&self) -> Option<f64> {
        let interval = self.intervals.lock().unwrap_or_else(PoisonError::into_inner).next()?;
        let available = interval.elapsed.as_secs_f64() * interval.workers_count as f64;
        (available > 0.0).then(|| (interval.total_busy_duration.as_secs_f64() / available).min(1.0))
    }

    /// A per-worker number summed over the workers.
    pub(super) fn sum<T: std::iter::Sum>(&self, of: impl Fn(&RuntimeMetrics, usize) -> T) -> T {
        (0..self.metrics.num_workers()).map(|worker| of(&self.metrics, worker)).sum()
    }
}

fn published(metrics: &RuntimeMetrics, worker: usize) -> Published {
    Published {
        park_unpark_count: metrics.worker_park_unpark_count(worker),
        busy: metrics.worker_total_busy_duration(worker),
    }
}
