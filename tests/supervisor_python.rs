//! Start-ups across languages: a live Python supervisor over a Rust server, and a Rust supervisor over a Python server.

#![cfg(all(feature = "otlp-grpc", feature = "supervisor"))]

mod e2e;
mod otlp_support;

use std::collections::HashMap;

use e2e::process::{Process, example_binary, isolated};
use e2e::sink::python_peer;
use nemo_gym_telemetry::supervisor::SupervisorStartup;
use nemo_gym_telemetry::{ServerIdentity, ServerType, Telemetry};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp_support::{Collector, environment};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/startup.py");
const MODULES: &str = "opentelemetry.sdk, opentelemetry.exporter.otlp.proto.grpc.trace_exporter";

/// The spans that arrived, by name; only start-up spans, whose names are different here.
fn spans(collector: &Collector) -> HashMap<String, Span> {
    collector.look(|received| {
        let scopes = received.traces.iter().flat_map(|r| &r.resource_spans).flat_map(|r| &r.scope_spans);
        scopes.flat_map(|scope| &scope.spans).map(|span| (span.name.clone(), span.clone())).collect()
    })
}

fn assert_child(child: &Span, parent: &Span) {
    assert_eq!((&child.trace_id, &child.parent_span_id), (&parent.trace_id, &parent.span_id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_supervisor_parents_a_rust_server() {
    let Some((python, script)) = python_peer(SCRIPT, MODULES) else { return };
    let collector = Collector::start();
    let mut command = isolated(python);
    command.arg(script).args(["supervise", &collector.url()]).arg(example_binary("resources_server"));
    let mut process = Process::spawn(command);
    assert!(process.wait().await.success(), "{}", process.stderr());

    let spans = spans(&collector);
    let [of_server, own] = ["gym.startup.server", "gym.server.startup"].map(|name| &spans[name]);
    assert_child(own, of_server);
    assert_eq!(own.start_time_unix_nano, of_server.start_time_unix_nano, "timed from the spawn");
    let mut stages: Vec<_> = spans.values().filter(|span| span.parent_span_id == own.span_id).collect();
    stages.sort_by_key(|stage| stage.start_time_unix_nano);
    assert!(stages.len() >= 3, "{stages:?}");
    assert_eq!(stages[0].start_time_unix_nano, own.start_time_unix_nano);
    assert!(stages.windows(2).all(|pair| pair[0].end_time_unix_nano == pair[1].start_time_unix_nano), "{stages:?}");
    assert_eq!(stages[stages.len() - 1].end_time_unix_nano, own.end_time_unix_nano);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rust_supervisor_parents_a_python_server() {
    let Some((python, script)) = python_peer(SCRIPT, MODULES) else { return };
    let collector = Collector::start();
    let mut startup = SupervisorStartup::begin();
    let telemetry = Telemetry::builder()
        .with_environment(environment(&collector.url(), "grpc"))
        .with_identity(ServerIdentity::new("supervisor", ServerType::Supervisor))
        .build();
    let mut command = isolated(python);
    command.arg(script).args(["serve", &collector.url()]);
    let server = ServerIdentity::new("python", ServerType::ResourcesServers);
    let starting = startup.server(&telemetry, &server, &mut command);
    let mut process = Process::spawn(command);
    assert!(process.wait().await.success(), "{}", process.stderr());
    drop(starting.healthy());
    drop(startup);
    telemetry.shutdown().await;

    let spans = spans(&collector);
    let [whole, of_server, own] = ["gym.startup", "gym.startup.server", "gym.server.startup"].map(|name| &spans[name]);
    assert_child(of_server, whole);
    assert_child(own, of_server);
    assert_eq!(own.start_time_unix_nano, of_server.start_time_unix_nano, "timed from the spawn");
}
