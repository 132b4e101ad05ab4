//! The call ends with its response's body.

mod egress_support;

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use egress_support::*;
use futures_util::StreamExt as _;
use nemo_gym_telemetry::egress::TracePropagation;
use opentelemetry::Value;
use opentelemetry::trace::{FutureExt as _, Status};
use opentelemetry_sdk::trace::SpanData;
use reqwest_middleware::ClientBuilder;

const STEP: Duration = Duration::from_millis(60);

/// Five events, a step apart.
fn events() -> Router {
    let stream = || async {
        let events = futures_util::stream::iter(0..5).then(|n| async move {
            tokio::time::sleep(STEP).await;
            Ok::<_, std::convert::Infallible>(Bytes::from(format!("data: {n}\n\n")))
        });
        ([("content-type", "text/event-stream")], Body::from_stream(events))
    };
    Router::new().route("/", get(stream))
}

fn duration(span: &SpanData) -> Duration {
    span.end_time.duration_since(span.start_time).unwrap()
}

fn time_to_headers(span: &SpanData) -> Duration {
    match attribute(span, "nemo.gym.http.time_to_headers_ms") {
        Some(Value::F64(ms)) => Duration::from_secs_f64(ms / 1e3),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_streamed_response_lasts_until_its_last_event_and_is_not_held_back() {
    let rig = Rig::new();
    let (address, _) = serve(events()).await;
    let response = rig.client().get(format!("http://{address}/")).send().await.unwrap();
    assert!(rig.spans().is_empty());
    let mut arrivals = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        assert!(!chunk.unwrap().is_empty());
        arrivals.push(Instant::now());
    }
    assert_eq!(arrivals.len(), 5);
    assert!(arrivals.windows(2).all(|pair| pair[1] - pair[0] > STEP / 2), "{arrivals:?}");
    let span = rig.span();
    assert_eq!(span.status, Status::Unset);
    assert!(duration(&span) >= STEP * 5, "{:?}", duration(&span));
    assert!(time_to_headers(&span) < duration(&span) - STEP, "{:?}", time_to_headers(&span));
    let points = rig.points();
    let ((name, _), (count, seconds)) = points.first_key_value().unwrap();
    assert_eq!((name.as_str(), *count), ("http.client.request.duration", 1));
    assert!((seconds - duration(&span).as_secs_f64()).abs() < 0.001);
}

#[tokio::test]
async fn the_span_can_end_at_the_headers_instead() {
    let rig = Rig::new();
    let (address, _) = serve(events()).await;
    let builder = TracePropagation::builder().with_telemetry(&rig.telemetry);
    let middleware = builder.with_end_at_headers(true).build();
    let client = ClientBuilder::new(reqwest::Client::new()).with(middleware).build();
    let response = client.get(format!("http://{address}/")).send().await.unwrap();
    let span = rig.span();
    assert_eq!(span.status, Status::Unset);
    assert!(duration(&span) < STEP * 5);
    assert_eq!(response.text().await.unwrap().matches("data: ").count(), 5);
    assert_eq!(rig.spans().len(), 1);
}

#[tokio::test]
async fn a_body_dropped_early_is_cancelled() {
    let rig = Rig::new();
    let (address, _) = serve(events()).await;
    let mut response = rig.client().get(format!("http://{address}/")).send().await.unwrap();
    response.chunk().await.unwrap().unwrap();
    drop(response);
    let span = rig.span();
    assert!(is_error(&span));
    assert_eq!(text(&span, "error.type").unwrap(), "cancelled");
    assert_eq!(attribute(&span, "http.response.status_code"), Some(Value::I64(200)));
    assert_eq!(total(&rig.points(), "http.client.request.duration", "error.type=cancelled"), 1);
}

#[tokio::test]
async fn a_call_dropped_before_its_response_is_cancelled() {
    let rig = Rig::new();
    let (address, _) = raw_server(vec![Act::Hang("")]).await;
    let call = rig.client().get(format!("http://{address}/")).send();
    tokio::time::timeout(Duration::from_millis(50), call).await.unwrap_err();
    let span = rig.span();
    assert_eq!(text(&span, "error.type").unwrap(), "cancelled");
    assert_eq!(attribute(&span, "http.response.status_code"), None);
    assert_eq!(total(&rig.points(), "http.client.request.duration", "error.type=cancelled"), 1);
}

#[tokio::test]
async fn an_error_response_that_nobody_reads_keeps_its_status_as_the_reason() {
    let rig = Rig::new();
    let answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 100\r\n\r\nten bytes.";
    let (address, _) = raw_server(vec![Act::Hang(answer)]).await;
    drop(rig.client().get(format!("http://{address}/")).send().await.unwrap());
    assert_eq!(text(&rig.span(), "error.type").unwrap(), "500");
}

#[tokio::test]
async fn a_response_without_a_body_ends_at_once() {
    let rig = Rig::new();
    let router = Router::new().route("/", get(|| async { http::StatusCode::NO_CONTENT }));
    let (address, _) = serve(router).await;
    for method in [reqwest::Method::GET, reqwest::Method::HEAD] {
        let response = rig.client().request(method, format!("http://{address}/")).send().await.unwrap();
        let spans = rig.spans();
        assert_eq!(spans.last().unwrap().status, Status::Unset);
        drop(response);
    }
    assert_eq!(rig.spans().len(), 2);
}

#[tokio::test]
async fn an_unsampled_call_gets_its_response_unwrapped_and_its_sample_at_the_headers() {
    let rig = Rig::new();
    let (address, _) = serve(events()).await;
    let request = rig.client().get(format!("http://{address}/"));
    let response = request.send().with_context(parent(false)).await.unwrap();
    let points = rig.points();
    assert_eq!(total(&points, "http.client.request.duration", "status_code=200"), 1, "{points:?}");
    assert_eq!(response.text().await.unwrap().matches("data: ").count(), 5);
    assert_eq!(total(&rig.points(), "http.client.request.duration", ""), 1);
}
