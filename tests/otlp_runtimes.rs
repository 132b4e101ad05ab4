//! Exporters work whatever the application's runtime is, or is not (casebook EXP-07, LIFE-03).

mod otlp_support;

use std::time::Duration;

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::Collector;

const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];

fn environment(collector: &Collector, protocol: &str) -> Environment {
    Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ])
}

fn build(collector: &Collector, protocol: &str) -> Telemetry {
    Telemetry::builder().with_environment(environment(collector, protocol)).build()
}

fn span(telemetry: &Telemetry, name: &'static str) {
    drop(telemetry.tracer_provider().tracer("test").start(name));
}

#[test]
fn without_a_runtime() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let telemetry = build(&collector, protocol);
        span(&telemetry, "first");
        collector.wait_for("first span", |r| r.spans == ["first"]);
        span(&telemetry, "second");
        collector.wait_for("second span", |r| r.spans == ["first", "second"]);
        let report = telemetry.shutdown_blocking(Duration::from_secs(5));
        assert!(!report.timed_out);
        assert!(collector.look(|r| r.calls.iter().all(|call| call.grpc == (protocol == "grpc"))));
    }
}
