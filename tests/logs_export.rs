//! Log records from `tracing` and `log` to the collector: whole, correlated, and never about the export itself
//! (casebook LOG-01, LOG-02).

mod otlp_support;
mod signals_support;

use std::time::Duration;

use axum::Router;
use axum::routing::post;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{ServerIdentity, ServerType, Telemetry, init_telemetry, init_tracing};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use otlp_support::{Collector, Received, Reply};
use signals_support::{child, is_child, run};
use tracing::{debug, error, info, info_span, trace_span, warn};

fn identity() -> ServerIdentity {
    ServerIdentity::new("logging_server", ServerType::ResourcesServers)
}

async fn handler() -> &'static str {
    info!(answer = 42u64, "in the handler");
    info_span!("inner").in_scope(|| {
        warn!("in a span");
        trace_span!("filtered").in_scope(|| error!("in a filtered span"));
    });
    log::warn!("through the log crate");
    let blocking = nemo_gym_telemetry::span::spawn_blocking(|| info!("in spawn_blocking"));
    let _ = blocking.await;
    tokio::task::spawn_blocking(|| info!("outside of any span")).await.unwrap();
    info!("first line\nsecond line");
    debug!("a detail");
    "ok"
}

/// One request over real sockets, to a server in this process.
async fn one_request(telemetry: &Telemetry) {
    let app = Router::new().route("/verify", post(handler)).layer(GymTelemetryLayer::new(telemetry));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/verify", listener.local_addr().unwrap());
    let server = tokio::spawn(axum::serve(listener, app).into_future());
    let answer = reqwest::Client::new().post(url).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "ok");
    server.abort();
}

#[test]
#[ignore = "a process of its own"]
fn child_that_serves_and_idles() {
    if !is_child() {
        return;
    }
    let telemetry = init_telemetry(identity());
    assert!(init_tracing(&telemetry));
    assert!(!init_tracing(&telemetry), "a global subscriber exists");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        one_request(&telemetry).await;
        // Whatever comes of the export: two idle intervals later all is quiet.
        telemetry.flush().await;
        let settled = settled(&telemetry).await;
        let metrics_before = metric_points(&telemetry);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let delivery = telemetry.delivery();
        assert_eq!((delivery.spans, delivery.log_records), settled, "an idle process exports metrics only");
        assert!(metric_points(&telemetry) > metrics_before);
        telemetry.shutdown().await;
    });
}

fn metric_points(telemetry: &Telemetry) -> u64 {
    let points = telemetry.delivery().metric_data_points;
    points.exported + points.lost_total()
}

/// The counts of spans and records once they change no more.
async fn settled(telemetry: &Telemetry) -> (nemo_gym_telemetry::SignalDelivery, nemo_gym_telemetry::SignalDelivery) {
    let mut last = telemetry.delivery();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = telemetry.delivery();
        let quiet = |before: &nemo_gym_telemetry::SignalDelivery, now: &nemo_gym_telemetry::SignalDelivery| {
            // A batch that waits for its collector's return is on its way as well, and may be for minutes.
            before == now && now.in_flight + now.exported + now.lost_total() > 0
        };
        if quiet(&last.spans, &now.spans) && quiet(&last.log_records, &now.log_records) {
            return (now.spans, now.log_records);
        }
        last = now;
    }
}

fn environment<'a>(url: &'a str, protocol: &'a str, rust_log: &'a str) -> [(&'a str, &'a str); 9] {
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
        ("NEMO_GYM_OTEL_SPAN_GROUPS", "all"),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "100"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
        ("RUST_LOG", rust_log),
    ]
}

/// Every record with its scope.
fn records(received: &Received) -> Vec<(String, LogRecord)> {
    let scopes = received.logs.iter().flat_map(|r| &r.resource_logs).flat_map(|r| &r.scope_logs);
    let name = |scope: &opentelemetry_proto::tonic::logs::v1::ScopeLogs| {
        scope.scope.as_ref().map(|scope| scope.name.clone()).unwrap_or_default()
    };
    scopes.flat_map(|scope| scope.log_records.iter().map(move |record| (name(scope), record.clone()))).collect()
}

fn body(record: &LogRecord) -> String {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    }
}

/// The ids of the one span of that name.
fn span_ids(received: &Received, name: &str) -> (Vec<u8>, Vec<u8>) {
    let scopes = received.traces.iter().flat_map(|r| &r.resource_spans).flat_map(|r| &r.scope_spans);
    let mut spans = scopes.flat_map(|scope| &scope.spans).filter(|span| span.name == name);
    let span = spans.next().unwrap_or_else(|| panic!("no span {name}; {:?}", received.spans));
    assert!(spans.next().is_none(), "more than one span {name}");
    (span.trace_id.clone(), span.span_id.clone())
}

#[test]
fn records_are_correlated_and_exports_never_log_themselves() {
    for (protocol, rust_log) in [("grpc", "trace"), ("http/protobuf", "trace"), ("grpc", "")] {
        let collector = Collector::start();
        run(child("child_that_serves_and_idles", &environment(&collector.url(), protocol, rust_log)));
        collector.look(|received| {
            let records = records(received);
            let record = |text: &str| {
                let mut found = records.iter().filter(|(_, record)| body(record) == text);
                let first = found.next().unwrap_or_else(|| panic!("no record {text:?}"));
                assert!(found.next().is_none(), "{text:?} came twice");
                first
            };
            let ids = |text: &str| (record(text).1.trace_id.clone(), record(text).1.span_id.clone());
            let (server, inner) = (span_ids(received, "POST /verify"), span_ids(received, "inner"));
            assert_eq!(server.0, inner.0, "one trace");
            let none = (Vec::new(), Vec::new());
            for (text, expected) in
                [("in a span", &inner), ("in a filtered span", &inner), ("outside of any span", &none)]
            {
                assert_eq!(&ids(text), expected, "{text}");
            }
            // The handler runs inside gym.verify, a child of the SERVER span.
            let handler = span_ids(received, "gym.verify");
            for text in ["in the handler", "through the log crate", "in spawn_blocking", "first line\nsecond line"] {
                assert_eq!(ids(text), handler, "{text}");
            }
            for (text, number, name) in
                [("in the handler", 9, "INFO"), ("in a span", 13, "WARN"), ("in a filtered span", 17, "ERROR")]
            {
                let record = &record(text).1;
                assert_eq!((record.severity_number, record.severity_text.as_str()), (number, name));
            }
            assert_eq!(record("in the handler").0, "logs_export", "the scope is the target");
            assert_eq!(record("through the log crate").0, "logs_export");
            let handled = &record("in the handler").1;
            let attribute = |key: &str| {
                let found = handled.attributes.iter().find(|kv| kv.key == key);
                found.and_then(|kv| kv.value.clone()).and_then(|value| value.value)
            };
            assert_eq!(attribute("answer"), Some(Value::IntValue(42)));
            assert_eq!(attribute("code.file.path"), Some(Value::StringValue(file!().to_owned())));
            assert!(matches!(attribute("code.line.number"), Some(Value::IntValue(_))));
            assert!(handled.attributes.iter().any(|kv| kv.key == "code.function.name"));
            assert_eq!(records.iter().any(|(_, record)| body(record) == "a detail"), rust_log == "trace");

            let excluded = ["hyper", "h2", "tonic", "reqwest", "rustls", "tower", "opentelemetry", "mio", "want"];
            for (scope, record) in &records {
                assert!(!excluded.iter().any(|name| scope.starts_with(name)), "{scope}: {}", body(record));
            }
            // The POSTs of the exporter and the test's bare client make no spans.
            let mut names = received.spans.clone();
            names.retain(|name| !name.starts_with("gym.server.startup"));
            names.sort();
            assert_eq!(names, ["POST /verify", "gym.verify", "inner"], "{protocol} {rust_log}");
        });
    }
}

#[test]
fn a_failing_export_does_not_feed_itself_either() {
    // For good, and for as long as it lasts.
    let failures = [
        ("grpc", Reply::Grpc(3)),
        ("grpc", Reply::Refuse(503, None)),
        ("http/protobuf", Reply::Refuse(400, None)),
        ("http/protobuf", Reply::Refuse(503, None)),
    ];
    std::thread::scope(|scope| {
        for (protocol, failure) in failures {
            scope.spawn(move || {
                let collector = Collector::with(move |call| match call.signal {
                    "metrics" => Reply::Take,
                    _ => failure.clone(),
                });
                run(child("child_that_serves_and_idles", &environment(&collector.url(), protocol, "trace")));
            });
        }
    });
}

#[test]
#[ignore = "a process of its own"]
fn child_with_a_subscriber_of_its_own() {
    use tracing_subscriber::prelude::*;
    if !is_child() {
        return;
    }
    let telemetry = init_telemetry(identity());
    let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(text).with(telemetry.tracing_layer()).init();
    assert!(!init_tracing(&telemetry));
    info_span!("mine").in_scope(|| info!("still heard"));
    telemetry.shutdown_blocking(Duration::from_secs(5));
    info!("after the shutdown");
}

#[test]
fn an_existing_subscriber_is_respected() {
    let collector = Collector::start();
    let url = collector.url();
    let environment = environment(&url, "grpc", "info");
    let (_, stderr) = run(child("child_with_a_subscriber_of_its_own", &environment));
    assert!(stderr.contains("still heard") && stderr.contains("after the shutdown"), "{stderr}");
    collector.look(|received| {
        let records = records(received);
        let bodies: Vec<_> = records.iter().map(|(_, record)| body(record)).collect();
        // This crate's own words are records as well: it says that a subscriber exists.
        assert!(bodies.contains(&"still heard".to_owned()), "{bodies:?}");
        assert_eq!(
            span_ids(received, "mine").1,
            records.iter().find(|(_, r)| body(r) == "still heard").unwrap().1.span_id
        );
    });
}
