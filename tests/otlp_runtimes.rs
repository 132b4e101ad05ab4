//! Exporters work whatever the application's runtime is, or is not (casebook EXP-07, LIFE-03).

mod otlp_support;

use std::time::Duration;

use nemo_gym_telemetry::Telemetry;
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::{Collector, PROTOCOLS, environment};
use tokio::runtime::{Builder, Runtime};

fn build(collector: &Collector, protocol: &str) -> Telemetry {
    let mut environment = environment(&collector.url(), protocol);
    environment.set("OTEL_BSP_SCHEDULE_DELAY", "100");
    environment.set("OTEL_METRIC_EXPORT_INTERVAL", "100");
    Telemetry::builder().with_environment(environment).build()
}

fn span(telemetry: &Telemetry, name: &'static str) {
    drop(telemetry.tracer_provider().tracer("test").start(name));
}

/// One span, then another after more than three intervals: the second shows that the exporter's thread
/// has survived the first.
fn two_spans(collector: &Collector, telemetry: &Telemetry) {
    span(telemetry, "first");
    collector.wait_for("first span", |r| r.spans == ["first"]);
    // Metrics tick at the same interval.
    let ticks = collector.look(|r| r.metrics.len());
    collector.wait_for("three intervals", |r| r.metrics.len() >= ticks + 3);
    span(telemetry, "second");
    collector.wait_for("second span", |r| r.spans == ["first", "second"]);
}

fn runtimes() -> Vec<(&'static str, Runtime)> {
    vec![
        ("current_thread", Builder::new_current_thread().enable_all().build().unwrap()),
        ("one worker", Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()),
        ("four workers", Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()),
        // Nothing of the application's reactor is needed.
        ("bare", Builder::new_current_thread().build().unwrap()),
    ]
}

#[test]
fn before_a_runtime_and_without_one() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let telemetry = build(&collector, protocol);
        two_spans(&collector, &telemetry);
        runtimes().pop().unwrap().1.block_on(async { span(&telemetry, "inside") });
        let report = telemetry.shutdown_blocking(Duration::from_secs(5));
        assert!(!report.timed_out && report.delivery.is_complete(), "{report:?}");
        assert_eq!(report.delivery.spans.exported, 3);
        assert!(collector.look(|r| r.calls.iter().all(|call| call.grpc == (protocol == "grpc"))));
    }
}

#[test]
fn inside_every_kind_of_runtime() {
    for protocol in PROTOCOLS {
        for (kind, runtime) in runtimes() {
            let collector = Collector::start();
            let report = runtime.block_on(async {
                let telemetry = build(&collector, protocol);
                two_spans(&collector, &telemetry);
                span(&telemetry, "last");
                telemetry.shutdown().await
            });
            assert!(!report.timed_out && report.delivery.is_complete(), "{protocol}, {kind}: {report:?}");
            assert!(collector.look(|r| r.spans == ["first", "second", "last"]), "{protocol}, {kind}");
        }
    }
}

#[test]
fn inside_spawn_blocking() {
    for protocol in PROTOCOLS {
        for (_, runtime) in runtimes() {
            let collector = Collector::start();
            runtime.block_on(async {
                let url = collector.url();
                let telemetry = tokio::task::spawn_blocking(move || {
                    Telemetry::builder().with_environment(environment(&url, protocol)).build()
                });
                let telemetry = telemetry.await.unwrap();
                span(&telemetry, "one");
                assert!(telemetry.flush().await);
                assert!(collector.look(|r| r.spans == ["one"]));
                telemetry.shutdown().await;
            });
        }
    }
}

#[test]
fn the_last_clone_dropped_in_async_code_sends_what_is_pending() {
    for protocol in PROTOCOLS {
        for (kind, runtime) in runtimes() {
            let collector = Collector::start();
            runtime.block_on(async {
                let telemetry = build(&collector, protocol);
                span(&telemetry, "dropped");
                drop(telemetry.clone());
                drop(telemetry);
                assert!(collector.look(|r| r.spans == ["dropped"]), "{protocol}, {kind}");
            });
        }
    }
}

#[test]
fn after_the_runtime_has_gone() {
    for protocol in PROTOCOLS {
        for (kind, runtime) in runtimes() {
            let collector = Collector::start();
            let telemetry = runtime.block_on(async { build(&collector, protocol) });
            let guard = telemetry.shutdown_guard();
            span(&telemetry, "orphan");
            drop(runtime);
            drop(guard);
            assert!(collector.look(|r| r.spans == ["orphan"]), "{protocol}, {kind}");
            assert!(!telemetry.is_enabled());
        }
    }
}

/// What deadlocks exporters that borrow the application's runtime: its only thread waits for the flush.
#[test]
fn no_deadlock_in_fifty_rounds() {
    for protocol in PROTOCOLS {
        for _ in 0..25 {
            for (kind, runtime) in runtimes().into_iter().take(2) {
                let collector = Collector::start();
                let telemetry = runtime.block_on(async { build(&collector, protocol) });
                let report = runtime.block_on(async {
                    span(&telemetry, "flushed");
                    assert!(telemetry.flush().await);
                    span(&telemetry, "last");
                    telemetry.shutdown_blocking(Duration::from_secs(5))
                });
                assert!(!report.timed_out, "{protocol}, {kind}");
                assert!(collector.look(|r| r.spans == ["flushed", "last"]), "{protocol}, {kind}");
            }
        }
    }
}
