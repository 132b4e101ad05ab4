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
    /// Time between two samples while a worker runs; twice as long while all are parked.
    period: Duration,
    all_parked: bool,
    sampled_at: Instant,
    workers: Vec<Worker>,
    now: Stuck,
    stalls: u64,
    stalls_told: u64,
    worst_count: usize,
    worst_age: Duration,
}

impl Workers {
    pub(super) fn new(threshold: Duration, now: Instant, published: impl Iterator<Item = Published>) -> Self {
        Self {
            threshold,
            period: (threshold / 4).clamp(Duration::from_millis(1), Duration::from_millis(250)),
            all_parked: false,
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
        // No more than the longest time planned: a process that was suspended meanwhile is not stuck.
        let elapsed = now.saturating_duration_since(self.sampled_at).min(self.period * 2);
        self.sampled_at = now;
        self.all_parked = true;
        let mut stuck = Stuck::default();
        for (index, worker) in self.workers.iter_mut().enumerate() {
            let published = published(index);
            self.all_parked &= published.is_parked();
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

    /// When to look again. An idle runtime is left alone for longer: waking up is all that a look costs.
    pub(super) fn next_sample(&self) -> Duration {
        if self.all_parked { self.period * 2 } else { self.period }
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Two workers with a threshold of 100 ms: one to be told about, and one that is parked.
    struct Clock {
        now: Instant,
        workers: Workers,
    }

    const PARKED: Published = Published { park_unpark_count: 7, busy: Duration::ZERO };

    fn running(park_unpark_count: u64, busy: u64) -> Published {
        Published { park_unpark_count, busy: Duration::from_micros(busy) }
    }

    impl Clock {
        fn new(first: Published) -> Self {
            let now = Instant::now();
            Self { now, workers: Workers::new(100 * MS, now, [first, PARKED].into_iter()) }
        }
        fn sample(&mut self, after: Duration, first: Published) -> Stuck {
            self.now += after;
            self.workers.sample(self.now, |worker| [first, PARKED][worker]);
            self.workers.now
        }
    }

    #[test]
    fn a_worker_is_stuck_from_the_threshold_on_until_it_publishes() {
        let mut clock = Clock::new(running(4, 10));
        for _ in 0..3 {
            assert_eq!(clock.sample(25 * MS, running(4, 10)), Stuck::default());
        }
        assert_eq!(clock.workers.take_news(), None);
        assert_eq!(clock.sample(25 * MS, running(4, 10)), Stuck { workers: 1, age: 100 * MS });
        assert_eq!(clock.workers.take_news(), Some(Stuck { workers: 1, age: 100 * MS }));
        assert_eq!(clock.sample(25 * MS, running(4, 10)), Stuck { workers: 1, age: 125 * MS });
        assert_eq!(clock.workers.take_news(), None, "told already");
        assert_eq!(clock.workers.next_sample(), 25 * MS);

        assert_eq!(clock.sample(25 * MS, running(4, 11)), Stuck::default());
        assert_eq!((clock.workers.take_worst_count(), clock.workers.take_worst_age()), (1, 125 * MS));
        assert_eq!((clock.workers.take_worst_count(), clock.workers.take_worst_age()), (0, Duration::ZERO));
        assert_eq!(clock.workers.stalls(), 1);
    }

    #[test]
    fn any_sign_of_life_counts() {
        for life in [running(6, 10), running(4, 11), running(5, 10)] {
            let mut clock = Clock::new(running(4, 10));
            for _ in 0..3 {
                clock.sample(25 * MS, running(4, 10));
            }
            clock.sample(25 * MS, life);
            assert_eq!(clock.sample(25 * MS, running(4, 10)).workers, 0, "{life:?}");
        }
    }

    #[test]
    fn a_parked_worker_is_never_stuck_and_looked_at_less_often() {
        let mut clock = Clock::new(PARKED);
        for _ in 0..100 {
            assert_eq!(clock.sample(50 * MS, PARKED), Stuck::default());
        }
        assert_eq!(clock.workers.next_sample(), 50 * MS);
    }

    #[test]
    fn a_suspended_process_is_not_stuck() {
        let mut clock = Clock::new(running(4, 10));
        clock.sample(25 * MS, running(4, 10));
        assert_eq!(clock.sample(Duration::from_secs(3600), running(4, 10)), Stuck::default());
        assert_eq!(clock.sample(25 * MS, running(4, 10)).age, 100 * MS);
    }

    #[test]
    fn a_stall_that_ended_before_it_was_told_is_counted_and_not_told() {
        let mut clock = Clock::new(running(4, 10));
        for _ in 0..4 {
            clock.sample(25 * MS, running(4, 10));
        }
        clock.sample(25 * MS, running(6, 10));
        assert_eq!((clock.workers.take_news(), clock.workers.stalls()), (None, 1));
    }
}
