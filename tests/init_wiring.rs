//! Settings reach what they are about: providers, exporters, propagators, the handle.

mod otlp_support;

use std::time::Duration;

use nemo_gym_telemetry::config::TelemetryConfig;
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, SpanGroup, SpanGroups, Telemetry};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Span, Tracer, TracerProvider};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use otlp_support::{Collector, environment};

fn with(collector: &Collector, variables: &[(&str, &str)]) -> Environment {
    let mut environment = environment(&collector.url(), "grpc");
    for (name, value) in variables {
        environment.set(*name, *value);
    }
    environment
}

fn emit(telemetry: &Telemetry) {
    drop(telemetry.tracer_provider().tracer("test").start("span"));
    telemetry.meter_provider().meter("test").u64_counter("count").build().add(1, &[]);
}

#[test]
fn off_by_default_and_by_word() {
    let collector = Collector::start();
    for variables in
        [&[("NEMO_GYM_OTEL_ENABLED", "")][..], &[("NEMO_GYM_OTEL_ENABLED", "0")], &[("OTEL_SDK_DISABLED", "TRUE")]]
    {
        let telemetry = Telemetry::builder().with_environment(with(&collector, variables)).build();
        assert!(!telemetry.is_enabled() && !telemetry.is_metrics_exporter_active(), "{variables:?}");
        emit(&telemetry);
        assert!(!telemetry.shutdown_blocking(Duration::from_secs(5)).timed_out);
    }
    assert!(collector.look(|r| r.calls.is_empty()));
}

/// An operator's off is off, whatever the code hands in.
#[test]
fn handed_in_providers_switch_telemetry_on_unless_the_environment_says_off() {
    for (variables, on) in [
        (&[][..], true),
        (&[("NEMO_GYM_OTEL_ENABLED", "0")], false),
        (&[("NEMO_LENS_ENABLED", "off")], false),
        (&[("OTEL_SDK_DISABLED", "true")], false),
        (&[("NEMO_GYM_OTEL_ENABLED", "1"), ("OTEL_SDK_DISABLED", "true")], false),
    ] {
        let environment: Environment = variables.iter().copied().collect();
        let telemetry = Telemetry::builder()
            .with_environment(environment)
            .with_tracer_provider(SdkTracerProvider::builder().build())
            .with_meter_provider(SdkMeterProvider::builder().build())
            .with_logger_provider(SdkLoggerProvider::builder().build())
            .build();
        assert_eq!(telemetry.is_enabled(), on, "{variables:?}");
        assert_eq!(telemetry.is_metrics_exporter_active(), on, "{variables:?}");
        assert_eq!(telemetry.logger_provider().is_some(), on, "{variables:?}");
    }
}

#[test]
fn signals_can_be_switched_off_one_by_one() {
    for (variable, value) in [
        ("NEMO_GYM_OTEL_TRACES_ENABLED", "0"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("NEMO_GYM_OTEL_METRICS_ENABLED", "0"),
        ("OTEL_METRICS_EXPORTER", "None"),
    ] {
        let collector = Collector::start();
        let telemetry = Telemetry::builder().with_environment(with(&collector, &[(variable, value)])).build();
        assert!(telemetry.is_enabled());
        let traces = !variable.contains("TRACES");
        assert_eq!(telemetry.is_metrics_exporter_active(), !traces, "{variable}");
        emit(&telemetry);
        telemetry.shutdown_blocking(Duration::from_secs(5));
        let arrived = collector.look(|r| (!r.traces.is_empty(), !r.metrics.is_empty()));
        assert_eq!(arrived, (traces, !traces), "{variable}");
    }
}

#[test]
fn the_sampler_is_the_environment_s() {
    let low = opentelemetry::trace::TraceId::from(1_u128 << 64);
    for (sampler, argument, root, child_of_sampled, child_of_unsampled) in [
        ("always_off", "", false, false, false),
        ("always_on", "", true, true, true),
        ("parentbased_always_off", "", false, true, false),
        ("ParentBased_Always_On", "", true, true, false),
        ("traceidratio", "0", false, false, false),
        ("parentbased_traceidratio", "0.0", false, true, false),
        ("parentbased_traceidratio", "1", true, true, false),
        ("no_such_sampler", "", true, true, false),
    ] {
        let collector = Collector::start();
        let variables = [("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)];
        let telemetry = Telemetry::builder().with_environment(with(&collector, &variables)).build();
        let tracer = telemetry.tracer_provider().tracer("test");
        let recording = |flags: Option<bool>| {
            use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceState};
            let context = match flags {
                None => opentelemetry::Context::new(),
                Some(sampled) => {
                    let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
                    let parent = SpanContext::new(low, SpanId::from(7), flags, true, TraceState::NONE);
                    opentelemetry::Context::new().with_remote_span_context(parent)
                }
            };
            tracer.start_with_context("span", &context).span_context().is_sampled()
        };
        let found = (recording(None), recording(Some(true)), recording(Some(false)));
        assert_eq!(found, (root, child_of_sampled, child_of_unsampled), "{sampler} {argument}");
        telemetry.shutdown_blocking(Duration::from_secs(5));
    }
}

#[test]
fn identity_resource_and_run_id() {
    let collector = Collector::start();
    let variables = [
        ("NEMO_GYM_OTEL_RUN_ID", "run-7"),
        ("OTEL_SERVICE_NAME", "fleet"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=gym%20one,broken"),
    ];
    let telemetry = Telemetry::builder()
        .with_environment(with(&collector, &variables))
        .with_default_identity(ServerIdentity::new("weather", ServerType::ResourcesServers))
        .with_service_version("9.8.7")
        .with_resource_attribute(KeyValue::new("extra", 3_i64))
        .build();
    assert_eq!((telemetry.run_id(), telemetry.identity().name()), ("run-7", Some("weather")));
    emit(&telemetry);
    telemetry.shutdown_blocking(Duration::from_secs(5));
    let resource = collector.look(|r| format!("{:?}", r.traces[0].resource_spans[0].resource));
    for expected in ["fleet/weather", "gym one", "9.8.7", "run-7", "resources_servers", "IntValue(3)", "weather"] {
        assert!(resource.contains(expected), "{expected} in {resource}");
    }
    assert_eq!(resource, collector.look(|r| format!("{:?}", r.metrics[0].resource_metrics[0].resource)));
}

#[test]
fn limits_and_temporality() {
    let collector = Collector::start();
    let variables = [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
    ];
    let telemetry = Telemetry::builder().with_environment(with(&collector, &variables)).build();
    let mut span = telemetry.tracer_provider().tracer("test").start("span");
    for key in ["a", "b", "c"] {
        span.set_attribute(KeyValue::new(key, "long text"));
    }
    drop(span);
    telemetry.meter_provider().meter("test").u64_counter("count").build().add(1, &[]);
    telemetry.shutdown_blocking(Duration::from_secs(5));
    collector.look(|r| {
        let span = &r.traces[0].resource_spans[0].scope_spans[0].spans[0];
        assert_eq!((span.attributes.len(), span.dropped_attributes_count), (2, 1));
        assert!(format!("{:?}", span.attributes).contains("\"lon\""), "{:?}", span.attributes);
        let metrics = r.metrics[0].resource_metrics[0].scope_metrics.iter().flat_map(|scope| &scope.metrics);
        let temporality = metrics.clone().find(|metric| metric.name == "count").map(|metric| match &metric.data {
            Some(Data::Sum(sum)) => sum.aggregation_temporality,
            _ => 0,
        });
        assert_eq!(temporality, Some(1));
    });
}

#[test]
fn the_block_is_read_and_the_environment_beats_it() {
    let collector = Collector::start();
    let mut config = TelemetryConfig::default();
    config.enabled = true;
    config.span_groups = "verify".to_owned();
    config.otlp_endpoint = Some(collector.url());
    config.run_id = Some("from block".to_owned());
    let environment = || Environment::from_iter([("CUDA_VISIBLE_DEVICES", "")]);
    let telemetry = Telemetry::builder().with_environment(environment()).with_config(config.clone()).build();
    assert_eq!(telemetry.span_groups(), SpanGroups::of(&[SpanGroup::Verify]));
    assert_eq!(telemetry.run_id(), "from block");
    emit(&telemetry);
    telemetry.shutdown_blocking(Duration::from_secs(5));
    assert_eq!(collector.look(|r| r.spans.clone()), ["span"]);

    let mut environment = environment();
    environment.set("NEMO_GYM_OTEL_SPAN_GROUPS", "agent");
    let telemetry = Telemetry::builder().with_environment(environment).with_config(config).build();
    assert_eq!(telemetry.span_groups(), SpanGroups::of(&[SpanGroup::Agent]));
}

/// `build` leaves the process alone; owned handles are independent of each other.
#[test]
fn owned_handles_do_not_touch_the_process() {
    let (one, other) = (Collector::start(), Collector::start());
    let first = Telemetry::builder().with_environment(with(&one, &[])).build();
    let second = Telemetry::builder().with_environment(with(&other, &[])).build();
    assert!(!nemo_gym_telemetry::get_telemetry().is_enabled());
    assert!(!nemo_gym_telemetry::is_span_group_enabled(SpanGroup::Server));
    drop(opentelemetry::global::tracer("test").start("nowhere"));
    emit(&first);
    first.shutdown_blocking(Duration::from_secs(5));
    assert!(second.is_enabled());
    emit(&second);
    second.shutdown_blocking(Duration::from_secs(5));
    assert_eq!(one.look(|r| r.spans.clone()), ["span"]);
    assert_eq!(other.look(|r| r.spans.clone()), ["span"]);
}
