//! Against a receiver that nobody here wrote: Google's gRPC and protobuf, refusing what a strict peer refuses.
//!
//! Needs Python with `grpcio`, `opentelemetry-proto` and `protobuf`, and the sink itself; skipped without.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use opentelemetry::logs::{LogRecord, Logger, LoggerProvider};
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Array, KeyValue, Value};
use serde_json::Value as Json;
use tempfile::TempDir;

struct Sink {
    child: Child,
    directory: TempDir,
    grpc: u16,
    http: u16,
}

impl Sink {
    /// `None`: skipped, and said so.
    fn start() -> Option<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let shared = std::env::var_os("NEMO_GYM_SHARED").map_or_else(|| manifest.join("../shared"), PathBuf::from);
        let python =
            std::env::var_os("NEMO_GYM_PYTHON").map_or_else(|| manifest.join(".venv/bin/python"), PathBuf::from);
        let script = shared.join("otlp/otlp_sink.py");
        if !python.exists() || !script.exists() {
            let required = std::env::var("NEMO_GYM_TELEMETRY_REQUIRE_ALL").is_ok_and(|value| value == "1");
            assert!(!required, "{} or {} is missing", python.display(), script.display());
            eprintln!("skipped: no Python environment or no shared sink");
            return None;
        }
        let directory = TempDir::new().unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (grpc, http) = (free(), free());
        let child = Command::new(python)
            .arg(script)
            .args(["--grpc", &grpc.to_string(), "--http", &http.to_string(), "--out"])
            .arg(directory.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let sink = Self { child, directory, grpc, http };
        let began = Instant::now();
        while !sink.directory.path().join("ready").exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "the sink does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(sink)
    }

    fn requests(&self, kind: &str) -> Vec<Json> {
        let text = fs::read_to_string(self.directory.path().join(format!("{kind}.jsonl"))).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn attributes(list: &Json) -> BTreeMap<&str, &Json> {
    list.as_array().unwrap().iter().map(|kv| (kv["key"].as_str().unwrap(), &kv["value"])).collect()
}

#[test]
fn a_strict_receiver_takes_every_signal_over_both_protocols() {
    let Some(sink) = Sink::start() else { return };
    for (protocol, port) in [("grpc", sink.grpc), ("http/protobuf", sink.http)] {
        for gzip in [false, true] {
            let mut environment = Environment::from_iter([
                ("NEMO_GYM_OTEL_ENABLED", "1"),
                ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
                ("NEMO_GYM_OTEL_RUN_ID", "run-1"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%2Cb"),
                ("CUDA_VISIBLE_DEVICES", ""),
            ]);
            environment.set("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}"));
            if gzip {
                environment.set("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
            }
            let before = ["traces", "metrics", "logs"].map(|kind| sink.requests(kind).len());
            let identity = ServerIdentity::new("strict", ServerType::ResourcesServers);
            let telemetry = Telemetry::builder().with_environment(environment).with_identity(identity).build();
            emit(&telemetry);
            let report = telemetry.shutdown_blocking(Duration::from_secs(10));
            assert!(report.delivery.is_complete() && !report.timed_out, "{protocol}, gzip {gzip}: {report:?}");
            let fresh = |index: usize, kind: &str| sink.requests(kind).split_off(before[index]);
            check(&fresh(0, "traces"), &fresh(1, "metrics"), &fresh(2, "logs"), protocol);
        }
    }
}

fn emit(telemetry: &Telemetry) {
    let tracer = telemetry.tracer_provider().tracer("test");
    let mut span = tracer
        .span_builder("POST /verify")
        .with_kind(SpanKind::Server)
        .with_attributes([
            KeyValue::new("text", "grüße"),
            KeyValue::new("number", 7_i64),
            KeyValue::new("share", 0.5),
            KeyValue::new("flag", true),
            KeyValue::new("list", Value::Array(Array::String(vec!["a".into(), "b".into()]))),
        ])
        .start(&tracer);
    // The strict sink refuses a repeated key.
    span.set_attribute(KeyValue::new("number", 8_i64));
    span.add_event("event", vec![KeyValue::new("k", "v")]);
    span.set_status(Status::error("went wrong"));
    span.end();
    let meter = telemetry.meter_provider().meter("test");
    meter.u64_counter("count").build().add(3, &[KeyValue::new("k", "v")]);
    meter.f64_histogram("duration").build().record(0.25, &[]);
    meter.i64_gauge("level").build().record(-4, &[]);
    let logger = telemetry.logger_provider().unwrap().logger("test");
    let mut record = logger.create_log_record();
    record.set_body("a line".into());
    record.set_severity_number(opentelemetry::logs::Severity::Info);
    logger.emit(record);
}

fn check(traces: &[Json], metrics: &[Json], logs: &[Json], protocol: &str) {
    assert_eq!((traces.len(), metrics.len(), logs.len()), (1, 1, 1));
    let resource = attributes(&traces[0]["resourceSpans"][0]["resource"]["attributes"]);
    assert_eq!(resource["service.name"]["stringValue"], "nemo-gym/strict");
    assert_eq!(resource["nemo.run.id"]["stringValue"], "run-1");
    for (request, path) in [(&metrics[0], "resourceMetrics"), (&logs[0], "resourceLogs")] {
        assert_eq!(attributes(&request[path][0]["resource"]["attributes"]), resource);
    }
    for request in [&traces[0], &metrics[0], &logs[0]] {
        let headers = request["_headers"].as_object().unwrap();
        let tenant = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-tenant")).unwrap().1;
        assert_eq!((tenant, request["_protocol"].as_str()), (&Json::from("a,b"), Some(&protocol[..4])));
    }
    let span = &traces[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!((&span["name"], &span["kind"]), (&Json::from("POST /verify"), &Json::from("SPAN_KIND_SERVER")));
    let values = attributes(&span["attributes"]);
    assert_eq!(values["text"]["stringValue"], "grüße");
    assert_eq!(values["number"]["intValue"], "8");
    assert_eq!(values["list"]["arrayValue"]["values"][1]["stringValue"], "b");
    assert_eq!(span["status"]["message"], "went wrong");
    assert_eq!(span["events"][0]["name"], "event");
    let scopes = metrics[0]["resourceMetrics"][0]["scopeMetrics"].as_array().unwrap();
    let metric = |name: &str| {
        scopes
            .iter()
            .flat_map(|scope| scope["metrics"].as_array().unwrap())
            .find(|metric| metric["name"] == name)
            .unwrap()
    };
    assert_eq!(metric("count")["sum"]["dataPoints"][0]["asInt"], "3");
    assert_eq!(metric("count")["sum"]["aggregationTemporality"], "AGGREGATION_TEMPORALITY_CUMULATIVE");
    assert_eq!(metric("duration")["histogram"]["dataPoints"][0]["count"], "1");
    assert_eq!(metric("level")["gauge"]["dataPoints"][0]["asInt"], "-4");
    let record = &logs[0]["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
    assert_eq!(
        (&record["body"]["stringValue"], &record["severityNumber"]),
        (&Json::from("a line"), &Json::from("SEVERITY_NUMBER_INFO"))
    );
}

/// Real ports, mixed up.
#[test]
fn a_mix_up_with_a_real_receiver_is_said() {
    let Some(sink) = Sink::start() else { return };
    for (protocol, port, advice) in
        [("grpc", sink.http, "http/protobuf"), ("http/protobuf", sink.grpc, "PROTOCOL=grpc")]
    {
        let endpoint = format!("http://127.0.0.1:{port}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--ignored"]).env("NEMO_GYM_OTEL_ENABLED", "1");
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint).env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
        let output = command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "1000").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let said: Vec<_> = stderr.lines().filter(|line| line.contains(&format!("127.0.0.1:{port}"))).collect();
        assert!(said.len() == 1 && said[0].contains(advice), "{protocol}: {stderr}");
    }
}

/// Not a test of its own: what the child process does.
#[test]
#[ignore = "run by the other test in a child process"]
fn child() {
    let telemetry = Telemetry::builder().build();
    drop(telemetry.tracer_provider().tracer("test").start("span"));
    telemetry.shutdown_blocking(Duration::from_secs(5));
}
