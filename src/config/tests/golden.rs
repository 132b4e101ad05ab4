//! Upstream's recorded environments: `env_flags.json` and `env_mapping.json`.

use serde_json::{Value, json};

use super::{Golden, cases, environment};
use crate::config::handover::configure;
use crate::config::settings::{ExporterChoice, Settings};
use crate::config::{self, Environment, TelemetryConfig};
use crate::span_group::SpanGroups;

/// What a server makes of an environment, in the words of upstream's strict parser.
fn flags(settings: &Settings) -> Value {
    let on = |exporter: ExporterChoice| exporter != ExporterChoice::Off;
    json!({
        "enabled": settings.enabled,
        "metrics_enabled": on(settings.metrics),
        "traces_enabled": on(settings.traces),
        "logs_enabled": on(settings.logs),
    })
}

#[test]
fn env_flags() {
    let mut golden = Golden::new(include_str!("../../../tests/golden_differences/env_flags.json"));
    let cases = cases(include_str!("../../../tests/golden/env_flags.json"));
    for case in &cases {
        let env = environment(case);
        let (settings, _) = Settings::resolve(&env, None);
        let actual = json!({
            "telemetry_enabled": config::is_telemetry_env_enabled_in(&env),
            "metrics_enabled": config::is_telemetry_metrics_enabled_in(&env),
            "lens": flags(&settings),
            "memory_profiling": config::memory_profiling_config_from_env_in(&env),
            "service_name_per_server": settings.service_name_per_server,
        });
        golden.compare(&case["env"].to_string(), case, actual);
    }
    golden.finish(cases.len());
}

/// A generated run id as the table writes it.
fn placeholder(id: &str) -> String {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if id.len() == 12 && id.bytes().all(hex) { "<12hex>".to_owned() } else { id.to_owned() }
}

/// What a server started with the environment sees.
fn server_side(env: &Environment, upstream: &Value) -> Value {
    let (settings, _) = Settings::resolve(env, None);
    let mut seen = flags(&settings);
    seen["service_name"] = json!(settings.service_name);
    seen["exporter"] = match settings.traces {
        // Where traces are off, the metrics or logs tell where signals would go.
        ExporterChoice::Off => match (settings.metrics, settings.logs) {
            (ExporterChoice::Console, _) | (_, ExporterChoice::Console) => json!("console"),
            _ => json!("otlp"),
        },
        ExporterChoice::Console => json!("console"),
        ExporterChoice::Otlp => json!("otlp"),
    };
    // Upstream keeps the text of the groups.
    let spec = upstream["span_groups"].as_str().unwrap_or_default();
    let same = settings.span_groups == SpanGroups::resolve(spec).0;
    seen["span_groups"] = if same { json!(spec) } else { json!(format!("{:?}", settings.span_groups)) };
    // Upstream makes an id where the environment has none at a later point.
    let given = env.get("NEMO_GYM_OTEL_RUN_ID").or(env.get("NEMO_LENS_RUN_ID"));
    assert!(given.is_none_or(|id| id == settings.run_id));
    seen["run_id"] = json!(given.map(placeholder).unwrap_or_default());
    seen
}

#[test]
fn env_mapping() {
    let mut golden = Golden::new(include_str!("../../../tests/golden_differences/env_mapping.json"));
    let cases = cases(include_str!("../../../tests/golden/env_mapping.json"));
    for case in &cases {
        let env = environment(case);
        let block: Option<TelemetryConfig> = match &case["config"] {
            Value::Null => None,
            block => Some(serde_json::from_value(block.clone()).expect("a block that upstream accepts")),
        };
        let (handed_over, warnings) = configure(block.as_ref(), &env);
        let child = env.clone().with(&handed_over);

        let mut delta: serde_json::Map<_, _> =
            handed_over.iter().map(|(name, value)| (name.to_owned(), json!(placeholder(value)))).collect();
        // The table leaves these two out: their names could not be confirmed when it was recorded.
        for name in ["NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS", "NEMO_GYM_OTEL_EVENT_LOOP_TASK_COUNT"] {
            assert_eq!(delta.remove(name).is_some(), handed_over.is_enabled(), "{name}");
        }
        let actual = json!({
            "delta": delta,
            "returned": handed_over.run_id().map(placeholder),
            "telemetry_enabled": config::is_telemetry_env_enabled_in(&child),
            "metrics_enabled": config::is_telemetry_metrics_enabled_in(&child),
            "server_side": server_side(&child, &case["server_side"]),
            "memory_profiling": config::memory_profiling_config_from_env_in(&child),
            "service_name_per_server": Settings::resolve(&child, None).0.service_name_per_server,
            "warnings": warnings.len(),
        });
        golden.compare(case["name"].as_str().expect("name"), case, actual);
    }
    golden.finish(cases.len());
}
