//! The `rollout` example, as a newcomer runs it.

#![cfg(all(feature = "otlp-grpc", feature = "otlp-http"))]

mod e2e;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use e2e::process::{PATIENCE, Process, example};
use e2e::sink::Sink;
use serde_json::Value;

async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = example("rollout");
    command.args(arguments).envs(variables.iter().copied());
    let mut process = Process::spawn(command);
    let status = process.wait().await;
    (status.code(), process.stdout(), process.stderr())
}

fn spans_in(file: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_each_rollout_as_one_trace() {
    for protocol in ["", "grpc", "http/protobuf"] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("spans.jsonl");
        let arguments = ["--json", file.to_str().unwrap()];
        let (status, stdout, stderr) = run(&arguments, &[("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)]).await;
        assert_eq!(status, Some(0), "{protocol}: {stdout}\n{stderr}");
        assert!(stdout.contains("3 of 3 rollouts are one trace each"), "{stdout}");
        assert_eq!(stdout.matches("gym.verify").count(), 3, "a waterfall each: {stdout}");

        let spans = spans_in(&file);
        let mut traces: HashMap<&str, Vec<&Value>> = HashMap::new();
        for span in &spans {
            let keys: BTreeSet<&str> = span.as_object().unwrap().keys().map(String::as_str).collect();
            let expected = [
                "attributes",
                "end_unix_nano",
                "kind",
                "name",
                "parent_span_id",
                "service_name",
                "span_id",
                "start_unix_nano",
                "status",
                "trace_id",
            ];
            assert_eq!(keys, BTreeSet::from(expected));
            assert!(["SERVER", "CLIENT", "INTERNAL"].contains(&span["kind"].as_str().unwrap()), "{span}");
            assert!(span["end_unix_nano"].as_u64().unwrap() >= span["start_unix_nano"].as_u64().unwrap(), "{span}");
            traces.entry(span["trace_id"].as_str().unwrap()).or_default().push(span);
        }
        traces.retain(|_, trace| trace.iter().any(|span| span["name"] == "gym.rollout"));
        assert_eq!(traces.len(), 3);
        for trace in traces.values() {
            let ids: HashSet<&Value> = trace.iter().map(|span| &span["span_id"]).collect();
            let parents = trace.iter().map(|span| &span["parent_span_id"]);
            assert!(parents.clone().all(|parent| parent.is_null() || ids.contains(parent)));
            assert_eq!(parents.filter(|parent| parent.is_null()).count(), 1);
            let services: BTreeSet<&str> = trace.iter().map(|span| span["service_name"].as_str().unwrap()).collect();
            for server in ["example_agent", "policy_model", "example_single_tool_call"] {
                assert!(services.contains(format!("nemo-gym/{server}").as_str()), "{services:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rollouts_show_progress_and_the_worst_of_them() {
    let (status, stdout, stderr) = run(&["--rollouts", "60", "--concurrency", "8", "--observability"], &[]).await;
    assert_eq!(status, Some(0), "{stdout}\n{stderr}");
    assert!(stdout.contains("60 of 60 rollouts are one trace each"), "{stdout}");
    assert_eq!(stdout.matches("gym.verify").count(), 20, "{stdout}");
    assert!(stderr.contains("rollouts 60/60"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fails_when_a_rollout_is_not_one_whole_trace() {
    let without = [
        ("NEMO_GYM_OTEL_TRACES_ENABLED", "0"),
        ("NEMO_GYM_OTEL_ENABLED", "0"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
        // Broken where propagation is: each server then begins traces of its own.
        ("OTEL_PROPAGATORS", "none"),
        // Two of the three servers make no span.
        ("NEMO_GYM_OTEL_SPAN_GROUPS", "agent"),
    ];
    for variable in without {
        let (status, stdout, stderr) = run(&["--rollouts", "2"], &[variable]).await;
        assert_eq!(status, Some(1), "{variable:?}: {stdout}\n{stderr}");
        assert!(stdout.contains("2 of 2 rollouts answered"), "{variable:?}: {stdout}");
        assert!(stdout.contains("0 of 2 rollouts are one trace each"), "{variable:?}: {stdout}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_elsewhere_when_told_to_and_says_so() {
    let Some(sink) = Sink::start().await else { return };
    let endpoint = sink.endpoint("grpc");
    let (status, stdout, stderr) = run(&["--rollouts", "4"], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).await;
    assert_eq!(status, Some(0), "{stdout}\n{stderr}");
    assert!(stdout.contains("judged by the HTTP answers alone"), "{stdout}");
    let spans = sink.stop().await.spans();
    let rollouts: HashSet<&str> =
        spans.iter().filter(|span| span.name == "gym.rollout").map(|span| span.trace.as_str()).collect();
    assert_eq!(rollouts.len(), 4);
    let job = spans.iter().find(|span| span.name == "gym.job").expect("gym.job");
    assert!(!rollouts.contains(job.trace.as_str()));
    for root in spans.iter().filter(|span| span.parent.is_none() && rollouts.contains(span.trace.as_str())) {
        assert_eq!((root.kind.as_str(), root.links), ("CLIENT", 1), "{root:?}");
        assert!(root.text("url.full").ends_with("/run"), "{root:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_endpoint_does_not_fail_the_rollouts() {
    let (status, stdout, stderr) = run(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")]).await;
    assert_eq!(status, Some(0), "{stdout}\n{stderr}");
    assert!(stdout.contains("3 of 3 rollouts answered"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_are_said() {
    for arguments in [&["--rolouts", "3"][..], &["--rollouts"], &["--rollouts", "many"], &["3"]] {
        let (status, _, stderr) = run(arguments, &[]).await;
        assert_eq!(status, Some(2), "{arguments:?}");
        assert!(!stderr.is_empty() && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
    assert_eq!(run(&["--help"], &[]).await.0, Some(0));
}

/// Its servers while it runs: the processes whose parent it is.
fn children(pid: u32) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|child| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        after_name.split(' ').nth(1) == Some(&pid.to_string())
    })
    .collect()
}

async fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < limit, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn no_server_outlives_it() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let mut command = example("rollout");
        command.args(["--rollouts", "1000000"]);
        let mut process = Process::spawn(command);
        let pid = process.id();
        let mut servers = Vec::new();
        until("three servers", || {
            servers = children(pid);
            servers.len() == 3
        })
        .await;
        process.signal(signal);
        process.wait().await;
        let gone = |server: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
            // A zombie has ended; whoever inherited it has yet to take notice.
            stat.is_empty() || stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
        };
        until(&format!("servers {servers:?} end after signal {signal}"), || servers.iter().all(gone)).await;
    }
}
