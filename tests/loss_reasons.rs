//! Every loss has a name, the counts leave the process as `otel.sdk.*` metrics, and the operator hears of it.

mod otlp_support;
mod signals_support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::trace::{Tracer as _, TracerProvider as _};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point};
use otlp_support::{ClosedPort, Collector, Received, Reply};

fn telemetry(url: &str, protocol: &str, more: &[(&str, &str)]) -> Telemetry {
    let mut environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ]);
    for (name, value) in more {
        environment.set(*name, *value);
    }
    Telemetry::builder().with_environment(environment).build()
}

fn spans(telemetry: &Telemetry, count: usize) {
    let tracer = telemetry.tracer_provider().tracer("test");
    (0..count).for_each(|_| drop(tracer.start("span")));
}

const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];

#[test]
fn refusals_are_counted_by_status() {
    for (protocol, reply, reason) in [
        ("http/protobuf", Reply::Refuse(503, None), "503"),
        ("http/protobuf", Reply::Refuse(400, None), "400"),
        ("http/protobuf", Reply::Refuse(401, None), "401"),
        ("grpc", Reply::Grpc(14), "UNAVAILABLE"),
        ("grpc", Reply::Grpc(3), "INVALID_ARGUMENT"),
        ("grpc", Reply::Grpc(16), "UNAUTHENTICATED"),
        ("http/protobuf", Reply::Hang, "timeout"),
        ("grpc", Reply::Hang, "timeout"),
        ("http/protobuf", Reply::Reset, "network_error"),
        ("grpc", Reply::Reset, "network_error"),
    ] {
        let answer = reply.clone();
        let collector = Collector::with(move |_| answer.clone());
        let telemetry = telemetry(&collector.url(), protocol, &[]);
        spans(&telemetry, 7);
        let began = Instant::now();
        if ["503", "UNAVAILABLE", "network_error"].contains(&reason) {
            // It may pass: the spans are kept, whatever the timeout, until the process ends.
            signals_support::eventually(reason, || {
                began.elapsed() > Duration::from_secs(1)
                    && collector.look(|received| received.calls_of("trace").len() > 3)
            });
            assert_eq!(telemetry.delivery().spans.lost_total(), 0, "{protocol} {reply:?}");
        } else {
            signals_support::eventually(reason, || telemetry.delivery().spans.lost_total() == 7);
        }
        let delivery = telemetry.shutdown_blocking(Duration::from_secs(5)).delivery.spans;
        assert_eq!(delivery.lost, BTreeMap::from([(reason.to_owned(), 7)]), "{protocol} {reply:?}");
        assert_eq!(delivery.exported, 0);
    }
}

#[test]
fn a_missing_collector_is_a_network_error() {
    let port = ClosedPort::reserve();
    for protocol in PROTOCOLS {
        let telemetry = telemetry(&format!("http://{}", port.address), protocol, &[]);
        spans(&telemetry, 3);
        let delivery = telemetry.shutdown_blocking(Duration::from_secs(5)).delivery.spans;
        assert_eq!(delivery.lost, BTreeMap::from([("network_error".to_owned(), 3)]), "{protocol}");
    }
}

#[test]
fn a_partial_success_splits_the_batch() {
    for protocol in PROTOCOLS {
        let collector = Collector::with(|call| match call.signal {
            "trace" => Reply::Partial(2),
            _ => Reply::Take,
        });
        let telemetry = telemetry(&collector.url(), protocol, &[("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
        spans(&telemetry, 10);
        let delivery = telemetry.shutdown_blocking(Duration::from_secs(10)).delivery.spans;
        assert_eq!((delivery.exported, delivery.lost.get("rejected")), (8, Some(&2)), "{protocol}");
    }
}

/// The newest points of a sum, by the values of their attributes in alphabetical order of keys.
fn newest(received: &Received, name: &str) -> BTreeMap<String, i64> {
    let scopes = received.metrics.iter().flat_map(|r| &r.resource_metrics).flat_map(|r| &r.scope_metrics);
    let Some(metric) = scopes.flat_map(|scope| &scope.metrics).rfind(|m| m.name == name) else {
        return BTreeMap::new();
    };
    let Some(Data::Sum(sum)) = &metric.data else { panic!("{name} is not a sum: {metric:?}") };
    assert!(sum.is_monotonic);
    let text = |kv: &KeyValue| match kv.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => format!("{}={text}", kv.key),
        Some(Value::IntValue(number)) => format!("{}={number}", kv.key),
        other => panic!("{other:?}"),
    };
    let points = sum.data_points.iter().map(|point| {
        let mut attributes: Vec<_> = point.attributes.iter().map(text).collect();
        attributes.sort();
        let Some(number_data_point::Value::AsInt(value)) = point.value else { panic!("{point:?}") };
        (attributes.join(" "), value)
    });
    points.collect()
}

#[test]
fn the_counts_are_exported_as_the_semantic_conventions_name_them() {
    for (protocol, kind) in [("grpc", "otlp_grpc"), ("http/protobuf", "otlp_http")] {
        let collector = Collector::with(|call| match (call.signal, call.before) {
            ("trace", 0) if call.grpc => Reply::Grpc(3),
            ("trace", 0) => Reply::Refuse(400, None),
            ("trace", _) => Reply::Partial(1),
            _ => Reply::Take,
        });
        let more = [("NEMO_GYM_OTEL_LOGS_ENABLED", "1"), ("OTEL_BSP_SCHEDULE_DELAY", "60000")];
        let telemetry = telemetry(&collector.url(), protocol, &more);
        spans(&telemetry, 4);
        let _ = telemetry.tracer_provider().force_flush();
        spans(&telemetry, 5);
        telemetry.tracer_provider().force_flush().unwrap();
        telemetry.shutdown_blocking(Duration::from_secs(10));

        let server = format!("server.address=127.0.0.1 server.port={}", collector.port());
        let exporter =
            |name: &str| format!("otel.component.name={kind}_{name}/0 otel.component.type={kind}_{name} {server}");
        let processor = "otel.component.name=batching_span_processor/0 otel.component.type=batching_span_processor";
        let refused = if protocol == "grpc" { "INVALID_ARGUMENT" } else { "400" };
        collector.look(|received| {
            assert_eq!(
                newest(received, "otel.sdk.processor.span.processed"),
                BTreeMap::from([(processor.to_owned(), 9)]),
                "{protocol}"
            );
            let span = exporter("span_exporter");
            assert_eq!(
                newest(received, "otel.sdk.exporter.span.exported"),
                BTreeMap::from([
                    (span.clone(), 4),
                    (format!("error.type={refused} {span}"), 4),
                    (format!("error.type=rejected {span}"), 1),
                ]),
                "{protocol}"
            );
            let logs = newest(received, "otel.sdk.exporter.log.exported");
            assert_eq!(logs, BTreeMap::from([(exporter("log_exporter"), 0)]), "{protocol}");
            assert!(
                newest(received, "otel.sdk.processor.log.processed").contains_key(&processor.replace("span", "log"))
            );
            let points = newest(received, "otel.sdk.exporter.metric_data_point.exported");
            assert!(points[&exporter("metric_exporter")] >= 0, "{points:?}");
        });
    }
}

#[test]
#[ignore = "a process of its own"]
fn child_that_loses_spans() {
    if !signals_support::is_child() {
        return;
    }
    let telemetry = Telemetry::builder().build();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(12) {
        spans(&telemetry, 10);
        std::thread::sleep(Duration::from_millis(50));
    }
    telemetry.shutdown_blocking(Duration::from_secs(2));
}

#[test]
fn the_operator_hears_of_losses_seldom_and_in_total_at_the_end() {
    let collector = Collector::with(|_| Reply::Refuse(400, None));
    let child = signals_support::child(
        "child_that_loses_spans",
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url().as_str()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
        ],
    );
    let (_, stderr) = signals_support::run(child);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("nemo_gym_telemetry")).collect();
    // 12 s of losing: at most two lines, and the last one.
    assert!((2..=3).contains(&lines.len()), "{lines:#?}");
    let last = lines.last().unwrap();
    assert!(last.contains("telemetry was lost. spans: 0 exported, ") && last.contains("400 "), "{last}");
}
