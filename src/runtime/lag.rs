//! Lag: how late a task that sleeps inside the runtime is woken.
//!
//! The task sleeps in steps of at most 100 ms, whatever the sample interval, so that a stall is seen at nearly its
//! full length; the worst step of an interval is the interval's one sample. Its timer is driven by the runtime
//! itself: it cannot wake a runtime that has gone deaf, as a probe from outside would.

use std::future::pending;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::diagnostics;
use crate::metrics::{LazyHistogram, ms};

/// Longest time between two looks at the clock.
const LONGEST_STEP: Duration = Duration::from_millis(100);

/// One runtime's lag. All times are whole nanoseconds, at least 1; 0 stands for "none".
pub(super) struct Lag {
    /// What `due` counts from.
    origin: Instant,
    interval: Duration,
    step: Duration,
    samples: LazyHistogram,
    /// When the task should run next.
    due: AtomicU64,
    last: AtomicU64,
    worst_since_export: AtomicU64,
    worst_of_sample: AtomicU64,
}

impl Lag {
    /// The task is due at once: a runtime that is blocked before it runs for the first time is late as well.
    pub(super) fn new(interval: Duration, samples: LazyHistogram) -> Self {
        let steps = interval.as_nanos().div_ceil(LONGEST_STEP.as_nanos()).max(1);
        Self {
            origin: Instant::now(),
            interval,
            step: interval / u32::try_from(steps).unwrap_or(u32::MAX),
            samples,
            due: AtomicU64::new(1),
            last: AtomicU64::new(0),
            worst_since_export: AtomicU64::new(0),
            worst_of_sample: AtomicU64::new(0),
        }
    }

    /// Sleeps and measures until it is dropped. Runs on the runtime that it measures.
    pub(super) async fn run(&self) {
        let first_run = self.origin.elapsed();
        if !timers_enabled() {
            diagnostics::warn_once("a monitored tokio runtime has no timers (enable_time): its lag is not measured");
            return self.rest().await;
        }
        self.woke(first_run);
        let mut sample_end = Instant::now() + self.interval;
        loop {
            let due = Instant::now() + self.step;
            self.due.store(nanos(due.duration_since(self.origin)), Relaxed);
            tokio::time::sleep(self.step).await;
            let now = Instant::now();
            let Some(late) = now.checked_duration_since(due) else {
                // Timers never fire early, except under tokio's paused test clock: there is nothing to measure,
                // and a task that sleeps would drive that clock on.
                return self.rest().await;
            };
            self.woke(late);
            if now >= sample_end {
                self.close_sample();
                sample_end = now + self.interval;
            }
        }
    }

    /// Measures and reports no more, but lives on: the end of this task is how the end of the runtime is noticed.
    async fn rest(&self) {
        for value in [&self.due, &self.last, &self.worst_since_export, &self.worst_of_sample] {
            value.store(0, Relaxed);
        }
        pending().await
    }

    fn woke(&self, late: Duration) {
        let late = nanos(late);
        self.last.store(late, Relaxed);
        self.worst_since_export.fetch_max(late, Relaxed);
        self.worst_of_sample.fetch_max(late, Relaxed);
    }

    /// Records what the open sample has so far, if anything.
    pub(super) fn close_sample(&self) {
        if let Some(worst) = some(self.worst_of_sample.swap(0, Relaxed)) {
            self.samples.record(ms(worst));
        }
    }

    /// The last lateness, or the present one if that is more.
    pub(super) fn last(&self) -> Option<Duration> {
        some(self.last.load(Relaxed)).max(self.overdue())
    }

    /// The worst lateness since this was called last, the present one included. Without a wake in between,
    /// the last lateness.
    pub(super) fn take_worst(&self) -> Option<Duration> {
        some(self.worst_since_export.swap(0, Relaxed)).or_else(|| some(self.last.load(Relaxed))).max(self.overdue())
    }

    /// By how much the task has missed its time, while it has.
    fn overdue(&self) -> Option<Duration> {
        let due = some(self.due.load(Relaxed))?;
        self.origin.elapsed().checked_sub(due).filter(|late| !late.is_zero())
    }
}

/// Whether the runtime that this is called on can sleep. Tokio offers no question for it, only a panic.
fn timers_enabled() -> bool {
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}

fn some(nanos: u64) -> Option<Duration> {
    (nanos != 0).then(|| Duration::from_nanos(nanos))
}
