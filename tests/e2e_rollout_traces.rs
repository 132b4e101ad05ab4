//! The three example servers as processes, sending to an OTLP receiver that is none of ours: each rollout is one trace
//! with the right parents, and nothing is lost when the servers are told to end right after the last answer.

#![cfg(all(feature = "otlp-grpc", feature = "otlp-http"))]

mod e2e;

use std::collections::{BTreeMap, HashMap, HashSet};

use e2e::fleet::{Fleet, telemetry_to};
use e2e::sink::{Received, Sink, Span};
use futures_util::future::join_all;
use serde_json::{Value, json};

const ROLLOUTS: usize = 25;
/// Every second rollout is called by somebody who has a trace already.
const CALLER_SPAN: &str = "b7ad6b7169203331";

fn caller_trace(task: usize) -> String {
    format!("0af7651916cd43dd8448eb21{task:08x}")
}

/// The spans of one rollout: server, kind, name (or the path it calls), and whether its parent is SERVER, CLIENT, INTERNAL or the caller's.
const SPANS: [(&str, &str, &str, &str); 18] = [
    ("example_agent", "SERVER", "POST /run", "caller"),
    ("example_agent", "INTERNAL", "gym.rollout", "SERVER"),
    ("example_agent", "CLIENT", "/seed_session", "INTERNAL"),
    ("example_single_tool_call", "SERVER", "POST /seed_session", "CLIENT"),
    ("example_agent", "CLIENT", "/v1/responses", "INTERNAL"),
    ("example_agent", "SERVER", "POST /v1/responses", "CLIENT"),
    ("example_agent", "INTERNAL", "gym.agent.responses", "SERVER"),
    ("example_agent", "CLIENT", "/v1/responses", "INTERNAL"),
    ("policy_model", "SERVER", "POST /v1/responses", "CLIENT"),
    ("policy_model", "INTERNAL", "gym.model.responses", "SERVER"),
    ("example_agent", "CLIENT", "/get_weather", "INTERNAL"),
    ("example_single_tool_call", "SERVER", "POST /get_weather", "CLIENT"),
    ("example_agent", "CLIENT", "/v1/responses", "INTERNAL"),
    ("policy_model", "SERVER", "POST /v1/responses", "CLIENT"),
    ("policy_model", "INTERNAL", "gym.model.responses", "SERVER"),
    ("example_agent", "CLIENT", "/verify", "INTERNAL"),
    ("example_single_tool_call", "SERVER", "POST /verify", "CLIENT"),
    ("example_single_tool_call", "INTERNAL", "gym.verify", "SERVER"),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_rollout_is_one_trace_over_grpc() {
    rollouts_over("grpc", "grpc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rollout_is_one_trace_over_http() {
    rollouts_over("http/protobuf", "http").await;
}

async fn rollouts_over(protocol: &str, seen_as: &str) {
    let Some(sink) = Sink::start().await else { return };
    let mut fleet = Fleet::start(&telemetry_to(&sink.endpoint(protocol), protocol, "e2e-run")).await;
    join_all((0..ROLLOUTS).map(async |task| {
        let traceparent = format!("00-{}-{CALLER_SPAN}-01", caller_trace(task));
        let headers = [("traceparent", traceparent.as_str())];
        let answer = fleet.rollout(task, if task.is_multiple_of(2) { &headers } else { &[] }).await;
        assert_eq!(answer["reward"], 1.0);
    }))
    .await;
    fleet.stop().await;
    let received = sink.stop().await;
    let spans = received.spans();
    assert!(spans.iter().all(|span| span.protocol == seen_as));
    check_traces(&spans);
    check_resources(&spans);
    check_metrics(&received);
}

/// The path of `http://host:port/path`.
fn path(url: &str) -> &str {
    let slash = url.match_indices('/').nth(2).map_or(url.len(), |(at, _)| at);
    &url[slash..]
}

fn check_traces(spans: &[Span]) {
    let mut traces: HashMap<&str, Vec<&Span>> = HashMap::new();
    for span in spans {
        traces.entry(&span.trace).or_default().push(span);
    }
    // Start-up is a trace of its own, where it is recorded.
    traces.retain(|_, trace| trace.iter().any(|span| span.kind == "SERVER"));
    assert_eq!(traces.len(), ROLLOUTS, "one trace per rollout");
    let mut seen = HashSet::new();
    for (trace_id, trace) in traces {
        let by_id: HashMap<&str, &Span> = trace.iter().map(|span| (span.id.as_str(), *span)).collect();
        assert_eq!(by_id.len(), trace.len(), "span ids are unique");
        let mut found: BTreeMap<(&str, &str, &str, &str), usize> = BTreeMap::new();
        for span in &trace {
            let parent = match span.parent.as_deref() {
                None | Some(CALLER_SPAN) => "caller",
                Some(parent) => &by_id.get(parent).unwrap_or_else(|| panic!("the parent of {span:?} is missing")).kind,
            };
            let server = span.resource["nemo.gym.server.name"].as_str().unwrap();
            let name = match span.kind.as_str() {
                "CLIENT" => {
                    let path = path(span.text("url.full"));
                    // The tool's path is no known Gym route: it would make a name of what a model says.
                    let name = if path == "/get_weather" { "POST".to_owned() } else { format!("POST {path}") };
                    assert_eq!(span.name, name);
                    path
                }
                _ => &span.name,
            };
            *found.entry((server, &span.kind, name, parent)).or_default() += 1;
            assert_eq!(span.status, "UNSET", "{span:?}");
        }
        let mut expected: BTreeMap<(&str, &str, &str, &str), usize> = BTreeMap::new();
        for span in SPANS {
            *expected.entry(span).or_default() += 1;
        }
        assert_eq!(found, expected);

        let ids: HashSet<&str> = trace.iter().map(|span| span.text("nemo.gym.rollout.id")).collect();
        let root = trace.iter().find(|span| span.name == "POST /run").unwrap();
        let id = root.text("nemo.gym.rollout.id");
        let task: usize = id.strip_suffix("-0").unwrap().parse().unwrap();
        assert_eq!(ids, HashSet::from([id]), "all spans of a rollout carry its id");
        assert!(seen.insert(task), "rollout {id} is in one trace only");
        if task.is_multiple_of(2) {
            assert_eq!((trace_id, root.parent.as_deref()), (caller_trace(task).as_str(), Some(CALLER_SPAN)));
        } else {
            assert_eq!(root.parent, None);
        }
    }
}

fn check_resources(spans: &[Span]) {
    let mut instances: HashMap<&str, HashSet<&str>> = HashMap::new();
    for span in spans {
        let name = span.resource["nemo.gym.server.name"].as_str().unwrap();
        let kind = match name {
            "example_agent" => "responses_api_agents",
            "policy_model" => "responses_api_models",
            _ => "resources_servers",
        };
        assert_eq!(span.resource["nemo.gym.server.type"], kind);
        assert_eq!(span.service(), format!("nemo-gym/{name}"));
        assert_eq!(span.resource["nemo.run.id"], "e2e-run");
        assert_eq!(span.resource["telemetry.sdk.language"], "rust");
        assert!(span.resource["process.pid"].is_i64(), "{:?}", span.resource["process.pid"]);
        instances.entry(name).or_default().insert(span.resource["service.instance.id"].as_str().unwrap());
    }
    assert_eq!(instances.len(), 3);
    assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
    let distinct: HashSet<_> = instances.into_values().flatten().collect();
    assert_eq!(distinct.len(), 3, "an instance id of its own for each process");
}

fn check_metrics(received: &Received) {
    let requests = received.histogram_counts("http.server.request.duration");
    let expected: HashMap<String, u64> = [("example_agent", 2), ("policy_model", 2), ("example_single_tool_call", 3)]
        .map(|(name, requests)| (format!("nemo-gym/{name}"), requests * ROLLOUTS as u64))
        .into();
    assert_eq!(requests, expected, "every request is in the last export");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_its_identity_from_its_supervisor() {
    let Some(sink) = Sink::start().await else { return };
    let mut variables = telemetry_to(&sink.endpoint("grpc"), "grpc", "e2e-identity");
    let config = json!({"my_agent": {"responses_api_agents": {"impl": {}}}, "observability_enabled": true});
    variables.push(("NEMO_GYM_CONFIG_PATH".to_owned(), "my_agent".to_owned()));
    variables.push(("NEMO_GYM_CONFIG_DICT".to_owned(), config.to_string()));
    let mut fleet = Fleet::start(&variables).await;
    fleet.rollout(7, &[]).await;
    fleet.stop().await;
    let spans = sink.stop().await.spans();
    let served = |name: &str| spans.iter().filter(|span| span.kind == "SERVER" && span.name == name).count();
    for span in &spans {
        assert_eq!(span.resource["nemo.gym.server.name"], "my_agent");
        assert_eq!(span.resource["nemo.gym.server.type"], Value::from("responses_api_agents"));
    }
    // With observability on, calls carry the rollout's id in their paths; the route says so.
    assert_eq!(served("POST /ng-rollout/{rollout_id}/verify"), 1);
    assert_eq!(served("POST /run"), 1);
}
