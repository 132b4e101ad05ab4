//! Stuck workers: found while they are stuck, however many of them, and not where there is only much to do.

mod runtime_support;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Collected, Rig, current_thread, multi_thread, spin};
use tokio::runtime::Runtime;

const MS: Duration = Duration::from_millis(1);
const WORKERS: &str = "gym.event_loop.stuck_workers";
const AGE: &str = "gym.event_loop.stuck_age_ms";
const STALLS: &str = "gym.event_loop.stuck_total";

/// Blocks a worker until it is released, or for 20 s.
fn block_one(runtime: &Runtime) -> (Sender<()>, tokio::task::JoinHandle<()>) {
    let (release, blocked): (_, Receiver<()>) = channel();
    let (running, runs) = channel();
    let task = runtime.spawn(async move {
        running.send(()).expect("the test waits");
        let _ = blocked.recv_timeout(Duration::from_secs(20));
    });
    runs.recv_timeout(Duration::from_secs(20)).expect("a free worker");
    (release, task)
}

fn quiet(c: &Collected) -> bool {
    c.value(WORKERS) == 0.0 && c.value_of("gym.event_loop.lag_last_ms", None).is_some_and(|lag| lag < 50.0)
}

#[test]
fn one_of_four_workers_is_reported_while_it_is_blocked_and_the_lag_stays_small() {
    let rig = Rig::new();
    let runtime = multi_thread(4);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    rig.collect_until("quiet", quiet);
    let begun = Instant::now();
    let (release, _task) = block_one(&runtime);

    let first = rig.collect_until("a stuck worker", |c| c.value(WORKERS) > 0.0);
    assert_eq!(first.value(WORKERS), 1.0);
    assert!(first.value(AGE) >= 100.0, "not before the threshold: {}", first.value(AGE));
    let mut age = first.value(AGE);
    for _ in 0..3 {
        std::thread::sleep(50 * MS);
        let next = rig.collect();
        assert_eq!(next.value(WORKERS), 1.0);
        assert!(next.value(AGE) > age, "{} after {age}", next.value(AGE));
        age = next.value(AGE);
        // What plain numbers say of a blocked worker: nothing.
        assert!(next.value("gym.event_loop.busy_ratio") < 0.25);
        let lag = next.value("gym.event_loop.lag_last_ms");
        assert!(lag < age / 2.0, "new work still runs: lag {lag}, age {age}");
    }
    assert!(age <= begun.elapsed().as_secs_f64() * 1e3, "never more than has passed");
    assert_eq!(rig.collect().value(STALLS), 1.0);

    release.send(()).expect("the worker waits");
    let after = rig.collect_until("the end of it", |c| c.value(WORKERS) == 0.0);
    assert_eq!((after.value(AGE), after.value(STALLS)), (0.0, 1.0));
}

#[test]
fn all_workers_are_reported_while_all_are_blocked() {
    for runtime in [multi_thread(4), multi_thread(1)] {
        let rig = Rig::new();
        let workers = runtime.metrics().num_workers();
        let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
        rig.collect_until("quiet", quiet);
        let blocked: Vec<_> = (0..workers).map(|_| block_one(&runtime)).collect();
        for _ in 0..5 {
            runtime.spawn(async {});
        }
        let seen = rig.collect_until("all stuck", |c| c.value(WORKERS) == workers as f64);
        assert!(seen.value("gym.event_loop.global_queue_depth") >= 5.0);
        let later = rig.collect_until("the lag", |c| c.value("gym.event_loop.lag_last_ms") > 200.0);
        assert!(later.value(AGE) > seen.value(AGE));
        blocked.iter().for_each(|(release, _)| release.send(()).expect("the worker waits"));
        rig.collect_until("the end of it", quiet);
    }
}

#[test]
fn a_blocked_current_thread_runtime_is_one_stuck_worker() {
    let rig = Rig::new();
    let runtime = current_thread();
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    runtime.block_on(async {
        tokio::time::sleep(50 * MS).await;
        std::thread::sleep(400 * MS);
        let blocked = rig.collect();
        assert_eq!(blocked.value(WORKERS), 1.0);
        assert!((200.0..=800.0).contains(&blocked.value(AGE)), "{}", blocked.value(AGE));
    });
}

#[test]
fn a_stall_that_has_ended_is_in_the_next_export_and_in_no_later_one() {
    let rig = Rig::new();
    let runtime = multi_thread(2);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    rig.collect_until("quiet", quiet);
    runtime.block_on(async {
        tokio::spawn(async { std::thread::sleep(400 * MS) }).await.expect("no panic");
        tokio::time::sleep(100 * MS).await;
    });
    let next = rig.collect();
    assert_eq!(next.value(WORKERS), 1.0);
    assert!((200.0..=800.0).contains(&next.value(AGE)), "{}", next.value(AGE));
    assert_eq!(next.value(STALLS), 1.0);
    let later = rig.collect();
    assert_eq!((later.value(WORKERS), later.value(AGE), later.value(STALLS)), (0.0, 0.0, 1.0));
}

/// Keeps every worker of the runtime saturated with polls of this length.
fn saturate(runtime: &Runtime, poll: Duration, duration: Duration) {
    let tasks: Vec<_> = (0..runtime.metrics().num_workers() * 4)
        .map(|_| {
            runtime.spawn(async move {
                let begun = Instant::now();
                while begun.elapsed() < duration {
                    spin(poll);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

#[test]
fn a_worker_that_is_busy_with_short_polls_is_not_stuck() {
    let rig = Rig::new();
    let runtime = multi_thread(1);
    // Far from the 61 polls of 20 µs between two publications, even on a machine that has other things to do.
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).with_stuck_threshold(400 * MS).start(runtime.handle());
    rig.collect();
    saturate(&runtime, Duration::from_micros(20), Duration::from_secs(1));
    let collected = rig.collect();
    assert_eq!(collected.value(STALLS), 0.0);
    assert!(collected.value("gym.event_loop.busy_ratio") > 0.5, "{}", collected.value("gym.event_loop.busy_ratio"));
}

#[test]
fn a_worker_that_is_busy_with_long_polls_looks_stuck() {
    let rig = Rig::new();
    let runtime = multi_thread(1);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    rig.collect_until("quiet", quiet);
    // 61 polls of 5 ms lie between two publications: 305 ms.
    saturate(&runtime, 5 * MS, Duration::from_secs(1));
    let collected = rig.collect();
    assert!(collected.value(STALLS) >= 1.0);
    assert!(collected.value(AGE) >= 150.0, "{}", collected.value(AGE));
}

#[test]
fn blocking_code_where_it_belongs_is_not_a_stuck_worker() {
    let rig = Rig::new();
    let runtime = multi_thread(2);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    rig.collect_until("quiet", quiet);
    let before = rig.collect().value(STALLS);
    runtime.block_on(async {
        let pool = tokio::task::spawn_blocking(|| std::thread::sleep(300 * MS));
        let in_place = tokio::spawn(async { tokio::task::block_in_place(|| std::thread::sleep(300 * MS)) });
        pool.await.expect("no panic");
        in_place.await.expect("no panic");
    });
    assert_eq!(rig.collect().value(STALLS), before);
}
