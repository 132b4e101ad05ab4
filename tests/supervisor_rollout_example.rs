//! Start-up and memory across real processes, by the `rollout` example (SUP-03).

#![cfg(all(feature = "supervisor", feature = "otlp-grpc", feature = "otlp-http", target_os = "linux"))]

mod e2e;

use std::collections::{BTreeSet, HashMap};

use e2e::process::{Process, example};
use serde_json::Value;

const T1: &str = "0af7651916cd43dd8448eb211c80319c";
const SERVERS: [&str; 3] = ["example_agent", "policy_model", "example_single_tool_call"];

#[tokio::test(flavor = "multi_thread")]
async fn the_start_up_is_one_trace_of_its_own_across_all_processes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("spans.jsonl");
    let mut command = example("rollout");
    command.args(["--json", file.to_str().unwrap()]);
    command.env("TRACEPARENT", format!("00-{T1}-b7ad6b7169203331-01"));
    // Left over from whatever started this process: not the servers' own.
    command.env("NEMO_GYM_STARTUP_TRACEPARENT", format!("00-{T1}-b7ad6b7169203331-01"));
    command.env("NEMO_GYM_STARTUP_SPAWN_NS", "1").env("NEMO_GYM_STARTUP_SETUP_DONE_NS", "2");
    let mut process = Process::spawn(command);
    let status = process.wait().await;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    assert!(status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("start-up  trace "), "{stdout}");
    for server in SERVERS {
        let row = stdout.lines().rfind(|line| line.starts_with(server)).unwrap_or_default();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells.get(2), Some(&"1"), "one process in the memory table: {row:?} of {stdout}");
        assert_eq!(cells.iter().filter(|cell| **cell == "MiB").count(), 3, "RSS, PSS and peak: {row:?}");
    }

    let text = std::fs::read_to_string(&file).unwrap();
    let spans: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(spans.iter().all(|span| span["trace_id"] != T1), "a TRACEPARENT in the environment parents nothing");
    let by_id: HashMap<&str, &Value> = spans.iter().map(|s| (s["span_id"].as_str().unwrap(), s)).collect();
    let starting: Vec<&Value> =
        spans.iter().filter(|span| span["name"].as_str().unwrap().contains(".startup")).collect();
    let traces: BTreeSet<&str> = starting.iter().map(|span| span["trace_id"].as_str().unwrap()).collect();
    assert_eq!(traces.len(), 1, "one trace");
    let in_trace = spans.iter().filter(|span| traces.contains(span["trace_id"].as_str().unwrap())).count();
    assert_eq!(in_trace, starting.len(), "and nothing else in it");

    let pids: BTreeSet<i64> = SERVERS
        .iter()
        .map(|server| {
            let own = starting
                .iter()
                .find(|s| s["name"] == "gym.server.startup" && s["attributes"]["nemo.gym.server.name"] == *server)
                .unwrap_or_else(|| panic!("no start-up of {server}"));
            assert_eq!(own["service_name"], format!("nemo-gym/{server}"));
            let parent = by_id[own["parent_span_id"].as_str().unwrap()];
            assert_eq!(parent["name"], "gym.startup.server");
            assert_eq!(parent["attributes"]["nemo.gym.server.name"], *server);
            assert_eq!(own["start_unix_nano"], parent["start_unix_nano"], "both begin with the spawn");
            assert!(own["end_unix_nano"].as_u64() <= parent["end_unix_nano"].as_u64());
            assert_contiguous(own, &starting);
            own["attributes"]["process.pid"].as_i64().unwrap()
        })
        .collect();
    assert_eq!(pids.len(), 3, "each in its own process");
    let root = starting.iter().find(|span| span["name"] == "gym.startup").unwrap();
    assert!(root["parent_span_id"].is_null());
    assert_contiguous(root, &starting);
}

/// The stages below a span fill its time without a gap.
fn assert_contiguous(whole: &Value, spans: &[&Value]) {
    let mut stages: Vec<(u64, u64)> = spans
        .iter()
        .filter(|s| s["parent_span_id"] == whole["span_id"] && s["attributes"].get("nemo.gym.startup.stage").is_some())
        .map(|s| (s["start_unix_nano"].as_u64().unwrap(), s["end_unix_nano"].as_u64().unwrap()))
        .collect();
    stages.sort_unstable();
    assert!(stages.len() >= 3, "{stages:?}");
    assert!(stages.windows(2).all(|pair| pair[0].1 == pair[1].0), "{stages:?}");
    assert_eq!(stages.first().map(|s| s.0), whole["start_unix_nano"].as_u64());
    assert_eq!(stages.last().map(|s| s.1), whole["end_unix_nano"].as_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_goes_on_until_it_is_told_to_end() {
    let mut command = example("rollout");
    command.args(["--observe", "--show", "0"]);
    let mut process = Process::spawn(command);
    process.line("round 2, 6 rollouts").await;
    process.line("memory of").await;
    process.signal(libc::SIGINT);
    let status = process.wait().await;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    assert!(status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("rollouts are one trace each"), "{stdout}");
}
