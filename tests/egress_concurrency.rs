//! Many calls at once: right parents, and every span that starts ends.

mod egress_support;

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Router, body::Body};
use egress_support::*;
use futures_util::future::join_all;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use opentelemetry::trace::{FutureExt as _, SpanId, SpanKind};
use reqwest_middleware::ClientWithMiddleware;

#[derive(Clone)]
struct Agent {
    client: ClientWithMiddleware,
    tools: String,
}

/// Each request of an agent makes 32 tool calls, which name the request.
async fn run(State(agent): State<Agent>, Path(id): Path<usize>) -> String {
    let call = |n: usize| {
        let request = agent.client.get(format!("{}/tool/{id}/{n}", agent.tools));
        async move {
            if n.is_multiple_of(2) {
                tokio::task::yield_now().await;
            }
            request.send().await.unwrap().text().await.unwrap()
        }
    };
    join_all((0..32).map(call)).await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_calls_hang_under_their_own_request() {
    let rig = Rig::new();
    let (tools, _) = serve(Router::new().route("/tool/{id}/{n}", get(|| async { "." }))).await;
    let agent = Agent { client: rig.client(), tools: format!("http://{tools}") };
    let layer = GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).build();
    let router = Router::new().route("/run/{id}", get(run)).with_state(agent).layer(layer);
    let (address, _) = serve(router).await;
    let plain = reqwest::Client::new();
    let runs = (0..8).map(|id| plain.get(format!("http://{address}/run/{id}")).send());
    for response in join_all(runs).await {
        assert_eq!(response.unwrap().text().await.unwrap().len(), 32);
    }
    let spans = rig.wait_for_spans(8 + 256).await;
    let servers: HashMap<SpanId, String> = spans
        .iter()
        .filter(|span| span.span_kind == SpanKind::Server)
        .map(|span| (span.span_context.span_id(), text(span, "url.path").unwrap()))
        .collect();
    let mut calls = 0;
    for span in spans.iter().filter(|span| span.span_kind == SpanKind::Client) {
        let server = servers[&span.parent_span_id].strip_prefix("/run/").unwrap();
        let full = text(span, "url.full").unwrap();
        assert!(full.contains(&format!("/tool/{server}/")), "{full} under {server}");
        calls += 1;
    }
    assert_eq!((servers.len(), calls), (8, 256));
}

#[tokio::test]
async fn losers_of_a_select_and_calls_out_of_time_end_cancelled() {
    let rig = Rig::new();
    let slow = || async { tokio::time::sleep(Duration::from_secs(60)).await };
    let stalling = || async { Body::from_stream(futures_util::stream::pending::<Result<String, std::io::Error>>()) };
    let router =
        Router::new().route("/slow", get(slow)).route("/stalling", get(stalling)).route("/fast", get(|| async {}));
    let (address, _) = serve(router).await;
    let client = rig.client();
    let call = |path: &str| client.get(format!("http://{address}/{path}")).send();
    async {
        tokio::select! {
            _ = call("slow") => unreachable!(),
            response = call("fast") => drop(response.unwrap().bytes().await),
        }
        let limit = Duration::from_millis(50);
        tokio::time::timeout(limit, call("slow")).await.unwrap_err();
        let body = async { call("stalling").await.unwrap().bytes().await };
        tokio::time::timeout(limit, body).await.unwrap_err();
    }
    .with_context(parent(true))
    .await;
    let spans = rig.wait_for_spans(4).await;
    for span in &spans {
        let cancelled = !text(span, "url.full").unwrap().ends_with("/fast");
        assert_eq!(text(span, "error.type").as_deref(), cancelled.then_some("cancelled"), "{span:?}");
        assert_eq!(span.parent_span_id.to_string(), S1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_spawned_with_the_helper_stay_in_the_trace() {
    let rig = Rig::new();
    let (address, seen) = serve(Router::new().route("/", get(|| async {}))).await;
    let client = rig.client();
    let url = format!("http://{address}/");
    async {
        let tasks = (0..16).map(|_| {
            let request = client.get(&url);
            nemo_gym_telemetry::span::spawn(async move { request.send().await.unwrap().bytes().await.unwrap() })
        });
        join_all(tasks).await;
        let handle = tokio::runtime::Handle::current();
        let request = client.get(&url);
        let blocking = move || handle.block_on(async { request.send().await.unwrap().bytes().await.unwrap() });
        nemo_gym_telemetry::span::spawn_blocking(blocking).await.unwrap();
    }
    .with_context(parent(true))
    .await;
    let spans = rig.wait_for_spans(17).await;
    assert!(spans.iter().all(|span| span.parent_span_id.to_string() == S1));
    assert!(seen.values("traceparent").iter().all(|line| fields(line).0 == T1));
}

#[tokio::test]
async fn an_aborted_task_ends_its_call() {
    let rig = Rig::new();
    let (address, heads) = raw_server(vec![Act::Hang("")]).await;
    let task = tokio::spawn(rig.client().get(format!("http://{address}/")).send());
    while heads.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(text(&rig.span(), "error.type").unwrap(), "cancelled");
}
