//! Casebook ENV-01 and ENV-02: blank values, and the order of the sources.

use proptest::prelude::*;

use super::values::{check_bounds, comparable, resolve};
use crate::config::settings::{ExporterChoice, Settings};
use crate::config::{Environment, TelemetryConfig, configure_telemetry_env_in, variables};
use crate::span_group::{SpanGroup, SpanGroups};

/// ENV-01: every variable of the table, blank in every way, is as good as unset.
#[test]
fn blank_is_unset_for_every_variable() {
    let lens = ("NEMO_LENS_ENABLED", "1");
    let unset = comparable(resolve(&[lens]));
    assert!(unset.0.enabled);
    let names = variables::all().flat_map(|v| [Some(v.name), v.fallback]).flatten();
    for name in names.filter(|name| *name != lens.0) {
        for blank in ["", "   ", "\t\n", "\u{a0}", "\u{2003} ", "\x1c\x1f"] {
            assert_eq!(comparable(resolve(&[lens, (name, blank)])), unset, "{name}={blank:?}");
        }
    }
    let all = variables::all().flat_map(|v| [Some(v.name), v.fallback]).flatten();
    let all: Environment =
        all.filter(|name| *name != lens.0).map(|name| (name, " ")).collect::<Environment>().with([lens]);
    assert_eq!(comparable(Settings::resolve(&all, None)), unset);
}

/// Blank in a block is unset as well.
#[test]
fn a_blank_field_is_unset() {
    let mut block = TelemetryConfig::default();
    block.enabled = true;
    let default = comparable(Settings::resolve(&Environment::default(), Some(&block)));
    for blank in ["", " ", "\t"] {
        block.service_name = blank.to_owned();
        block.span_groups = blank.to_owned();
        block.exporter = blank.to_owned();
        for field in [&mut block.run_id, &mut block.otlp_endpoint, &mut block.otlp_protocol, &mut block.otlp_headers] {
            *field = Some(blank.to_owned());
        }
        assert_eq!(comparable(Settings::resolve(&Environment::default(), Some(&block))), default, "{blank:?}");
    }
}

/// ENV-02: the switch. Rows: block, Gym's variable, Lens' variable, outcome.
#[test]
fn the_switch() {
    for yes in ["1", "true", "TRUE", "Yes", "oN", " on "] {
        for no in ["0", "false", "FALSE", "No", "oFF", "\toff"] {
            let cases = [
                (false, None, None, false),
                (false, None, Some(yes), true),
                (false, None, Some(no), false),
                (false, Some(yes), None, true),
                (false, Some(yes), Some(no), true),
                (false, Some(no), Some(yes), false),
                (true, None, None, true),
                (true, None, Some(no), true),
                (true, Some(no), None, false),
                (true, Some(no), Some(yes), false),
                (true, Some(""), Some(no), true),
                (true, Some("maybe"), Some(yes), false),
                (false, Some("maybe"), Some(yes), false),
            ];
            for (block_enabled, gym, lens, expected) in cases {
                let variables = [("NEMO_GYM_OTEL_ENABLED", gym), ("NEMO_LENS_ENABLED", lens)];
                let env: Environment = variables.iter().filter_map(|(n, v)| Some((*n, (*v)?))).collect();
                let mut block = TelemetryConfig::default();
                block.enabled = block_enabled;
                let (settings, _) = Settings::resolve(&env, Some(&block));
                assert_eq!(settings.enabled, expected, "{block_enabled} {gym:?} {lens:?}");
                let handed_over = configure_telemetry_env_in(&block, &env);
                assert_eq!(handed_over.is_enabled(), expected, "{block_enabled} {gym:?} {lens:?}");
                assert!(handed_over.iter().all(|(n, v)| n != "NEMO_GYM_OTEL_ENABLED" || v == "1"));
                // A child comes to the same.
                let (child, _) = Settings::resolve(&env.clone().with(&handed_over), None);
                assert_eq!(child.enabled, expected, "{block_enabled} {gym:?} {lens:?}");
            }
        }
    }
}

/// ENV-02: every setting with two variables and a field, from all combinations of the three.
#[test]
fn the_order_of_sources() {
    let set = |block: &mut TelemetryConfig, key: &str, on: bool| match key {
        "SPAN_GROUPS" => block.span_groups = if on { "sandbox" } else { "verify" }.to_owned(),
        "TRACES_ENABLED" => block.traces_enabled = on,
        "METRICS_ENABLED" => block.metrics_enabled = on,
        "LOGS_ENABLED" => block.logs_enabled = on,
        "EXPORTER" => block.exporter = if on { "console" } else { "otlp" }.to_owned(),
        "RUN_ID" => block.run_id = Some(if on { "one" } else { "other" }.to_owned()),
        other => panic!("{other}"),
    };
    let text = |key: &str, on: bool| match (key, on) {
        ("SPAN_GROUPS", true) => "sandbox",
        ("SPAN_GROUPS", false) => "verify",
        ("EXPORTER", true) => "console",
        ("EXPORTER", false) => "otlp",
        ("RUN_ID", true) => "one",
        ("RUN_ID", false) => "other",
        (_, true) => "yes",
        (_, false) => "off",
    };
    let seen = |settings: &Settings, key: &str| match key {
        "SPAN_GROUPS" => settings.span_groups == SpanGroups::of(&[SpanGroup::Sandbox]),
        "TRACES_ENABLED" => settings.traces != ExporterChoice::Off,
        "METRICS_ENABLED" => settings.metrics != ExporterChoice::Off,
        "LOGS_ENABLED" => settings.logs != ExporterChoice::Off,
        "EXPORTER" => settings.traces == ExporterChoice::Console,
        "RUN_ID" => settings.run_id == "one",
        other => panic!("{other}"),
    };
    let choices = [None, Some(true), Some(false)];
    for key in ["SPAN_GROUPS", "TRACES_ENABLED", "METRICS_ENABLED", "LOGS_ENABLED", "EXPORTER", "RUN_ID"] {
        for gym in choices {
            for lens in choices {
                for field in [true, false] {
                    let mut env = Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1")]);
                    if let Some(on) = gym {
                        env.set(format!("NEMO_GYM_OTEL_{key}"), text(key, on));
                    }
                    if let Some(on) = lens {
                        env.set(format!("NEMO_LENS_{key}"), text(key, on));
                    }
                    let mut block = TelemetryConfig::default();
                    set(&mut block, key, field);
                    let expected = gym.or(lens).unwrap_or(field);
                    let context = format!("{key}: {gym:?} {lens:?} {field}");
                    let (own, _) = Settings::resolve(&env, Some(&block));
                    assert_eq!(seen(&own, key), expected, "{context}");
                    let (child, warnings) =
                        Settings::resolve(&env.clone().with(&configure_telemetry_env_in(&block, &env)), None);
                    assert_eq!(seen(&child, key), expected, "{context}, in a child");
                    assert_eq!(warnings, [""; 0], "{context}");
                }
            }
        }
    }
}

/// A bad value means the default, not the block's: a server, which has no block, comes to the same.
#[test]
fn a_bad_value_does_not_fall_back_to_the_block() {
    let names = [
        "NEMO_GYM_OTEL_SPAN_GROUPS",
        "NEMO_GYM_OTEL_TRACES_ENABLED",
        "NEMO_LENS_METRICS_ENABLED",
        "NEMO_GYM_OTEL_LOGS_ENABLED",
        "NEMO_LENS_EXPORTER",
        "NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS",
        "NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ];
    let mut block = TelemetryConfig::default();
    block.enabled = true;
    block.span_groups = "all".to_owned();
    block.traces_enabled = false;
    block.metrics_enabled = false;
    block.logs_enabled = true;
    block.exporter = "console".to_owned();
    block.run_id = Some("r".to_owned());
    block.otlp_protocol = Some("http/protobuf".to_owned());
    block.memory_profiling.interval_seconds = 7.0;
    block.event_loop_sample_interval_seconds = 7.0;
    let env: Environment = names.iter().map(|name| (*name, "g a r b a g e")).collect();
    let (settings, warnings) = Settings::resolve(&env, Some(&block));
    assert_eq!(warnings.len(), names.len(), "{warnings:?}");
    let groups = SpanGroups::NONE;
    let expected = Settings { enabled: true, span_groups: groups, run_id: "r".to_owned(), ..Settings::default() };
    assert_eq!(settings, expected);
    let child = env.clone().with(&configure_telemetry_env_in(&block, &env));
    assert_eq!(Settings::resolve(&child, None).0, expected);
}

fn any_environment() -> impl Strategy<Value = Environment> {
    let names: Vec<&str> = variables::all().flat_map(|v| [Some(v.name), v.fallback]).flatten().collect();
    let value = prop_oneof![
        any::<String>(),
        "[ \\t]*[-+]?[0-9_]{0,30}(\\.[0-9]{0,3})?(e-?[0-9]{1,3})?",
        "[a-zA-Z_,=% /:.]{0,30}",
        Just("1".to_owned()),
        Just("%00,%0d%0a=%0d%0a,a=%0A".to_owned()),
    ];
    prop::collection::btree_map(prop::sample::select(names), value, 0..20).prop_map(|map| map.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever an environment holds: settings within bounds, at most one warning a variable.
    #[test]
    fn any_environment_gives_usable_settings(env in any_environment()) {
        let (settings, warnings) = Settings::resolve(&env, None);
        check_bounds(&settings);
        let mut named: Vec<_> = warnings.iter().filter_map(|w| w.split(' ').next()).collect();
        let all = named.len();
        named.sort_unstable();
        named.dedup();
        prop_assert_eq!(named.len(), all, "{:?}", warnings);
        prop_assert!(named.iter().all(|name| env.get(name).is_some()), "{:?}", warnings);
    }

    /// Whatever an environment holds, a supervisor and its servers see the same run.
    #[test]
    fn servers_share_the_run(env in any_environment(), enabled: bool) {
        let mut block = TelemetryConfig::default();
        block.enabled = enabled;
        let handed_over = configure_telemetry_env_in(&block, &env);
        let child = env.clone().with(&handed_over);
        let (first, _) = Settings::resolve(&child, None);
        let (second, _) = Settings::resolve(&child, Some(&block));
        if let Some(id) = handed_over.run_id() {
            prop_assert_eq!(id, &first.run_id);
            prop_assert_eq!(&second, &first);
            prop_assert!(first.enabled || first.sdk_disabled);
        } else {
            prop_assert_eq!(handed_over.iter().count(), 0);
            prop_assert!(!first.enabled);
        }
    }
}
