//! Mixed fleets: requests that go from a Python process (the stack of a Python Gym server) through a Rust server to another
//! Python process, or the other way round, are one trace.

#![cfg(all(feature = "otlp-grpc", feature = "otlp-http"))]

mod e2e;

use std::collections::HashMap;
use std::path::PathBuf;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use e2e::fleet::telemetry_to;
use e2e::process::{Process, Server, example};
use e2e::sink::{Sink, Span, free_port, python_command, python_peer};
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde_json::{Value, json};
use tokio::process::Command;

const MODULES: &str = "aiohttp, fastapi, uvicorn, opentelemetry.sdk, opentelemetry.instrumentation.fastapi, \
                       opentelemetry.exporter.otlp.proto.grpc";

fn peer() -> Option<(PathBuf, PathBuf)> {
    python_peer("interop/py_peer.py", MODULES)
}

fn python(peer: &(PathBuf, PathBuf), sink: &Sink) -> Command {
    let mut command = python_command(peer);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint("grpc"));
    command
}

/// A Python server, and where it listens.
async fn python_server(peer: &(PathBuf, PathBuf), sink: &Sink) -> (Process, String) {
    for _ in 0..5 {
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}");
        let mut command = python(peer, sink);
        command.args(["serve", &port.to_string(), "py_server"]);
        let mut process = Process::spawn(command);
        for _ in 0..1500 {
            if process.has_ended() {
                break;
            }
            if client().get(format!("{url}/ready")).send().await.is_ok_and(|answer| answer.status() == 200) {
                return (process, url);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    panic!("the Python server does not start");
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// Calls URLs from a Python process inside one root span; what it prints of each call.
async fn call_from_python(peer: &(PathBuf, PathBuf), sink: &Sink, urls: &[&str]) -> Vec<Value> {
    let mut command = python(peer, sink);
    command.arg("call").args(urls);
    let mut process = Process::spawn(command);
    assert!(process.wait().await.success(), "{}", process.stderr());
    process.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A Rust server whose only route passes the call on.
struct Middle {
    telemetry: Telemetry,
    url: String,
}

impl Middle {
    async fn start(sink: &Sink, next: String) -> Self {
        let environment: Environment = telemetry_to(&sink.endpoint("grpc"), "grpc", "interop").into_iter().collect();
        let identity = ServerIdentity::new("rust_middle", ServerType::ResponsesApiModels);
        let telemetry = Telemetry::builder().with_environment(environment).with_identity(identity).build();
        let propagation = TracePropagation::builder().with_telemetry(&telemetry).build();
        let client = ClientBuilder::new(client()).with(propagation).build();
        let app = Router::new()
            .route("/v1/responses", post(pass_on))
            .with_state((client, next))
            .layer(GymTelemetryLayer::new(&telemetry));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/responses", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { telemetry, url }
    }
}

async fn pass_on(State((client, next)): State<(ClientWithMiddleware, String)>) -> Json<Value> {
    Json(client.post(next).json(&json!({})).send().await.unwrap().json().await.unwrap())
}

/// The one trace that the spans are, from its root along the only way: service, kind, name.
fn way<'a>(spans: &'a [Span], trace_id: &str) -> Vec<(&'a str, &'a str, &'a str)> {
    let of_trace: Vec<&Span> = spans.iter().filter(|span| span.trace == trace_id).collect();
    let mut below: HashMap<Option<&str>, &Span> = HashMap::new();
    for span in &of_trace {
        // The Python server's spans for the parts of a request lie beside the way.
        if !span.name.contains(" http ") {
            assert!(below.insert(span.parent.as_deref(), span).is_none(), "a fork at {:?}: {of_trace:#?}", span.parent);
        }
    }
    let (mut way, mut at) = (Vec::new(), None);
    while let Some(span) = below.remove(&at) {
        way.push((span.service(), span.kind.as_str(), span.name.as_str()));
        at = Some(span.id.as_str());
    }
    assert!(below.is_empty(), "spans off the way: {below:#?}");
    way
}

#[tokio::test(flavor = "multi_thread")]
async fn python_rust_python_is_one_trace() {
    let Some(peer) = peer() else { return };
    let Some(sink) = Sink::start().await else { return };
    let (mut server, url) = python_server(&peer, &sink).await;
    let middle = Middle::start(&sink, format!("{url}/echo")).await;
    let calls = call_from_python(&peer, &sink, &[&middle.url, &middle.url]).await;
    assert_eq!(calls.len(), 2);
    let trace_id = calls[0]["trace_id"].as_str().unwrap();
    for call in &calls {
        assert_eq!(call["status"], 200, "{call}");
        let received = &call["body"]["received"];
        let traceparent = received["traceparent"][0].as_str().unwrap();
        assert_eq!(received["traceparent"].as_array().unwrap().len(), 1);
        // Python's flags say that the trace id is random, and ours go on saying so.
        assert!(call["sent"]["traceparent"].as_str().unwrap().ends_with("-03"), "{call}");
        assert!(traceparent.starts_with(&format!("00-{trace_id}-")) && traceparent.ends_with("-03"), "{traceparent}");
        assert_ne!(traceparent, call["sent"]["traceparent"], "a parent of our own");
        assert_eq!(call["body"]["trace_id"], trace_id);
    }
    middle.telemetry.shutdown().await;
    server.signal(libc::SIGINT);
    server.wait().await;
    let mut spans = sink.stop().await.spans();
    // The second call lies beside the first under the same root.
    let second = calls[1]["span_id"].as_str().unwrap();
    let mut dropped = vec![second.to_owned()];
    while let Some(id) = dropped.pop() {
        dropped.extend(spans.iter().filter(|span| span.parent.as_ref() == Some(&id)).map(|span| span.id.clone()));
        spans.retain(|span| span.id != id);
    }
    let expected = [
        ("py_client", "INTERNAL", "gym.rollout"),
        ("py_client", "CLIENT", "HTTP POST"),
        ("nemo-gym/rust_middle", "SERVER", "POST /v1/responses"),
        ("nemo-gym/rust_middle", "INTERNAL", "gym.model.responses"),
        ("nemo-gym/rust_middle", "CLIENT", "POST"),
        ("py_server", "SERVER", "POST /echo"),
    ];
    assert_eq!(way(&spans, trace_id), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_python_rust_is_one_trace() {
    let Some(peer) = peer() else { return };
    let Some(sink) = Sink::start().await else { return };
    let (mut server, url) = python_server(&peer, &sink).await;
    let mut command = example("resources_server");
    command.envs(telemetry_to(&sink.endpoint("grpc"), "grpc", "interop"));
    let mut last = Server::start(command).await;
    let middle = Middle::start(&sink, format!("{url}/echo")).await;

    // Python calls the example server, and a Rust server calls Python.
    let calls = call_from_python(&peer, &sink, &[&format!("{}/seed_session", last.url)]).await;
    assert_eq!((&calls[0]["status"], &calls[0]["body"]), (&json!(200), &json!({})));
    let echo: Value = client().post(&middle.url).send().await.unwrap().json().await.unwrap();
    let traceparent = echo["received"]["traceparent"][0].as_str().unwrap();
    assert!(traceparent.ends_with("-03"), "our new roots have random ids, and say so: {traceparent}");

    // And one way round: Rust, Python, Rust.
    let forward = json!({"url": format!("{}/seed_session", last.url)});
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03";
    let request = client().post(format!("{url}/forward")).header("traceparent", traceparent).json(&forward);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["status"], 200);

    middle.telemetry.shutdown().await;
    last.stop().await;
    server.signal(libc::SIGINT);
    server.wait().await;
    let spans = sink.stop().await.spans();
    let from_python = way(&spans, calls[0]["trace_id"].as_str().unwrap());
    let tail = ("nemo-gym/example_single_tool_call", "SERVER", "POST /seed_session");
    assert_eq!(from_python.last(), Some(&tail));
    assert_eq!(from_python.len(), 3);
    let from_rust = way(&spans, echo["trace_id"].as_str().unwrap());
    assert_eq!(from_rust.first(), Some(&("nemo-gym/rust_middle", "SERVER", "POST /v1/responses")));
    assert_eq!(from_rust.last(), Some(&("py_server", "SERVER", "POST /echo")));
    let forwarded: Vec<&Span> = spans.iter().filter(|span| span.trace == "0af7651916cd43dd8448eb211c80319c").collect();
    let of = |service: &str, kind: &str| {
        let is = |span: &&&Span| span.service() == service && span.kind == kind;
        forwarded.iter().find(is).unwrap_or_else(|| panic!("{kind} of {service}"))
    };
    assert_eq!(of("py_server", "SERVER").parent.as_deref(), Some("b7ad6b7169203331"));
    assert_eq!(of("nemo-gym/example_single_tool_call", "SERVER").parent, Some(of("py_server", "CLIENT").id.clone()));
}
