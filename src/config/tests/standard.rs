//! Casebook ENV-04 and ENV-05, and the other words of the OpenTelemetry specification.

use super::values::resolve;
use crate::config::settings::{ExporterChoice, PropagatorChoice, RootSampler, SamplerChoice};

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
