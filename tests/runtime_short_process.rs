//! A process that ends before its first periodic export: started by `init_telemetry`, told about at shutdown.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nemo_gym_telemetry::{Environment, Telemetry};
use serde_json::Value;

const CHILD: &str = "RUNTIME_SHORT_PROCESS_CHILD";
const MS: Duration = Duration::from_millis(1);

#[test]
fn the_export_that_ends_telemetry_tells_about_the_runtime() {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_child", "--nocapture"])
        .env(CHILD, "1")
        .stderr(Stdio::inherit())
        .output()
        .expect("a child");
    assert!(output.status.success());
    let stdout = String::from_utf8(output.stdout).expect("text");
    let exports: Vec<Value> = stdout
        .lines()
        .filter_map(|line| {
            line.find("{\"resource_metrics\"").and_then(|start| serde_json::from_str(&line[start..]).ok())
        })
        .collect();
    let [export] = &exports[..] else { panic!("one export, at shutdown: {stdout}") };
    let metrics: Vec<&Value> = export["resource_metrics"][0]["scope_metrics"]
        .as_array()
        .expect("scopes")
        .iter()
        .flat_map(|scope| scope["metrics"].as_array().expect("metrics"))
        .collect();
    let point = |name: &str| {
        let metric = metrics.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("{name}: {stdout}"));
        &metric["data"]["data_points"][0]
    };
    assert_eq!(point("gym.event_loop.stuck_workers")["value"], 1);
    assert!(point("gym.event_loop.lag_max_ms")["value"].as_f64() > Some(190.0));
    assert_eq!(point("gym.event_loop.lag_ms")["count"], 1, "the sample that was open");
    assert_eq!(point("gym.event_loop.tasks")["attributes"], serde_json::json!({}));
    if cfg!(target_os = "linux") {
        assert!(point("process.memory.usage")["value"].as_u64() > Some(1_000_000));
    }
}

/// Does nothing unless the test above runs it.
#[test]
fn the_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_EXPORTER", "console"),
        ("NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS", "3600"),
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let telemetry = Telemetry::builder().with_environment(environment).init();
        tokio::time::sleep(20 * MS).await;
        thread::sleep(300 * MS);
        tokio::time::sleep(20 * MS).await;
        telemetry.shutdown().await;
    });
}
