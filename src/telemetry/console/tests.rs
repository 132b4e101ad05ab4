//! Console lines against upstream's recorded ones, against Python itself, and under many threads.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, StringValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::{SdkMeterProvider, Temporality};
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::*;

/// A place for lines that tests can read.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Short writes, as pipes make them.
        let part = &bytes[..bytes.len().min(7)];
        self.0.lock().unwrap().extend_from_slice(part);
        Ok(part.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn writer(&self) -> LineWriter {
        LineWriter::other(self.clone())
    }

    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        text.lines().map(str::to_owned).collect()
    }
}

fn resource() -> Resource {
    Resource::builder_empty()
        .with_attributes([
            KeyValue::new("zz.custom", "last"),
            KeyValue::new("process.pid", 17619),
            KeyValue::new("service.name", "nemo-gym/example_agent"),
            KeyValue::new("nv.dl.rank", 0),
            KeyValue::new("aa.custom", "after the known"),
            KeyValue::new("service.instance.id", "fleetrun0001-example_agent-17619"),
            KeyValue::new("telemetry.sdk.language", "rust"),
        ])
        .build()
}

fn tracers(lines: &Lines) -> SdkTracerProvider {
    SdkTracerProvider::builder()
        .with_resource(resource())
        .with_simple_exporter(ConsoleSpanExporter::new(lines.writer()))
        .build()
}

fn attributes() -> Vec<KeyValue> {
    vec![
        KeyValue::new("http.request.method", "POST"),
        KeyValue::new("http.response.status_code", 200),
        KeyValue::new("ratio", 0.1 + 0.2),
        KeyValue::new("whole", 5.0),
        KeyValue::new("large", 1e22),
        KeyValue::new("small", 1.5e-7),
        KeyValue::new("flag", true),
        KeyValue::new("text", "é\u{2028}😀 \"quoted\" \\ \n\t\u{1}\u{7f}"),
        KeyValue::new("texts", opentelemetry::Value::Array(vec![StringValue::from("a"), "ü".into()].into())),
        KeyValue::new("floats", opentelemetry::Value::Array(vec![1.0, 2.5e-10].into())),
        KeyValue::new("integers", opentelemetry::Value::Array(vec![1_i64, -2].into())),
        KeyValue::new("flags", opentelemetry::Value::Array(vec![true, false].into())),
        KeyValue::new("flag", false),
    ]
}

fn span_lines() -> Vec<String> {
    let lines = Lines::default();
    let provider = tracers(&lines);
    let tracer = provider.tracer("test");
    let mut root = tracer.span_builder("POST /run").with_kind(SpanKind::Server).start(&tracer);
    root.set_status(Status::error("verifier said no"));
    root.add_event("exception", vec![KeyValue::new("exception.type", "ValueError")]);
    root.set_attributes(attributes());
    let parent = Context::new().with_span(root);
    let state = TraceState::from_key_value([("a", "1"), ("b", "it's")]).unwrap();
    let linked = SpanContext::new(TraceId::from(7), SpanId::from(8), TraceFlags::SAMPLED, true, state);
    let mut child = tracer
        .span_builder("child")
        .with_kind(SpanKind::Client)
        .with_links(vec![Link::new(linked, vec![KeyValue::new("kind", "job")], 0)])
        .start_with_context(&tracer, &parent);
    child.end();
    parent.span().end();
    lines.take()
}

fn metric_lines(temporality: Temporality) -> Vec<String> {
    let lines = Lines::default();
    let exporter = ConsoleMetricExporter::new(lines.writer(), temporality);
    let provider = SdkMeterProvider::builder().with_resource(resource()).with_periodic_exporter(exporter).build();
    let meter = provider.meter("nemo.lens");
    meter.u64_counter("counter").with_unit("1").with_description("d").build().add(3, &attributes());
    meter.i64_up_down_counter("active").with_unit("{request}").build().add(-1, &[]);
    meter.f64_gauge("rate").build().record(1.0, &[]);
    meter.f64_histogram("duration").with_unit("s").with_boundaries(vec![0.005, 1.0, 10.0]).build().record(2.5, &[]);
    provider.meter("other").u64_counter("more").build().add(1, &[]);
    provider.force_flush().unwrap();
    let taken = lines.take();
    assert_eq!(taken.len(), 1, "one line per collection");
    taken
}

fn log_lines() -> Vec<String> {
    let lines = Lines::default();
    let provider = SdkLoggerProvider::builder()
        .with_resource(resource())
        .with_simple_exporter(ConsoleLogExporter::new(lines.writer()))
        .build();
    let logger = provider.logger("test");
    let record = |body: AnyValue| {
        let mut record = logger.create_log_record();
        record.set_body(body);
        record.set_severity_number(Severity::Warn);
        record.set_severity_text("WARN");
        record.set_timestamp(SystemTime::UNIX_EPOCH + Duration::from_nanos(1_796_037_887_711_965_999));
        record.add_attribute("code.line.number", 8);
        record
    };
    let context = SpanContext::new(TraceId::from(5), SpanId::from(6), TraceFlags::SAMPLED, true, TraceState::default());
    {
        let _attached = Context::new().with_remote_span_context(context).attach();
        logger.emit(record("two\nlines".into()));
    }
    logger.emit(record("outside".into()));
    let mut bare = logger.create_log_record();
    bare.set_body(AnyValue::Bytes(Box::new(vec![1, 2, 255])));
    logger.emit(bare);
    lines.take()
}

/// A JSON value with the order of its keys.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Object(Vec<(String, Shape)>),
    Array(Vec<Shape>),
    Text(String),
    Integer,
    Float,
    Boolean,
    Null,
}

impl<'de> serde::Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Shape;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("JSON")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Shape::Object(members))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Shape::Array(items))
            }
            fn visit_str<E>(self, text: &str) -> Result<Shape, E> {
                Ok(Shape::Text(text.to_owned()))
            }
            fn visit_u64<E>(self, _: u64) -> Result<Shape, E> {
                Ok(Shape::Integer)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
                Ok(Shape::Integer)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
                Ok(Shape::Float)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
                Ok(Shape::Boolean)
            }
            fn visit_unit<E>(self) -> Result<Shape, E> {
                Ok(Shape::Null)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Shape {
    fn of(line: &str) -> Shape {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn keys(&self) -> Vec<&str> {
        match self {
            Shape::Object(members) => members.iter().map(|(key, _)| key.as_str()).collect(),
            other => panic!("not an object: {other:?}"),
        }
    }

    fn at(&self, path: &str) -> &Shape {
        path.split('/').fold(self, |shape, step| match shape {
            Shape::Object(members) => {
                &members
                    .iter()
                    .find(|(key, _)| key == step)
                    .unwrap_or_else(|| panic!("no {step} of {path}: {shape:?}"))
                    .1
            }
            Shape::Array(items) => &items[step.parse::<usize>().unwrap()],
            other => panic!("{path}: {other:?}"),
        })
    }

    fn items(&self) -> &[Shape] {
        match self {
            Shape::Array(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    fn text(&self) -> &str {
        match self {
            Shape::Text(text) => text,
            other => panic!("not a text: {other:?}"),
        }
    }
}

fn golden() -> Vec<Shape> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/console_lines.jsonl");
    std::fs::read_to_string(path).unwrap().lines().map(Shape::of).collect()
}

/// Same keys in the same order, whatever the values.
fn assert_same_keys(ours: &Shape, upstream: &Shape, path: &str) {
    assert_eq!(ours.at(path).keys(), upstream.at(path).keys(), "{path}");
}

#[test]
fn span_lines_have_upstreams_shape_and_plain_ids() {
    let lines = span_lines();
    let (child, root) = (Shape::of(&lines[0]), Shape::of(&lines[1]));
    let golden = golden();
    let upstream: Vec<&Shape> = golden.iter().filter(|shape| shape.keys().contains(&"parent_id")).collect();
    let failed = upstream.iter().find(|shape| shape.at("status").keys().len() == 2).unwrap();

    let mut expected = failed.keys();
    expected.extend(["trace_id", "span_id"]);
    assert_eq!(root.keys(), expected);
    assert_eq!(child.keys(), expected);
    for path in ["context", "status", "events/0"] {
        assert_same_keys(&root, failed, path);
    }
    assert_same_keys(&root, failed, "resource");
    assert_eq!(
        root.at("resource/attributes").keys(),
        [
            "telemetry.sdk.language",
            "service.instance.id",
            "service.name",
            "nv.dl.rank",
            "process.pid",
            "aa.custom",
            "zz.custom",
        ]
    );
    assert_eq!(root.at("parent_id"), &Shape::Null);
    assert_eq!(child.at("parent_id").text(), root.at("context/span_id").text());
    assert_eq!(root.at("context/trace_id").text(), format!("0x{}", root.at("trace_id").text()));
    assert_eq!(root.at("context/span_id").text(), format!("0x{}", root.at("span_id").text()));
    assert_eq!((root.at("kind").text(), child.at("kind").text()), ("SpanKind.SERVER", "SpanKind.CLIENT"));
    assert_eq!(root.at("status/description").text(), "verifier said no");
    assert_eq!(child.at("status").keys(), ["status_code"]);
    assert_eq!(child.at("links/0").keys(), ["context", "attributes"]);
    assert_eq!(child.at("links/0/context/trace_id").text(), "0x00000000000000000000000000000007");
    assert_eq!(child.at("links/0/context/trace_state").text(), r#"['{key=a, value=1}', "{key=b, value=it's}"]"#);
    // Each key once, with its last value.
    assert_eq!(root.at("attributes").keys().iter().filter(|key| **key == "flag").count(), 1);
    assert!(lines[1].contains(r#""flag": false"#));
    assert_eq!(root.at("start_time").text().len(), failed.at("start_time").text().len());
}

#[test]
fn metric_lines_have_upstreams_shape() {
    let line = Shape::of(&metric_lines(Temporality::Cumulative)[0]);
    let golden = golden();
    let upstream: Vec<&Shape> = golden.iter().filter(|shape| shape.keys() == ["resource_metrics"]).collect();
    let upstream_metric = |like: fn(&Shape) -> bool| {
        let scopes = upstream.iter().flat_map(|line| line.at("resource_metrics/0/scope_metrics").items());
        scopes.flat_map(|scope| scope.at("metrics").items()).find(|metric| like(metric.at("data"))).unwrap()
    };
    assert_same_keys(&line, upstream[0], "resource_metrics/0");
    assert_same_keys(&line, upstream[0], "resource_metrics/0/scope_metrics/0");
    assert_same_keys(&line, upstream[0], "resource_metrics/0/scope_metrics/0/scope");
    let scopes = line.at("resource_metrics/0/scope_metrics").items();
    assert_eq!(scopes.len(), 2);
    assert_eq!(scopes[0].at("scope/attributes"), &Shape::Null);

    let metric = |name: &str| {
        let all = scopes.iter().flat_map(|scope| scope.at("metrics").items());
        all.into_iter().find(|metric| metric.at("name").text() == name).unwrap()
    };
    let is_sum = |data: &Shape| data.keys().contains(&"is_monotonic");
    let is_gauge = |data: &Shape| data.keys() == ["data_points"];
    let is_histogram = |data: &Shape| data.at("data_points/0").keys().contains(&"bucket_counts");
    for (name, like) in
        [("counter", is_sum as fn(&Shape) -> bool), ("active", is_sum), ("rate", is_gauge), ("duration", is_histogram)]
    {
        let (ours, theirs) = (metric(name), upstream_metric(like));
        assert_eq!(ours.keys(), theirs.keys());
        assert_same_keys(ours, theirs, "data");
        assert_same_keys(ours, theirs, "data/data_points/0");
    }
    assert_eq!(metric("counter").at("data/data_points/0/value"), &Shape::Integer);
    assert_eq!(metric("rate").at("data/data_points/0/value"), &Shape::Float);
    assert_eq!(metric("rate").at("data/data_points/0/start_time_unix_nano"), &Shape::Null);
    assert_eq!(metric("duration").at("data/data_points/0/explicit_bounds/1"), &Shape::Float);
    assert!(metric_lines(Temporality::Cumulative)[0].contains(r#""aggregation_temporality": 2, "is_monotonic": true"#));
    assert!(metric_lines(Temporality::Delta)[0].contains(r#""aggregation_temporality": 1, "is_monotonic": true"#));
}

#[test]
fn log_lines_have_upstreams_shape_and_no_ids_outside_a_span() {
    let lines = log_lines();
    let golden = golden();
    let upstream = golden.iter().find(|shape| shape.keys().contains(&"severity_number")).unwrap();
    for line in &lines {
        assert_eq!(Shape::of(line).keys(), upstream.keys());
    }
    let (inside, outside) = (Shape::of(&lines[0]), Shape::of(&lines[1]));
    assert_eq!(inside.at("body").text(), "two\nlines");
    assert_eq!(inside.at("trace_id").text(), "00000000000000000000000000000005");
    assert_eq!(inside.at("span_id").text(), "0000000000000006");
    assert_eq!(inside.at("timestamp").text(), "2026-11-30T11:24:47.711965Z");
    assert_eq!((outside.at("trace_id"), outside.at("span_id")), (&Shape::Null, &Shape::Null));
    assert_eq!(Shape::of(&lines[2]).at("body").text(), "AQL/");
}

#[test]
fn python_would_write_the_same_bytes() {
    let python = std::env::var_os("NEMO_GYM_PYTHON")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python"), PathBuf::from);
    if !python.exists() {
        assert_ne!(
            std::env::var("NEMO_GYM_TELEMETRY_REQUIRE_ALL").as_deref(),
            Ok("1"),
            "no Python at {}",
            python.display()
        );
        eprintln!("skipped: no Python at {}", python.display());
        return;
    }
    let mut lines = span_lines();
    lines.extend(metric_lines(Temporality::Cumulative));
    lines.extend(log_lines());
    let check = "import json, sys\n\
                 for line in sys.stdin.read().splitlines():\n    \
                 again = json.dumps(json.loads(line))\n    \
                 assert again == line, (line, again)";
    let mut child = Command::new(python).args(["-c", check]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn lines_of_sixteen_threads_are_whole() {
    let lines = Lines::default();
    let writer = lines.writer();
    let logs = ConsoleLogExporter::new(writer.clone());
    let loggers = SdkLoggerProvider::builder().with_simple_exporter(logs).build();
    let spans = ConsoleSpanExporter::new(writer);
    let tracers = SdkTracerProvider::builder().with_simple_exporter(spans).build();
    let made = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for i in 0..50 {
                    let mut record = loggers.logger("t").create_log_record();
                    record.set_body(format!("line one\nline two {i} {}", "x".repeat(i * 40)).into());
                    loggers.logger("t").emit(record);
                    tracers.tracer("t").start("span").end();
                    made.fetch_add(2, SeqCst);
                }
            });
        }
    });
    let taken = lines.take();
    assert_eq!(taken.len(), made.load(SeqCst));
    for line in &taken {
        assert!(matches!(Shape::of(line), Shape::Object(_)));
    }
}

/// A reader that has gone away.
struct Closed(Arc<AtomicUsize>);

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        self.0.fetch_add(1, SeqCst);
        Err(ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_an_error_and_is_not_tried_again() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let exporter = ConsoleSpanExporter::new(LineWriter::other(Closed(Arc::clone(&attempts))));
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    for _ in 0..10 {
        provider.tracer("t").start("span").end();
    }
    assert_eq!(attempts.load(SeqCst), 1);
}

/// A non-blocking pipe that is full every other time.
struct Busy(Lines, bool);

impl Write for Busy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 { Err(ErrorKind::WouldBlock.into()) } else { self.0.write(bytes) }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_pipe_is_waited_for() {
    let lines = Lines::default();
    let exporter = ConsoleSpanExporter::new(LineWriter::other(Busy(lines.clone(), false)));
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    provider.tracer("t").start("span").end();
    assert_eq!(lines.take().len(), 1);
}
