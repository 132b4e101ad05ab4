//! Which runtimes are monitored, and for how long (RTM-02).

mod runtime_support;

use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use http::Request;
use nemo_gym_telemetry::Telemetry;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::metrics::catalog::{self, Kind};
use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Collected, Rig, current_thread, multi_thread};
use tower::ServiceExt;

const MS: Duration = Duration::from_millis(1);
const TASKS: &str = "gym.event_loop.tasks";
const WORKERS: &str = "gym.event_loop.workers";

/// Values of `gym.event_loop.*` of the named runtime, or of the unnamed one.
fn series_of(collected: &Collected, runtime: Option<&str>) -> Vec<String> {
    let of_runtime = |value: &runtime_support::Value| {
        let name = value.attributes.iter().find(|a| a.key.as_str() == "nemo.gym.runtime.name");
        name.map(|a| a.value.to_string()).as_deref() == runtime
    };
    let values = collected.values().into_iter().filter(|v| v.name.starts_with("gym.event_loop.") && of_runtime(v));
    values.map(|value| value.name).collect()
}

#[test]
fn a_second_start_does_nothing() {
    let rig = Rig::new();
    let runtime = multi_thread(2);
    let first = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    let second = RuntimeMonitor::builder(&rig.telemetry).with_runtime_name("again").start(runtime.handle());
    assert!(first.is_running() && !second.is_running());
    assert_eq!(rig.collect().value(TASKS), 1.0);
    drop(second);
    assert!(first.is_running());
    assert_eq!(rig.collect().value_of(TASKS, Some("again")), None);

    drop(first);
    assert_eq!(series_of(&rig.collect(), None), [""; 0]);
    let third = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    assert!(third.is_running());
    rig.collect_until("one task", |c| c.value_of(TASKS, None) == Some(1.0));
}

#[test]
fn several_runtimes_have_a_series_each_and_one_that_ends_leaves_none() {
    let rig = Rig::new();
    let (main, pool, local) = (multi_thread(2), multi_thread(3), current_thread());
    let builder = || RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(10 * MS);
    let _main = builder().start(main.handle());
    let pool_monitor = builder().with_runtime_name("pool").start(pool.handle());
    let _local = builder().with_runtime_name("pool").start(local.handle());
    let other = current_thread();
    let _other = builder().with_runtime_name("  ").start(other.handle());
    local.block_on(async { tokio::time::sleep(50 * MS).await });

    let collected = rig.collect_until("lag of the first two", |c| {
        c.lag_of(None).is_some() && c.lag_of(Some("pool")).is_some() && c.lag_of(Some("pool-2")).is_some()
    });
    assert_eq!(collected.value_of(WORKERS, None), Some(2.0));
    assert_eq!(collected.value_of(WORKERS, Some("pool")), Some(3.0));
    assert_eq!(collected.value_of(WORKERS, Some("pool-2")), Some(1.0));
    assert_eq!(collected.value_of(WORKERS, Some("runtime-2")), Some(1.0));

    drop(pool);
    assert!(!pool_monitor.is_running());
    let collected = rig.collect();
    assert_eq!(series_of(&collected, Some("pool")), [""; 0]);
    assert_eq!(collected.value_of(WORKERS, None), Some(2.0));
    // The SDK cannot take back a series of a synchronous instrument: the distribution stays as it was.
    let count = collected.lag_of(Some("pool")).expect("a distribution").count;
    thread::sleep(50 * MS);
    assert_eq!(rig.collect().lag_of(Some("pool")).expect("a distribution").count, count);

    // A monitor that outlives its runtime ends without a word; the name is free again.
    let pool = multi_thread(1);
    let again = builder().with_runtime_name("pool").start(pool.handle());
    drop(pool_monitor);
    assert!(again.is_running());
    assert_eq!(rig.collect().value_of(WORKERS, Some("pool")), Some(1.0));
}

#[test]
fn tokios_own_name_of_a_runtime_is_used() {
    let rig = Rig::new();
    let runtime = tokio::runtime::Builder::new_current_thread().name("verifier").build().expect("a runtime");
    let monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    assert_eq!(monitor.runtime_name(), Some("verifier"));
    assert_eq!(rig.collect().value_of(WORKERS, Some("verifier")), Some(1.0));
}

#[test]
fn a_runtime_that_has_ended_is_not_monitored() {
    let rig = Rig::new();
    for runtime in [current_thread(), multi_thread(2)] {
        let handle = runtime.handle().clone();
        drop(runtime);
        let monitor = RuntimeMonitor::builder(&rig.telemetry).start(&handle);
        assert!(!monitor.is_running());
        assert_eq!(series_of(&rig.collect(), None), [""; 0]);
    }
}

#[test]
fn monitoring_does_not_keep_a_runtime_alive() {
    let rig = Rig::new();
    let _process = RuntimeMonitor::builder(&rig.telemetry).start(current_thread().handle());
    let descriptors = |rig: &Rig| rig.collect().value("process.unix.file_descriptor.count");
    let before = descriptors(&rig);
    for round in 0..50 {
        let runtime = multi_thread(2);
        let monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
        let begun = Instant::now();
        if round % 2 == 0 {
            drop(runtime)
        } else {
            runtime.shutdown_background()
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        rig.collect_until("the end of it", |c| series_of(c, None).is_empty());
        monitor.detach();
    }
    if cfg!(target_os = "linux") {
        // Each runtime has three descriptors of its own; a few may belong to tests beside this one.
        rig.collect_until("released descriptors", |c| c.value("process.unix.file_descriptor.count") < before + 50.0);
    }
}

#[test]
fn the_task_gauge_follows_a_thousand_tasks() {
    let rig = Rig::new();
    let runtime = multi_thread(2);
    let monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    assert!((1.0..=2.0).contains(&rig.collect().value(TASKS)), "the monitor's own");
    let (release, _) = tokio::sync::broadcast::channel::<()>(1);
    let tasks: Vec<_> = (0..1000)
        .map(|_| {
            let mut released = release.subscribe();
            runtime.spawn(async move { released.recv().await.is_ok() })
        })
        .collect();
    let tasks_alive = rig.collect().value(TASKS);
    assert!((1000.0..=1010.0).contains(&tasks_alive), "{tasks_alive}");
    release.send(()).expect("tasks wait");
    runtime.block_on(async {
        for task in tasks {
            assert!(task.await.expect("no panic"));
        }
    });
    rig.collect_until("back", |c| c.value(TASKS) <= 2.0);
    drop(monitor);
    let deadline = Instant::now() + Duration::from_secs(10);
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < deadline, "the monitor's task outlives the monitor");
        thread::yield_now();
    }
}

#[test]
fn tokios_counters_grow_and_agree_with_tokio() {
    let rig = Rig::new();
    let runtime = multi_thread(1);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    let before = rig.collect();
    runtime.block_on(async {
        for _ in 0..20 {
            tokio::spawn(async { runtime_support::spin(10 * MS) }).await.expect("no panic");
        }
    });
    let after = rig.collect_until("the last park", |c| c.value("gym.event_loop.busy_time") >= 0.2);
    let busy = after.value("gym.event_loop.busy_time");
    assert!((0.2..5.0).contains(&busy), "seconds: {busy}");
    assert!(after.value("gym.event_loop.parks") > before.value("gym.event_loop.parks"));
    assert_eq!(after.value("gym.event_loop.global_queue_depth"), 0.0);
}

#[test]
fn every_metric_is_as_the_catalogue_says() {
    let rig = Rig::new();
    let runtime = current_thread();
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(5 * MS).start(runtime.handle());
    runtime.block_on(async { tokio::time::sleep(50 * MS).await });
    rig.collect();
    let mut seen = rig.collect().kinds();
    seen.retain(|(name, ..)| name.starts_with("gym.event_loop.") || name.starts_with("process."));
    let mut expected: Vec<_> = catalog::ALL
        .iter()
        .flat_map(|room| room.iter())
        .filter(|m| {
            m.name.starts_with("gym.event_loop.") || (cfg!(target_os = "linux") && m.name.starts_with("process."))
        })
        .map(|metric| {
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::UpDownCounter => "updowncounter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
                _ => "?",
            };
            (metric.name.to_owned(), metric.unit.to_owned(), kind)
        })
        .collect();
    seen.sort();
    expected.sort();
    // Nothing that this build cannot tell, and nothing missing.
    assert_eq!(seen, expected);
}

#[test]
fn the_first_request_starts_it_and_the_next_runtime_is_found() {
    let rig = Rig::new();
    let app = Router::new()
        .route("/verify", get(|| async { "ok" }))
        .layer(GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).build());
    let request = || Request::get("/verify").body(axum::body::Body::empty()).expect("a request");
    assert_eq!(series_of(&rig.collect(), None), [""; 0]);

    let first = multi_thread(3);
    first.block_on(async {
        for _ in 0..3 {
            app.clone().oneshot(request()).await.expect("an answer");
        }
    });
    let collected = rig.collect();
    assert_eq!(collected.value(WORKERS), 3.0);
    assert_eq!(collected.value(TASKS), 1.0);

    drop(first);
    assert_eq!(series_of(&rig.collect(), None), [""; 0]);
    current_thread().block_on(async {
        app.clone().oneshot(request()).await.expect("an answer");
        assert_eq!(rig.collect().value(WORKERS), 1.0);
    });
}

#[test]
fn it_ends_with_the_telemetry_handle() {
    let rig = Rig::new();
    let runtime = multi_thread(1);
    let owned = Telemetry::builder().with_meter_provider(rig.telemetry.meter_provider().clone()).build();
    let monitor = RuntimeMonitor::builder(&owned).start(runtime.handle());
    rig.collect_until("it runs", |c| c.value_of("gym.event_loop.lag_last_ms", None).is_some());
    drop(owned);
    assert!(!monitor.is_running());
    let collected = rig.collect();
    assert_eq!(series_of(&collected, None), [""; 0]);
    assert!(!collected.values().iter().any(|value| value.name.starts_with("process.")));
    let deadline = Instant::now() + Duration::from_secs(10);
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < deadline, "the monitor's task outlives the handle");
        thread::yield_now();
    }
}

#[test]
fn nothing_runs_when_telemetry_or_metrics_are_off() {
    let runtime = multi_thread(1);
    let traces_only = Telemetry::builder()
        .with_tracer_provider(opentelemetry_sdk::trace::SdkTracerProvider::builder().build())
        .build();
    for telemetry in [Telemetry::disabled(), traces_only] {
        let monitor = RuntimeMonitor::builder(&telemetry).with_runtime_name("x").start(runtime.handle());
        assert!(!monitor.is_running());
        assert_eq!(monitor.runtime_name(), None);
        assert_eq!(runtime.metrics().num_alive_tasks(), 0);
    }
}

#[test]
fn runtimes_come_and_go_while_metrics_are_collected() {
    let rig = Rig::new();
    thread::scope(|scope| {
        let makers: Vec<_> = (0..3)
            .map(|maker| {
                let telemetry = rig.telemetry.clone();
                scope.spawn(move || {
                    for round in 0..40 {
                        let runtime = if round % 2 == 0 { current_thread() } else { multi_thread(2) };
                        let monitor = RuntimeMonitor::builder(&telemetry)
                            .with_runtime_name(format!("maker-{maker}"))
                            .with_sample_interval(MS)
                            .with_stuck_threshold(MS)
                            .start(runtime.handle());
                        runtime.block_on(async { tokio::time::sleep(2 * MS).await });
                        if round % 3 == 0 { drop(monitor) } else { monitor.detach() }
                    }
                })
            })
            .collect();
        while makers.iter().any(|maker| !maker.is_finished()) {
            rig.collect();
        }
    });
    let left: Vec<_> = rig.collect().values().into_iter().filter(|v| v.name.starts_with("gym.event_loop.")).collect();
    assert_eq!(left, []);
}
