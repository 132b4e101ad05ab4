//! `gym.event_loop.lag_*`: what a stall looks like, and what an idle runtime does (RTM-01).

mod runtime_support;

use std::thread;
use std::time::{Duration, Instant};

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Rig, current_thread, multi_thread};
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_stall_of_a_current_thread_runtime_is_exactly_one_sample() {
    let rig = Rig::new();
    let runtime = current_thread();
    let monitor = RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(100 * MS).start(runtime.handle());
    let begun = Instant::now();
    runtime.block_on(async {
        sleep(250 * MS).await;
        thread::sleep(500 * MS);
        sleep(450 * MS).await;
    });
    let samples_at_most = begun.elapsed().as_millis() as u64 / 100 + 1;
    let collected = rig.collect();
    let lag = collected.lag();
    assert_eq!(lag.above(250.0), 1, "{lag:?}");
    assert!((400.0..=800.0).contains(&lag.max), "{lag:?}");
    // No burst makes up for the samples that were missed.
    assert!((3..=samples_at_most).contains(&lag.count), "{} samples, at most {samples_at_most}", lag.count);
    assert_eq!(collected.value("gym.event_loop.lag_max_ms"), lag.max);
    drop(monitor);
}

#[test]
fn a_stall_shorter_than_the_default_interval_is_seen_at_nearly_its_full_length() {
    let rig = Rig::new();
    let runtime = current_thread();
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    runtime.block_on(async {
        sleep(120 * MS).await;
        thread::sleep(500 * MS);
        sleep(1200 * MS).await;
    });
    let lag = rig.collect().lag();
    assert_eq!(lag.above(250.0), 1, "{lag:?}");
    assert!((390.0..=800.0).contains(&lag.max), "{lag:?}");
    assert!(lag.count <= 3, "one sample per second: {lag:?}");
}

#[test]
fn a_runtime_that_blocks_before_it_first_sleeps_is_late_too() {
    let rig = Rig::new();
    let runtime = current_thread();
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(100 * MS).start(runtime.handle());
    runtime.block_on(async {
        thread::sleep(500 * MS);
        sleep(250 * MS).await;
    });
    let lag = rig.collect().lag();
    assert_eq!(lag.above(250.0), 1, "{lag:?}");
    assert!((490.0..=800.0).contains(&lag.max), "{lag:?}");
}

#[test]
fn idle_lag_is_the_timers_granularity_and_never_negative() {
    for runtime in [current_thread(), multi_thread(2)] {
        // The machine may be busy: small is asked of one quiet half second, the rest of all.
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let rig = Rig::new();
            let _monitor =
                RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(10 * MS).start(runtime.handle());
            runtime.block_on(async { sleep(500 * MS).await });
            let collected = rig.collect();
            let lag = collected.lag();
            assert!(lag.count > 0 && lag.min > 0.0 && lag.sum > 0.0, "{lag:?}");
            assert!(collected.value("gym.event_loop.lag_last_ms") > 0.0);
            assert!(collected.value("gym.event_loop.lag_max_ms") >= collected.value("gym.event_loop.lag_last_ms"));
            if lag.count >= 10 && lag.above(5.0) * 2 < lag.count {
                break;
            }
            assert!(Instant::now() < deadline, "never quiet: {lag:?}");
        }
    }
}

#[test]
fn the_maximum_is_that_since_the_previous_export() {
    let rig = Rig::new();
    let runtime = current_thread();
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(20 * MS).start(runtime.handle());
    runtime.block_on(async {
        sleep(50 * MS).await;
        thread::sleep(400 * MS);
        sleep(100 * MS).await;
    });
    assert!(rig.collect().value("gym.event_loop.lag_max_ms") >= 350.0);
    runtime.block_on(async { sleep(100 * MS).await });
    assert!(rig.collect().value("gym.event_loop.lag_max_ms") < 300.0);
}

#[test]
fn lag_grows_in_the_gauges_while_the_stall_lasts() {
    let rig = Rig::new();
    let runtime = multi_thread(1);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    rig.collect_until("a first wake", |c| c.value_of("gym.event_loop.lag_last_ms", None).is_some());
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    runtime.spawn(async move { blocked.recv_timeout(Duration::from_secs(20)) });
    let early = rig.collect_until("200 ms", |c| c.value("gym.event_loop.lag_last_ms") > 200.0);
    thread::sleep(100 * MS);
    let late = rig.collect();
    for name in ["gym.event_loop.lag_last_ms", "gym.event_loop.lag_max_ms"] {
        assert!(late.value(name) >= early.value(name) + 90.0, "{name}");
    }
    release.send(()).expect("the worker waits");
    rig.collect_until("recovery", |c| c.value("gym.event_loop.lag_last_ms") < 50.0);
}

#[test]
fn what_is_measured_is_recorded_when_monitoring_ends_inside_an_interval() {
    let rig = Rig::new();
    let runtime = current_thread();
    let monitor =
        RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(Duration::from_secs(3600)).start(runtime.handle());
    runtime.block_on(async {
        sleep(20 * MS).await;
        thread::sleep(300 * MS);
        sleep(20 * MS).await;
    });
    assert_eq!(rig.collect().lag().count, 0);
    drop(monitor);
    let lag = rig.collect().lag();
    assert_eq!(lag.count, 1);
    assert!(lag.max >= 190.0, "{lag:?}");
}

#[test]
fn a_paused_test_clock_is_left_alone() {
    let rig = Rig::new();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(10 * MS).start(runtime.handle());
    let clock_moved = runtime.block_on(async {
        let begun = tokio::time::Instant::now();
        let (done, wait) = tokio::sync::oneshot::channel();
        let outside = thread::spawn(move || {
            thread::sleep(100 * MS);
            done.send(())
        });
        wait.await.expect("the other thread answers");
        outside.join().expect("no panic").expect("received");
        begun.elapsed()
    });
    // A sleeping task would have moved it by one step after another, for as long as the runtime waited.
    assert!(clock_moved <= 20 * MS, "{clock_moved:?}");
    let collected = rig.collect();
    assert_eq!(collected.value_of("gym.event_loop.lag_last_ms", None), None);
    assert_eq!(collected.value("gym.event_loop.workers"), 1.0);
}

#[test]
fn a_runtime_without_timers_is_monitored_without_its_lag() {
    let rig = Rig::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    runtime.block_on(async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
    let collected = rig.collect();
    assert!(monitor.is_running());
    assert_eq!(collected.value("gym.event_loop.tasks"), 1.0);
    for name in ["gym.event_loop.lag_last_ms", "gym.event_loop.lag_max_ms"] {
        assert_eq!(collected.value_of(name, None), None);
    }
    assert_eq!(collected.lag().count, 0);
}

#[test]
fn settings_out_of_bounds_are_bounded() {
    for extreme in [Duration::ZERO, Duration::MAX] {
        let rig = Rig::new();
        let runtime = current_thread();
        let monitor = RuntimeMonitor::builder(&rig.telemetry)
            .with_sample_interval(extreme)
            .with_stuck_threshold(extreme)
            .start(runtime.handle());
        runtime.block_on(async { sleep(50 * MS).await });
        assert!(rig.collect().value("gym.event_loop.lag_last_ms") > 0.0);
        assert!(monitor.is_running());
    }
}
