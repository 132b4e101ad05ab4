//! Stuck workers, from what tokio publishes on stable Rust.
//!
//! A worker publishes its numbers when it parks and every 61 polls. One that sits in a single poll publishes
//! nothing, so it is found by the absence: it is not parked, and neither its park count nor its busy time has moved.

use std::time::{Duration, Instant};

/// What a worker last published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    /// Odd while the worker is parked.
    pub(super) park_unpark_count: u64,
    pub(super) busy: Duration,
}

impl Published {
    fn is_parked(self) -> bool {
        self.park_unpark_count % 2 == 1
    }
}

/// The stuck workers of a runtime at one moment, or the worst of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stuck {
    pub(super) workers: usize,
    /// Longest time without progress; zero when no worker is stuck.
    pub(super) age: Duration,
}

#[derive(Debug)]
struct Worker {
    published: Published,
    without_progress: Duration,
}

/// The workers of one runtime, as seen by whoever samples them.
#[derive(Debug)]
pub(super) struct Workers {
    threshold: Duration,
    /// Longest time between two samples that counts in full. A process that was suspended is not stuck.
    longest_gap: Duration,
    sampled_at: Instant,
    workers: Vec<Worker>,
    now: Stuck,
    stalls: u64,
    stalls_told: u64,
    worst_count: usize,
    worst_age: Duration,
}

impl Workers {
    pub(super) fn new(
        threshold: Duration,
        period: Duration,
        now: Instant,
        published: impl Iterator<Item = Published>,
    ) -> Self {
        Self {
            threshold,
            longest_gap: period * 2,
            sampled_at: now,
            workers: published.map(|published| Worker { published, without_progress: Duration::ZERO }).collect(),
            now: Stuck::default(),
            stalls: 0,
            stalls_told: 0,
            worst_count: 0,
            worst_age: Duration::ZERO,
        }
    }

    /// Looks at every worker.
    pub(super) fn sample(&mut self, now: Instant, published: impl Fn(usize) -> Published) {
        let elapsed = now.saturating_duration_since(self.sampled_at).min(self.longest_gap);
        self.sampled_at = now;
        let mut stuck = Stuck::default();
        for (index, worker) in self.workers.iter_mut().enumerate() {
            let published = published(index);
            if published.is_parked() || published != worker.published {
                *worker = Worker { published, without_progress: Duration::ZERO };
                continue;
            }
            let was_stuck = worker.without_progress >= self.threshold;
            worker.without_progress += elapsed;
            if worker.without_progress >= self.threshold {
                stuck.workers += 1;
                stuck.age = stuck.age.max(worker.without_progress);
                self.stalls += u64::from(!was_stuck);
            }
        }
        self.worst_count = self.worst_count.max(stuck.workers);
        self.worst_age = self.worst_age.max(stuck.age);
        self.now = stuck;
    }

    /// The stuck workers, if one has become stuck since this was called last and still is.
    pub(super) fn take_news(&mut self) -> Option<Stuck> {
        let news = self.stalls > std::mem::replace(&mut self.stalls_told, self.stalls);
        (news && self.now.workers > 0).then_some(self.now)
    }

    /// Most workers stuck at one time since this was called last.
    pub(super) fn take_worst_count(&mut self) -> usize {
        std::mem::take(&mut self.worst_count)
    }

    /// Longest time without progress of a stuck worker since this was called last.
    pub(super) fn take_worst_age(&mut self) -> Duration {
        std::mem::take(&mut self.worst_age)
    }

    /// How often a worker has become stuck.
    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }
}
