//! Casebook ENV-01 to ENV-05: whole kinds of inputs.

use std::time::Duration;

use opentelemetry_sdk::metrics::Temporality;
use proptest::prelude::*;

use crate::config::settings::{ExporterChoice, OtlpProtocol, PropagatorChoice, RootSampler, SamplerChoice, Settings};
use crate::config::{Environment, TelemetryConfig, configure_telemetry_env_in, parse, variables};
use crate::span_group::{SpanGroup, SpanGroups};

fn resolve(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
    Settings::resolve(&variables.iter().copied().collect(), None)
}

/// Settings without the generated run id.
fn comparable((settings, warnings): (Settings, Vec<String>)) -> (Settings, Vec<String>) {
    (Settings { run_id: String::new(), ..settings }, warnings)
}

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

/// ENV-03: one bad value a variable: one warning that names it, does not show it, and the default.
#[test]
fn bad_values_are_heard_and_harmless() {
    const SECRET: &str = "hunter2 s3cr3t";
    let on = [("NEMO_GYM_OTEL_ENABLED", "1")];
    let default = comparable(resolve(&on)).0;
    let mut tried = 0;
    for info in variables::all() {
        let free_text = [
            "OTEL_SERVICE_NAME",
            "_RUN_ID",
            "_USER_ID",
            "_CERTIFICATE",
            "_CLIENT_KEY",
            "STARTUP_",
            "NEMO_GYM_CONFIG_",
            "DEPLOYMENT_ENV",
            "WANDB_",
            "CUDA_",
            "SLURM_",
            "KUBERNETES_",
            "K8S_",
        ];
        if free_text.iter().any(|part| info.name.contains(part)) || info.name == "NEMO_GYM_OTEL_ENABLED" {
            continue;
        }
        // The argument is read only by a sampler that has one, resource attributes only for a resource.
        let ratio = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
        let helper = (info.name == "OTEL_TRACES_SAMPLER_ARG").then_some(ratio);
        if info.name == "OTEL_RESOURCE_ATTRIBUTES" {
            continue;
        }
        for name in [Some(info.name), info.fallback].into_iter().flatten() {
            let env: Environment = on.into_iter().chain(helper).chain([(name, SECRET)]).collect();
            let (settings, warnings) = comparable(Settings::resolve(&env, None));
            if name == "NEMO_GYM_OTEL_EVENT_LOOP_TASK_COUNT" {
                // Handed over, not read.
                continue;
            }
            tried += 1;
            assert_eq!(warnings.len(), 1, "{name}: {warnings:?}");
            assert!(warnings[0].starts_with(&format!("{name} ")), "{warnings:?}");
            assert!(!warnings[0].contains("hunter2") && !warnings[0].contains("s3cr3t"), "{warnings:?}");
            let expected = match name {
                // Groups: the unknown ones are dropped, none is left.
                "NEMO_GYM_OTEL_SPAN_GROUPS" | "NEMO_LENS_SPAN_GROUPS" => {
                    Settings { span_groups: SpanGroups::NONE, ..default.clone() }
                }
                // Upstream: a word that is no boolean counts as false.
                "NEMO_GYM_OTEL_SERVICE_NAME_PER_SERVER" => {
                    Settings { service_name_per_server: false, ..default.clone() }
                }
                "OTEL_TRACES_SAMPLER_ARG" => Settings {
                    sampler: SamplerChoice { parent_based: true, root: RootSampler::TraceIdRatio(1.0) },
                    ..default.clone()
                },
                _ => default.clone(),
            };
            assert_eq!(settings, expected, "{name}");
        }
    }
    assert!(tried > 60, "{tried}");
}

#[test]
fn the_casebook_s_bad_values() {
    let cases: [(&str, &str); 11] = [
        ("NEMO_GYM_OTEL_TRACES_ENABLED", "maybe"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1s"),
        ("NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS", "-1"),
        ("NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS", "abc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "ten"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpcc"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Detla"),
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("NEMO_GYM_OTEL_EXPORTER", "jaeger"),
        ("NEMO_LENS_EXPORTER", "CONSOLE"),
    ];
    let default = comparable(resolve(&[])).0;
    for (name, value) in cases {
        let (settings, warnings) = comparable(resolve(&[(name, value)]));
        assert_eq!(settings, default, "{name}={value}");
        assert_eq!(warnings.len(), 1, "{name}={value}: {warnings:?}");
    }
    assert_eq!(default.metric_interval, Duration::from_secs(10));
    assert_eq!(default.otlp_traces.timeout, Duration::from_secs(10));
    assert_eq!(default.memory_profiling_interval, Duration::from_secs(1));
    assert_eq!(default.temporality, Temporality::Cumulative);

    let (settings, warnings) = resolve(&[("NEMO_GYM_OTEL_SPAN_GROUPS", "default,verfy")]);
    assert_eq!(settings.span_groups, SpanGroups::DEFAULT);
    assert!(warnings.len() == 1 && warnings[0].contains("verfy"), "{warnings:?}");
    for delta in ["delta", "DELTA", " Delta "] {
        let (settings, warnings) = resolve(&[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", delta)]);
        assert_eq!((settings.temporality, warnings), (Temporality::Delta, Vec::new()), "{delta}");
    }
}

/// All that is counted in milliseconds or things: zero, junk, and far too much.
#[test]
fn numbers_are_bounded() {
    let times = [
        "OTEL_METRIC_EXPORT_INTERVAL",
        "OTEL_METRIC_EXPORT_TIMEOUT",
        "OTEL_BSP_SCHEDULE_DELAY",
        "OTEL_BSP_EXPORT_TIMEOUT",
        "OTEL_BLRP_SCHEDULE_DELAY",
        "OTEL_BLRP_EXPORT_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        "NEMO_GYM_OTEL_EVENT_LOOP_STUCK_THRESHOLD_MS",
    ];
    let sizes = [
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        "OTEL_BLRP_MAX_QUEUE_SIZE",
        "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE",
    ];
    let bad = ["0", "00", "-0", "-1", "1.5", "1e3", "10s", "0x10", "_1", "1_", "1__0", "+", "١٢", "nan", "inf"];
    let default = comparable(resolve(&[])).0;
    for name in times.into_iter().chain(sizes) {
        for value in bad {
            let (settings, warnings) = comparable(resolve(&[(name, value)]));
            assert_eq!(settings, default, "{name}={value}");
            assert_eq!(warnings.len(), 1, "{name}={value}: {warnings:?}");
        }
        for value in ["18446744073709551615", "99999999999999999999999999", "1_000_000_000_000"] {
            let (settings, warnings) = resolve(&[(name, value)]);
            check_bounds(&settings);
            assert!(!warnings.is_empty() && warnings[0].starts_with(name), "{name}={value}: {warnings:?}");
            assert_ne!(comparable((settings, warnings)).0, default, "{name}={value}");
        }
        for value in ["1", "+7", "1_000", " 250 "] {
            let (settings, warnings) = resolve(&[(name, value)]);
            assert_eq!(warnings, [""; 0], "{name}={value}");
            check_bounds(&settings);
        }
    }
    let (settings, warnings) = resolve(&[("OTEL_BSP_MAX_QUEUE_SIZE", "100")]);
    assert_eq!((settings.span_batch.max_queue_size, settings.span_batch.max_export_batch_size), (100, 100));
    assert_eq!(warnings, [""; 0]);
    let both = [("OTEL_BLRP_MAX_QUEUE_SIZE", "100"), ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "101")];
    let (settings, warnings) = resolve(&both);
    assert_eq!((settings.log_batch.max_queue_size, settings.log_batch.max_export_batch_size), (100, 100));
    assert!(warnings.len() == 1 && warnings[0].contains("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE"), "{warnings:?}");
}

/// What must hold whatever the environment says: no spin, no empty queue, nothing absurd.
fn check_bounds(settings: &Settings) {
    for batch in [settings.span_batch, settings.log_batch] {
        assert!((1..=parse::MAX_QUEUE).contains(&batch.max_queue_size));
        assert!((1..=batch.max_queue_size).contains(&batch.max_export_batch_size));
        for time in [batch.scheduled_delay, batch.export_timeout] {
            assert!((Duration::from_millis(1)..=parse::MAX_TIME).contains(&time));
        }
    }
    let times = [
        settings.metric_interval,
        settings.metric_timeout,
        settings.event_loop_stuck_threshold,
        settings.otlp_traces.timeout,
        settings.otlp_metrics.timeout,
        settings.otlp_logs.timeout,
    ];
    assert!(times.iter().all(|time| (Duration::from_millis(1)..=parse::MAX_TIME).contains(time)));
    for interval in [settings.memory_profiling_interval, settings.event_loop_sample_interval] {
        assert!((Duration::from_millis(10)..=parse::MAX_TIME).contains(&interval));
    }
    assert!(!settings.run_id.is_empty() && !settings.service_name.is_empty());
    if let RootSampler::TraceIdRatio(ratio) = settings.sampler.root {
        assert!((0.0..=1.0).contains(&ratio));
    }
}

#[test]
fn intervals_in_seconds_are_bounded() {
    let names = ["NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS", "NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS"];
    let of = |settings: &Settings, name: &str| {
        if name == names[0] { settings.memory_profiling_interval } else { settings.event_loop_sample_interval }
    };
    let cases: [(&str, Duration, usize); 15] = [
        ("0", Duration::from_secs(1), 1),
        ("-0.0", Duration::from_secs(1), 1),
        ("-1", Duration::from_secs(1), 1),
        ("nan", Duration::from_secs(1), 1),
        ("-inf", Duration::from_secs(1), 1),
        ("true", Duration::from_secs(1), 1),
        ("1_", Duration::from_secs(1), 1),
        ("_1", Duration::from_secs(1), 1),
        ("1e-300", Duration::from_millis(10), 1),
        ("0.001", Duration::from_millis(10), 1),
        ("inf", parse::MAX_TIME, 1),
        ("1e300", parse::MAX_TIME, 1),
        ("2.5", Duration::from_millis(2500), 0),
        ("1_0.0_1", Duration::from_millis(10_010), 0),
        ("+3", Duration::from_secs(3), 0),
    ];
    for name in names {
        for (value, expected, said) in cases {
            let (settings, warnings) = resolve(&[(name, value)]);
            assert_eq!(of(&settings, name), expected, "{name}={value}");
            assert_eq!(warnings.len(), said, "{name}={value}: {warnings:?}");
        }
    }
}

#[test]
fn limits_of_spans() {
    let (settings, warnings) = resolve(&[
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "40"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "7"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "0"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "5"),
        ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "6"),
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "8"),
    ]);
    let limits = settings.limits;
    assert_eq!(limits.attribute_value_length, Some(40));
    assert_eq!((limits.attributes_per_span, limits.events_per_span, limits.links_per_span), (7, 0, 5));
    assert_eq!((limits.attributes_per_event, limits.attributes_per_link), (6, 8));
    assert_eq!(warnings, [""; 0]);

    let both = [
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "40"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "0"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "7"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "9"),
    ];
    let (settings, _) = resolve(&both);
    assert_eq!((settings.limits.attribute_value_length, settings.limits.attributes_per_span), (Some(0), 9));
    let (settings, warnings) = resolve(&[("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "4294967296")]);
    assert_eq!((settings.limits.attributes_per_span, warnings.len()), (parse::MAX_COUNT, 1));
}

/// ENV-04: the kill switch.
#[test]
fn otel_sdk_disabled() {
    let cases = [
        ("true", false, 0),
        ("TRUE", false, 0),
        (" tRue ", false, 0),
        ("false", true, 0),
        ("False", true, 0),
        ("", true, 0),
        ("1", true, 1),
        ("yes", true, 1),
        ("on", true, 1),
        ("truee", true, 1),
    ];
    for (value, enabled, said) in cases {
        let variables = [("NEMO_GYM_OTEL_ENABLED", "1"), ("OTEL_SDK_DISABLED", value)];
        let (settings, warnings) = resolve(&variables);
        assert_eq!((settings.enabled, settings.sdk_disabled, warnings.len()), (enabled, !enabled, said), "{value}");
    }
}

/// ENV-04: propagators.
#[test]
fn otel_propagators() {
    let choice = |trace_context, baggage| PropagatorChoice { trace_context, baggage };
    let cases = [
        ("none", choice(false, false), 0),
        (" NONE ", choice(false, false), 0),
        ("TraceContext, baggage", choice(true, true), 0),
        ("baggage,tracecontext,baggage", choice(true, true), 0),
        ("tracecontext", choice(true, false), 0),
        ("baggage", choice(false, true), 0),
        ("b3", choice(true, true), 1),
        ("bogus,tracecontext", choice(true, false), 1),
        ("b3,xray,baggage", choice(false, true), 1),
        ("bogus", choice(true, true), 1),
        (",", choice(true, true), 1),
        ("none,tracecontext", choice(true, false), 1),
        ("none,bogus", choice(false, false), 1),
    ];
    for (value, expected, said) in cases {
        let (settings, warnings) = resolve(&[("OTEL_PROPAGATORS", value)]);
        assert_eq!((settings.propagators, warnings.len()), (expected, said), "{value}: {warnings:?}");
    }
}

/// ENV-05: samplers, in any case and padding, and their argument.
#[test]
fn samplers() {
    use RootSampler::{AlwaysOff, AlwaysOn, TraceIdRatio};
    let names = [
        ("always_on", false, AlwaysOn),
        ("always_off", false, AlwaysOff),
        ("traceidratio", false, TraceIdRatio(1.0)),
        ("parentbased_always_on", true, AlwaysOn),
        ("parentbased_always_off", true, AlwaysOff),
        ("parentbased_traceidratio", true, TraceIdRatio(1.0)),
    ];
    for (name, parent_based, root) in names {
        let capitalised = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
        for spelling in [name.to_owned(), name.to_uppercase(), format!(" {name}\t"), capitalised] {
            let (settings, warnings) = resolve(&[("OTEL_TRACES_SAMPLER", &spelling)]);
            assert_eq!(settings.sampler, SamplerChoice { parent_based, root }, "{spelling}");
            assert_eq!(warnings, [""; 0]);
        }
    }
    for unknown in ["jaeger_remote", "xray", "always", "parentbased_", "parentbased_parentbased_always_on", "0.5"] {
        let (settings, warnings) = resolve(&[("OTEL_TRACES_SAMPLER", unknown)]);
        assert_eq!(settings.sampler, SamplerChoice { parent_based: true, root: AlwaysOn }, "{unknown}");
        assert_eq!(warnings.len(), 1, "{unknown}");
    }
    let arguments = [
        ("0", 0.0, 0),
        ("0.5", 0.5, 0),
        (" 1 ", 1.0, 0),
        ("1e-2", 0.01, 0),
        ("", 1.0, 0),
        ("1.5", 1.0, 1),
        ("-1", 1.0, 1),
        ("nan", 1.0, 1),
        ("inf", 1.0, 1),
        ("10%", 1.0, 1),
        ("half", 1.0, 1),
        ("0,5", 1.0, 1),
    ];
    for sampler in ["traceidratio", "parentbased_traceidratio"] {
        for (argument, ratio, said) in arguments {
            let (settings, warnings) =
                resolve(&[("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)]);
            assert_eq!(settings.sampler.root, TraceIdRatio(ratio), "{argument}");
            assert_eq!(warnings.len(), said, "{argument}: {warnings:?}");
        }
    }
    // Nobody reads an argument of a sampler that has none.
    let (_, warnings) = resolve(&[("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_TRACES_SAMPLER_ARG", "10%")]);
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn exporters_of_signals() {
    use ExporterChoice::{Console, Off, Otlp};
    let cases = [
        ("otlp", Otlp, 0),
        ("OTLP", Otlp, 0),
        ("console", Console, 0),
        (" None ", Off, 0),
        ("none,none", Off, 0),
        ("jaeger", Console, 1),
        ("zipkin,otlp", Otlp, 1),
        ("otlp,console", Otlp, 1),
        (",", Console, 1),
    ];
    for (value, expected, said) in cases {
        // The default of a signal's exporter is Gym's.
        let gym = [("NEMO_GYM_OTEL_EXPORTER", "console"), ("NEMO_GYM_OTEL_LOGS_ENABLED", "1")];
        let of = |name| resolve(&[gym[0], gym[1], (name, value)]);
        let (settings, warnings) = of("OTEL_TRACES_EXPORTER");
        assert_eq!((settings.traces, settings.metrics, settings.logs), (expected, Console, Console), "{value}");
        assert_eq!(warnings.len(), said, "{value}: {warnings:?}");
        let (settings, _) = of("OTEL_METRICS_EXPORTER");
        assert_eq!((settings.traces, settings.metrics, settings.logs), (Console, expected, Console), "{value}");
        let (settings, _) = of("OTEL_LOGS_EXPORTER");
        assert_eq!((settings.traces, settings.metrics, settings.logs), (Console, Console, expected), "{value}");
    }
    // An exporter's name does not switch its signal on.
    assert_eq!(resolve(&[("OTEL_LOGS_EXPORTER", "otlp")]).0.logs, Off);
    assert_eq!(resolve(&[("OTEL_TRACES_EXPORTER", "otlp"), ("NEMO_GYM_OTEL_TRACES_ENABLED", "0")]).0.traces, Off);
}

/// A block's own texts are read as the variables are, and the field is named.
#[test]
fn bad_fields_are_heard_and_harmless() {
    let mut block = TelemetryConfig::default();
    block.enabled = true;
    block.exporter = "jaeger hunter2".to_owned();
    block.span_groups = "default,verfy".to_owned();
    block.otlp_protocol = Some("carrier-pigeon hunter2".to_owned());
    block.otlp_endpoint = Some("not a url hunter2".to_owned());
    block.otlp_headers = Some("a=1,hunter2".to_owned());
    let (settings, warnings) = Settings::resolve(&Environment::default(), Some(&block));
    assert!(settings.enabled);
    assert_eq!(settings.traces, ExporterChoice::Otlp);
    assert_eq!(settings.span_groups, SpanGroups::DEFAULT);
    assert_eq!((settings.otlp_logs.protocol, settings.otlp_logs.endpoint), (OtlpProtocol::Grpc, None));
    assert_eq!(settings.otlp_logs.headers, [("a".to_owned(), "1".to_owned())]);
    let fields: Vec<_> = warnings.iter().filter_map(|w| w.split(' ').next()).collect();
    let expected = ["span_groups", "exporter", "otlp_endpoint", "otlp_protocol", "otlp_headers"];
    assert_eq!(fields, expected.map(|field| format!("telemetry.{field}")));
    assert!(!warnings.concat().contains("hunter2"), "{warnings:?}");
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
