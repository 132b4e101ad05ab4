//! What children get and what is taken from them (casebook SUP-01), seen from inside a child.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use nemo_gym_telemetry::{
    Environment, TelemetryConfig, TelemetryEnv, configure_telemetry_env, configure_telemetry_env_in,
    strip_telemetry_env,
};

/// The environment a child sees. Its parent is given exactly `variables`.
fn child(variables: &[(&str, &str)], prepare: impl FnOnce(&mut Command)) -> BTreeMap<String, String> {
    let mut command = Command::new("env");
    command.arg("-0").env_clear().envs(variables.iter().copied()).stderr(Stdio::inherit());
    prepare(&mut command);
    parse(&command.output().expect("env runs").stdout)
}

fn parse(output: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8(output.to_vec()).expect("UTF-8");
    let pairs = text.split('\0').filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn path() -> String {
    std::env::var("PATH").unwrap_or_default()
}

fn enabled() -> TelemetryConfig {
    let mut config = TelemetryConfig::default();
    config.enabled = true;
    config
}

#[test]
fn children_get_everything_of_their_parent_and_one_run() {
    let path = path();
    for (slurm, expected) in [(Some("4242"), Some("4242")), (Some("  "), None), (None, None)] {
        let mut parent = vec![
            ("PATH", path.as_str()),
            ("HOME", "/home/x"),
            ("X", "1"),
            ("NEMO_GYM_OTEL_SPAN_GROUPS", "verify"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "k=hunter2"),
        ];
        parent.extend(slurm.map(|id| ("SLURM_JOB_ID", id)));
        let telemetry = configure_telemetry_env_in(&enabled(), &parent.iter().copied().collect());
        assert!(telemetry.is_enabled());
        let id = telemetry.run_id().expect("a run id").to_owned();
        match expected {
            Some(expected) => assert_eq!(id, expected),
            None => {
                assert!(id.len() == 12 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{id}");
            }
        }
        let children: Vec<_> = (0..3).map(|_| child(&parent, |command| telemetry.apply_to(command))).collect();
        for seen in &children {
            assert_eq!(seen, &children[0]);
            for (name, value) in &parent {
                assert_eq!(seen.get(*name).map(String::as_str), Some(*value), "{name}");
            }
            assert_eq!(seen["NEMO_GYM_OTEL_RUN_ID"], id);
            assert_eq!(seen["NEMO_GYM_OTEL_ENABLED"], "1");
        }
        // The supervisor itself takes part in the same run.
        let own = parent.iter().copied().collect::<Environment>().with(&telemetry);
        assert_eq!(own.get("NEMO_GYM_OTEL_RUN_ID"), Some(id.as_str()));
        assert!(!format!("{telemetry:?} {own:?}").contains("hunter2"));
    }
}

#[test]
fn off_means_that_children_are_as_their_parent() {
    let path = path();
    let mut configured = TelemetryConfig::default();
    configured.otlp_headers = Some("k=v".to_owned());
    let off: [(TelemetryConfig, &[(&str, &str)]); 4] = [
        (configured.clone(), &[]),
        (configured, &[("NEMO_LENS_ENABLED", "0")]),
        (enabled(), &[("NEMO_GYM_OTEL_ENABLED", "0"), ("NEMO_LENS_ENABLED", "1")]),
        (enabled(), &[("NEMO_GYM_OTEL_ENABLED", "maybe")]),
    ];
    for (config, variables) in off {
        let parent: Vec<_> =
            [("PATH", path.as_str()), ("X", "1")].into_iter().chain(variables.iter().copied()).collect();
        let telemetry = configure_telemetry_env_in(&config, &parent.iter().copied().collect());
        assert_eq!(telemetry, TelemetryEnv::disabled());
        assert_eq!((telemetry.is_enabled(), telemetry.run_id(), telemetry.iter().count()), (false, None, 0));
        let untouched = child(&parent, |_| {});
        assert_eq!(child(&parent, |command| telemetry.apply_to(command)), untouched);
    }
    // No block at all, even where the environment says enabled.
    let env = Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1")]);
    assert_eq!(configure_telemetry_env_in(None::<&TelemetryConfig>, &env), TelemetryEnv::disabled());
}

/// Its own environment is the one thing a process cannot change safely.
#[test]
fn this_process_does_not_change() {
    let before: BTreeMap<_, _> = std::env::vars_os().collect();
    let telemetry = configure_telemetry_env(&enabled());
    assert_eq!(telemetry.iter().collect::<Vec<_>>(), telemetry.into_iter().collect::<Vec<_>>());
    assert_eq!(std::env::vars_os().collect::<BTreeMap<_, _>>(), before);
}

#[tokio::test]
async fn commands_of_tokio_too() {
    let path = path();
    let telemetry = configure_telemetry_env_in(&enabled(), &Environment::default());
    let mut command = tokio::process::Command::new("env");
    command.arg("-0").env_clear().env("PATH", &path).env("OTEL_SERVICE_NAME", "by hand");
    telemetry.apply_to(&mut command);
    let seen = parse(&command.output().await.expect("env runs").stdout);
    assert_eq!(seen.get("NEMO_GYM_OTEL_RUN_ID").map(String::as_str), telemetry.run_id());

    strip_telemetry_env(&mut command);
    let seen = parse(&command.output().await.expect("env runs").stdout);
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [("PATH".to_owned(), path)]);
}

#[test]
fn stripping_leaves_no_telemetry_variable() {
    let path = path();
    let telemetry = [
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_SOMETHING_NOBODY_KNOWS_YET",
        "OTEL_",
        "NEMO_GYM_OTEL_ENABLED",
        "NEMO_GYM_OTEL_NEW",
        "NEMO_LENS_ENABLED",
        "NEMO_LENS_WHATEVER",
        "NEMO_GYM_STARTUP_SPAWN_NS",
        "NEMO_GYM_STARTUP_TRACEPARENT",
        "TRACEPARENT",
        "TRACESTATE",
        "BAGGAGE",
    ];
    let kept = [
        "X",
        "MY_OTEL_X",
        "otel_x",
        "NEMO_GYM_OTHER",
        "SLURM_JOB_ID",
        "WANDB_PROJECT",
        "NEMO_GYM_CONFIG_PATH",
        "XTRACEPARENT",
    ];
    let parent: Vec<_> =
        telemetry.iter().chain(&kept).map(|name| (*name, "hunter2")).chain([("PATH", path.as_str())]).collect();
    let seen = child(&parent, strip_telemetry_env);
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    let mut expected: Vec<&str> = kept.into_iter().chain(["PATH"]).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
}

/// The collector's credentials may stand in the configuration as well.
#[test]
fn stripping_takes_a_configuration_with_a_block() {
    let path = path();
    let stripped = |configuration: &str| {
        let parent = [("PATH", path.as_str()), ("NEMO_GYM_CONFIG_DICT", configuration)];
        !child(&parent, strip_telemetry_env).contains_key("NEMO_GYM_CONFIG_DICT")
    };
    assert!(stripped("{\"telemetry\": {\"otlp_headers\": \"k=hunter2\"}, \"a\": {}}"));
    assert!(stripped("a: 1\ntelemetry:\n  otlp_headers: k=hunter2\n"));
    assert!(stripped("telemetry: k=hunter2"));
    assert!(stripped("{broken telemetry: k=hunter2"));
    assert!(!stripped("{\"a\": {\"resources_servers\": {}}}"));
    assert!(!stripped("{\"telemetry\": null}"));
}

/// Inherited variables, of names nobody knows too: seen from a process that has them.
#[test]
fn stripping_reaches_inherited_variables() {
    const NAME: &str = "stripping_reaches_inherited_variables";
    if std::env::var_os("TEST_INSIDE_CHILD").is_some() {
        let mut command = Command::new("env");
        command.arg("-0");
        strip_telemetry_env(&mut command);
        let seen = parse(&command.output().expect("env runs").stdout);
        assert_eq!(seen.get("TEST_INSIDE_CHILD").map(String::as_str), Some("1"));
        let left: Vec<_> = seen.iter().filter(|(_, value)| value.contains("hunter2")).collect();
        assert!(left.is_empty(), "{left:?}");
        return;
    }
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"OTEL_\xff");
    let status = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", NAME, "--nocapture"])
        .env("TEST_INSIDE_CHILD", "1")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "k=hunter2")
        .env("OTEL_UNKNOWN", "hunter2")
        .env(odd, "hunter2")
        .env("NEMO_GYM_CONFIG_DICT", "telemetry: {otlp_headers: k=hunter2}")
        .stdout(Stdio::null())
        .status()
        .expect("this test runs");
    assert!(status.success());
}
