//! Casebook ENV-03: bad values are heard and harmless; numbers are bounded.

use std::time::Duration;

use opentelemetry_sdk::metrics::Temporality;

use crate::config::settings::{ExporterChoice, OtlpProtocol, RootSampler, SamplerChoice, Settings};
use crate::config::{Environment, TelemetryConfig, parse, variables};
use crate::span_group::SpanGroups;

pub(super) fn resolve(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
    Settings::resolve(&variables.iter().copied().collect(), None)
}

/// Settings without the generated run id.
pub(super) fn comparable((settings, warnings): (Settings, Vec<String>)) -> (Settings, Vec<String>) {
    (Settings { run_id: String::new(), ..settings }, warnings)
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
            // Judged by the exporters.
            "_ENDPOINT",
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
    assert!(tried > 50, "{tried}");
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

/// A block's own texts are read as the variables are, and the field is named.
#[test]
fn bad_fields_are_heard_and_harmless() {
    let mut block = TelemetryConfig::default();
    block.enabled = true;
    block.exporter = "jaeger hunter2".to_owned();
    block.span_groups = "default,verfy".to_owned();
    block.otlp_protocol = Some("carrier-pigeon hunter2".to_owned());
    block.otlp_headers = Some("a=1,hunter2".to_owned());
    let (settings, warnings) = Settings::resolve(&Environment::default(), Some(&block));
    assert!(settings.enabled);
    assert_eq!(settings.traces, ExporterChoice::Otlp);
    assert_eq!(settings.span_groups, SpanGroups::DEFAULT);
    assert_eq!(settings.otlp_logs.protocol, OtlpProtocol::Grpc);
    assert_eq!(settings.otlp_logs.headers, [("a".to_owned(), "1".to_owned())]);
    let fields: Vec<_> = warnings.iter().filter_map(|w| w.split(' ').next()).collect();
    let expected = ["span_groups", "exporter", "otlp_protocol", "otlp_headers"];
    assert_eq!(fields, expected.map(|field| format!("telemetry.{field}")));
    assert!(!warnings.concat().contains("hunter2"), "{warnings:?}");
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

/// What must hold whatever the environment says: no spin, no empty queue, nothing absurd.
pub(super) fn check_bounds(settings: &Settings) {
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
