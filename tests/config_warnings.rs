//! Bad values are heard where no subscriber exists yet: on stderr, one line each, without the values
//! (casebook ENV-03), and the process goes on.

use std::process::Command;

use nemo_gym_telemetry::{ServerIdentity, ServerType, is_telemetry_env_enabled, is_telemetry_metrics_enabled};

/// Runs the named test of this file in a process of its own; returns its stderr lines from this crate.
fn said(name: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", name, "--nocapture"]).env("TEST_INSIDE_CHILD", "1");
    // No exporter: nothing is sent anywhere.
    command.envs(["TRACES", "METRICS", "LOGS"].map(|signal| (format!("OTEL_{signal}_EXPORTER"), "none")));
    command.env("CUDA_VISIBLE_DEVICES", "").envs(variables.iter().copied());
    let output = command.output().expect("this test runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr.lines().filter(|line| line.contains("nemo_gym_telemetry")).map(str::to_owned).collect()
}

fn inside_child() -> bool {
    std::env::var_os("TEST_INSIDE_CHILD").is_some()
}

#[test]
fn one_line_for_each_bad_variable() {
    if inside_child() {
        let identity = ServerIdentity::new("policy_model", ServerType::ResponsesApiModels);
        let telemetry = nemo_gym_telemetry::init_telemetry(identity.clone());
        assert!(telemetry.is_enabled());
        // Asking again and initialising again says nothing new.
        nemo_gym_telemetry::init_telemetry(identity);
        assert!(is_telemetry_env_enabled() && is_telemetry_metrics_enabled());
        assert_eq!(nemo_gym_telemetry::memory_profiling_config_from_env().interval_seconds, 1.0);
        return;
    }
    let bad = [
        ("NEMO_GYM_OTEL_TRACES_ENABLED", "hunter2"),
        ("NEMO_LENS_METRICS_ENABLED", "hunter2"),
        ("NEMO_GYM_OTEL_SPAN_GROUPS", "default,hunter2 s3cret"),
        ("NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS", "hunter2"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1s"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "hunter2"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization:hunter2,x=%zz"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "hunter2"), // endpoints are read, and refused, only where something is sent
        ("OTEL_PROPAGATORS", "b3"),
        ("OTEL_TRACES_SAMPLER", "hunter2"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,hunter2"),
    ];
    let enabled = [("NEMO_GYM_OTEL_ENABLED", "1")];
    let variables: Vec<_> = enabled.into_iter().chain(bad).collect();
    let lines = said("one_line_for_each_bad_variable", &variables);
    for (name, _) in bad {
        let of_it = lines.iter().filter(|line| line.contains(&format!("WARNING: {name} "))).count();
        assert_eq!(of_it, 1, "{name}: {lines:#?}");
    }
    assert_eq!(lines.len(), bad.len(), "{lines:#?}");
    assert!(!lines.concat().contains("hunter2"), "{lines:#?}");
}

#[test]
fn nothing_is_said_of_blank_values_and_of_telemetry_that_is_off() {
    if inside_child() {
        nemo_gym_telemetry::init_telemetry(ServerIdentity::unknown());
        return;
    }
    let name = "nothing_is_said_of_blank_values_and_of_telemetry_that_is_off";
    let blank: Vec<_> = nemo_gym_telemetry::config::variables::all()
        .filter(|v| v.name != "NEMO_GYM_OTEL_ENABLED" && !v.name.ends_with("S_EXPORTER"))
        .map(|v| (v.name, "  "))
        .chain([("NEMO_GYM_OTEL_ENABLED", "1")])
        .collect();
    assert_eq!(said(name, &blank), [""; 0]);
    assert_eq!(said(name, &[("OTEL_METRIC_EXPORT_INTERVAL", "1s"), ("NEMO_GYM_OTEL_ENABLED", "0")]), [""; 0]);
    // But a switch that cannot be read is.
    let switch = said(name, &[("NEMO_GYM_OTEL_ENABLED", "maybe")]);
    assert!(switch.len() == 1 && switch[0].contains("NEMO_GYM_OTEL_ENABLED"), "{switch:#?}");
}
