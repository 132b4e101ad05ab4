//! What a shutdown leaves behind: everything at the collector, once, and a process as if telemetry were off.

mod otlp_support;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{SpanGroups, Telemetry};
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Tracer, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use otlp_support::{Collector, PROTOCOLS, environment};
use tower::ServiceExt;

const HOUR: &str = "3600000";

/// Intervals that never pass: only the shutdown exports.
fn build(collector: &Collector, protocol: &str) -> Telemetry {
    let mut environment = environment(&collector.url(), protocol);
    environment.set("OTEL_BSP_SCHEDULE_DELAY", HOUR);
    environment.set("OTEL_METRIC_EXPORT_INTERVAL", HOUR);
    Telemetry::builder().with_environment(environment).build()
}

#[test]
fn each_datum_arrives_once_and_metrics_in_one_last_export() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let telemetry = build(&collector, protocol);
        let tracer = telemetry.tracer_provider().tracer("test");
        (0..200).for_each(|i| drop(tracer.start(format!("span {i}"))));
        telemetry.meter_provider().meter("test").u64_counter("requests").build().add(200, &[]);
        let report = telemetry.shutdown_blocking(Duration::from_secs(10));
        assert!(!report.timed_out && report.delivery.is_complete(), "{protocol}: {report:?}");
        let again = telemetry.shutdown_blocking(Duration::from_secs(10));
        assert_eq!(again, report);
        drop((telemetry, tracer));
        collector.look(|r| {
            let mut names = r.spans.clone();
            names.sort();
            names.dedup();
            assert_eq!((r.spans.len(), names.len()), (200, 200), "{protocol}");
            assert_eq!((r.metrics.len(), r.newest("requests")), (1, Some(200)), "{protocol}");
        });
    }
}

/// The last metrics tell how the last spans went.
#[test]
fn the_last_metrics_know_of_the_last_spans() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let telemetry = build(&collector, protocol);
        let tracer = telemetry.tracer_provider().tracer("test");
        (0..7).for_each(|_| drop(tracer.start("span")));
        telemetry.shutdown_blocking(Duration::from_secs(10));
        assert_eq!(collector.look(|r| r.newest("otel.sdk.exporter.span.exported")), Some(7), "{protocol}");
    }
}

#[tokio::test]
async fn flushing_sends_and_goes_on() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let telemetry = build(&collector, protocol);
        let tracer = telemetry.tracer_provider().tracer("test");
        drop(tracer.start("one"));
        assert!(telemetry.flush().await);
        assert_eq!(collector.look(|r| r.spans.clone()), ["one"]);
        drop(tracer.start("two"));
        assert!(telemetry.is_enabled() && !telemetry.shutdown().await.timed_out);
        assert_eq!(collector.look(|r| r.spans.clone()), ["one", "two"]);
        assert!(telemetry.flush().await, "there is nothing left to send");
    }
}

#[tokio::test]
async fn requests_after_shutdown_are_served_as_if_telemetry_were_off() {
    let collector = Collector::start();
    let telemetry = build(&collector, "grpc");
    let layer = GymTelemetryLayer::new(&telemetry);
    let app = Router::new().route("/hello", get(|| async { "hello" })).layer(layer);
    let request = || Request::get("/hello").header("traceparent", "junk").body(Body::empty()).unwrap();
    assert_eq!(app.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    telemetry.shutdown().await;
    assert!(!telemetry.is_enabled() && !telemetry.is_metrics_exporter_active());
    assert_eq!(telemetry.span_groups(), SpanGroups::NONE);
    let calls = collector.look(|r| r.calls.len());
    for _ in 0..100 {
        assert_eq!(app.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(telemetry.delivery().spans.lost_total(), 0, "no span was even made");
    drop((app, telemetry));
    assert_eq!(collector.look(|r| (r.spans.clone(), r.calls.len() - calls)), (vec!["GET /hello".to_owned()], 0));
}

/// Providers handed in belong to their owner (casebook LIFE-04).
#[tokio::test]
async fn handed_in_providers_outlive_our_shutdown() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let telemetry = Telemetry::builder()
        .with_environment([("CUDA_VISIBLE_DEVICES", "")].into_iter().collect())
        .with_tracer_provider(provider.clone())
        .build();
    drop(telemetry.tracer_provider().tracer("test").start("ours"));
    telemetry.shutdown().await;
    drop(telemetry);
    drop(provider.tracer("host").start("theirs"));
    let names: Vec<_> = exporter.get_finished_spans().unwrap().into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["ours", "theirs"]);
    provider.shutdown().unwrap();
}
