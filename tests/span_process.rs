//! The primitives over the process-wide handle, before and after it is there. One test: one process has one handle.

mod egress_support;

use axum::Router;
use axum::routing::get;
use egress_support::*;
use nemo_gym_telemetry::SpanGroup::Verify;
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::span::{client_span, managed_span, span_cm, trace_fn};
use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};

#[tokio::test]
async fn what_was_made_before_initialisation_works_after_it() {
    let traced = trace_fn(Verify, "traced").wrap(|n: u32| n + 1);
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(TracePropagation).build();
    let (address, seen) = serve(Router::new().route("/", get(|| async { "x" }))).await;
    let call = async || client.get(format!("http://{address}/")).send().await.unwrap().text().await.unwrap();
    managed_span(Verify, "before").in_scope(|span| assert!(!span.is_recording()));
    span_cm("before").in_scope(|span| assert!(span.context().is_none()));
    assert_eq!(traced(1), 2);
    call().await;
    assert!(seen.values("traceparent").is_empty());

    let spans = InMemorySpanExporter::default();
    let environment = Environment::from_iter([("NEMO_GYM_OTEL_SPAN_GROUPS", "verify,http_client")]);
    Telemetry::builder()
        .with_environment(environment)
        .with_tracer_provider(SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build())
        .init();
    managed_span(Verify, "managed").in_scope(|span| assert!(span.is_recording()));
    span_cm("cm").in_scope(|_| ());
    client_span("HTTP GET").in_scope(|_| ());
    assert_eq!(traced(1), 2);
    call().await;
    let names: Vec<_> = spans.get_finished_spans().unwrap().into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["managed", "cm", "HTTP GET", "traced", "GET"]);
    assert_eq!(seen.values("traceparent").len(), 1);
}
