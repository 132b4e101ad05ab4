//! Requests arrive at the path that the endpoint means, for all signals (casebook EXP-01).

mod otlp_support;

use std::collections::BTreeSet;
use std::time::Duration;

use nemo_gym_telemetry::config::TelemetryConfig;
use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::logs::{LogRecord, Logger, LoggerProvider};
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::Collector;

/// Sends one item of each signal and returns where the requests went.
fn paths(collector: &Collector, variables: &[(&str, String)], config: Option<TelemetryConfig>) -> BTreeSet<String> {
    let mut environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
        ("CUDA_VISIBLE_DEVICES", ""),
    ]);
    environment.set("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    for (name, value) in variables {
        environment.set(*name, value.as_str());
    }
    let builder = Telemetry::builder().with_environment(environment);
    let telemetry = match config {
        Some(config) => builder.with_config(config).build(),
        None => builder.build(),
    };
    drop(telemetry.tracer_provider().tracer("test").start("span"));
    telemetry.meter_provider().meter("test").u64_counter("count").build().add(1, &[]);
    let logger = telemetry.logger_provider().unwrap().logger("test");
    let mut record = logger.create_log_record();
    record.set_body("log".into());
    logger.emit(record);
    let report = telemetry.shutdown_blocking(Duration::from_secs(10));
    assert!(report.delivery.is_complete(), "{report:?}");
    collector.look(|r| r.paths().into_keys().collect())
}

fn set(paths: [&str; 3]) -> BTreeSet<String> {
    paths.map(str::to_owned).into()
}

#[test]
fn the_general_variable_is_a_base() {
    for (suffix, prefix) in [
        ("", ""),
        ("/", ""),
        ("/base", "/base"),
        ("/base/", "/base"),
        ("//", ""),
        ("/v1/traces", ""),
        ("/b/v1/logs/", "/b"),
    ] {
        let collector = Collector::start();
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{}{suffix}", collector.url()));
        let expected = ["traces", "metrics", "logs"].map(|signal| format!("{prefix}/v1/{signal}"));
        assert_eq!(paths(&collector, &[endpoint], None), expected.into(), "{suffix}");
    }
}

#[test]
fn the_block_s_endpoint_is_a_base_too() {
    let collector = Collector::start();
    let mut config = TelemetryConfig::default();
    config.otlp_endpoint = Some(format!("{}/base/", collector.url()));
    assert_eq!(paths(&collector, &[], Some(config)), set(["/base/v1/traces", "/base/v1/metrics", "/base/v1/logs"]));
}

#[test]
fn a_signal_s_own_variable_is_used_as_it_is() {
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1/never".to_owned()),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{}/custom/trace", collector.url())),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("{}/metrics/", collector.url())),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", format!("{}/v1/logs/v1/logs", collector.url())),
    ];
    assert_eq!(paths(&collector, &variables, None), set(["/custom/trace", "/metrics/", "/v1/logs/v1/logs"]));
}

#[test]
fn a_signal_s_own_url_without_a_path_is_the_root() {
    let collector = Collector::start();
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url())];
    assert_eq!(paths(&collector, &variables, None), set(["/", "/v1/metrics", "/v1/logs"]));
}

#[test]
fn signals_can_go_to_different_collectors_by_different_protocols() {
    let (grpc, http) = (Collector::start(), Collector::start());
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", http.url()),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", grpc.url()),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc".to_owned()),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip".to_owned()),
    ];
    assert_eq!(paths(&http, &variables, None), ["/v1/metrics", "/v1/traces"].map(str::to_owned).into());
    let compressed = http.look(|r| r.calls_of("metrics")[0].headers["content-encoding"] == "gzip");
    assert!(compressed && http.look(|r| r.calls_of("trace")[0].headers.get("content-encoding").is_none()));
    grpc.look(|r| {
        assert_eq!(
            r.paths().into_keys().collect::<Vec<_>>(),
            ["/opentelemetry.proto.collector.logs.v1.LogsService/Export"]
        );
        assert_eq!(r.logs.len(), 1);
    });
}

#[test]
fn grpc_compresses_too() {
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".to_owned()),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip".to_owned()),
    ];
    assert_eq!(paths(&collector, &variables, None).len(), 3);
    collector.look(|r| {
        assert_eq!((r.spans.as_slice(), r.logs.len()), (["span".to_owned()].as_slice(), 1));
        assert!(r.calls.iter().all(|call| call.headers["grpc-encoding"] == "gzip"));
    });
}

#[test]
fn names_and_ipv6_addresses_are_hosts_too() {
    for protocol in otlp_support::PROTOCOLS {
        let collector = Collector::start();
        let by_name = ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://localhost:{}", collector.port()));
        paths(&collector, &[by_name, ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol.to_owned())], None);
        assert_eq!(collector.look(|r| r.spans.len()), 1, "{protocol}");

        let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else {
            eprintln!("skipped: no IPv6 on this machine");
            continue;
        };
        let collector = Collector::on(listener, |_| otlp_support::Reply::Take);
        let by_address = ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("HTTP://[::1]:{}", collector.port()));
        paths(&collector, &[by_address, ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol.to_owned())], None);
        assert_eq!(collector.look(|r| r.spans.len()), 1, "{protocol}");
    }
}

/// Refused endpoints start nothing, say so once, and leave the other signals alone.
#[test]
fn a_refused_endpoint_switches_its_signal_off() {
    let messages = otlp_support::Messages::capture();
    for protocol in otlp_support::PROTOCOLS {
        for bad in ["http:///v1/traces", "ftp://127.0.0.1:1", "http://127.0.0.1 :1", "://", "http://4318"] {
            let collector = Collector::start();
            let variables = [
                ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol.to_owned()),
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", bad.to_owned()),
            ];
            let before = messages.all().len();
            let arrived = paths(&collector, &variables, None);
            assert_eq!(arrived.len(), 2, "{protocol}, {bad}: {arrived:?}");
            let said = messages.all().split_off(before);
            assert_eq!(said.matches("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").count(), 1, "{protocol}, {bad}: {said}");
        }
    }
}

#[test]
fn one_reason_for_all_signals_is_one_line() {
    let messages = otlp_support::Messages::capture();
    for protocol in otlp_support::PROTOCOLS {
        let before = messages.all().len();
        let mut environment = otlp_support::environment("gopher://h", protocol);
        environment.set("NEMO_GYM_OTEL_LOGS_ENABLED", "1");
        let telemetry = Telemetry::builder().with_environment(environment).build();
        let said = messages.all().split_off(before);
        let said: Vec<_> = said.lines().filter(|line| line.contains("gopher")).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].contains("OTEL_EXPORTER_OTLP_ENDPOINT") && said[0].contains("traces, metrics, logs"),
            "{said:?}"
        );
        assert!(telemetry.is_enabled(), "context still passes");
        assert!(!telemetry.is_metrics_exporter_active() && telemetry.logger_provider().is_none());
    }
}
