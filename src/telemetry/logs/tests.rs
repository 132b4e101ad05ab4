//! The layer over in-memory exporters.

use opentelemetry::logs::{AnyValue, Severity};
use opentelemetry::trace::{SpanId, Status, TraceContextExt as _, TraceId, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::logs::{InMemoryLogExporter, SdkLogRecord, SdkLoggerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracer, SdkTracerProvider, SpanData};
use tracing::{Dispatch, dispatcher, error, error_span, info, info_span, trace, trace_span, warn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;

use super::*;

struct Rig {
    dispatch: Dispatch,
    logs: InMemoryLogExporter,
    spans: InMemorySpanExporter,
    tracer: SdkTracer,
    _providers: (SdkTracerProvider, SdkLoggerProvider),
}

impl Rig {
    fn new(directives: &str, logs_on: bool) -> Self {
        let (logs, spans) = (InMemoryLogExporter::default(), InMemorySpanExporter::default());
        let loggers = SdkLoggerProvider::builder().with_simple_exporter(logs.clone()).build();
        let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let tracer = tracers.tracer("direct");
        let layer = layer_with(Some(tracers.tracer("bridge")), logs_on.then_some(&loggers), directives);
        let dispatch = Dispatch::new(Registry::default().with(layer));
        Self { dispatch, logs, spans, tracer, _providers: (tracers, loggers) }
    }

    fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        dispatcher::with_default(&self.dispatch, work)
    }

    fn records(&self) -> Vec<SdkLogRecord> {
        self.logs.get_emitted_logs().unwrap().into_iter().map(|log| log.record).collect()
    }

    fn bodies(&self) -> Vec<String> {
        let text = |body: &AnyValue| match body {
            AnyValue::String(text) => text.to_string(),
            other => panic!("{other:?}"),
        };
        self.records().iter().map(|record| text(record.body().unwrap())).collect()
    }

    fn span(&self, name: &str) -> SpanData {
        let spans = self.spans.get_finished_spans().unwrap();
        spans.into_iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name}"))
    }
}

fn ids(record: &SdkLogRecord) -> Option<(TraceId, SpanId)> {
    record.trace_context().map(|context| (context.trace_id, context.span_id))
}

fn ids_of(span: &SpanData) -> Option<(TraceId, SpanId)> {
    Some((span.span_context.trace_id(), span.span_context.span_id()))
}

fn attribute(record: &SdkLogRecord, key: &str) -> Option<AnyValue> {
    record.attributes_iter().find(|(known, _)| known.as_str() == key).map(|(_, value)| value.clone())
}

fn span_attribute(attributes: &[KeyValue], key: &str) -> Option<Value> {
    attributes.iter().rev().find(|attribute| attribute.key.as_str() == key).map(|attribute| attribute.value.clone())
}

#[test]
fn records_carry_severity_place_and_typed_fields() {
    let rig = Rig::new("", true);
    rig.run(|| {
        info!("hello\nworld");
        warn!(count = 7u64, ratio = 0.5, ok = true, name = "x", big = u64::MAX, wide = 5i128, debug = ?[1], "w");
        error!(name: "my.event", error = "broken", "e");
        trace!("not at info");
    });
    let records = rig.records();
    assert_eq!(rig.bodies(), ["hello\nworld", "w", "e"]);
    let severities: Vec<_> =
        records.iter().map(|r| (r.severity_number().unwrap(), r.severity_text().unwrap())).collect();
    assert_eq!(severities, [(Severity::Info, "INFO"), (Severity::Warn, "WARN"), (Severity::Error, "ERROR")]);
    assert_eq!(severities.map_numbers(), [9, 13, 17]);

    let warned = &records[1];
    assert_eq!(attribute(warned, "count"), Some(AnyValue::Int(7)));
    assert_eq!(attribute(warned, "ratio"), Some(AnyValue::Double(0.5)));
    assert_eq!(attribute(warned, "ok"), Some(AnyValue::Boolean(true)));
    assert_eq!(attribute(warned, "name"), Some(AnyValue::String("x".into())));
    assert_eq!(attribute(warned, "big"), Some(AnyValue::String(u64::MAX.to_string().into())));
    assert_eq!(attribute(warned, "wide"), Some(AnyValue::Int(5)));
    assert_eq!(attribute(warned, "debug"), Some(AnyValue::String("[1]".into())));
    assert_eq!(attribute(warned, "code.file.path"), Some(AnyValue::String(file!().into())));
    assert_eq!(attribute(warned, "code.function.name"), Some(AnyValue::String(module_path!().into())));
    assert!(matches!(attribute(warned, "code.line.number"), Some(AnyValue::Int(line)) if line > 0));
    assert_eq!(warned.target().unwrap(), module_path!());
    assert_eq!(warned.event_name(), None);
    assert_eq!(records[2].event_name(), Some("my.event"));
    assert_eq!(attribute(&records[2], "exception.message"), Some(AnyValue::String("broken".into())));
}

trait Numbers {
    fn map_numbers(&self) -> Vec<i32>;
}

impl Numbers for Vec<(Severity, &str)> {
    fn map_numbers(&self) -> Vec<i32> {
        self.iter().map(|(severity, _)| *severity as i32).collect()
    }
}

#[test]
fn an_errors_causes_are_told() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);
    let rig = Rig::new("", true);
    let failure = Outer("x".parse::<i32>().unwrap_err());
    rig.run(|| error!(failure = &failure as &dyn std::error::Error, "failed"));
    let message = attribute(&rig.records()[0], "exception.message");
    assert_eq!(message, Some(AnyValue::String("outer: invalid digit found in string".into())));
}

#[test]
fn ids_are_those_of_the_active_span_and_none_outside() {
    let rig = Rig::new("info", true);
    rig.run(|| {
        info!("outside");
        let direct = rig.tracer.start("direct");
        let context = Context::current_with_span(direct);
        let guard = context.clone().attach();
        info!("direct");
        let inner = info_span!("inner");
        inner.in_scope(|| {
            info!("inner");
            trace_span!("filtered").in_scope(|| info!("filtered"));
            info!(parent: None, "root");
            rig.tracer.in_span("below", |_| info!("below"));
        });
        info!(parent: &inner, "explicit");
        drop((inner, guard));
        context.span().end();
        info!("after");
    });
    let records = rig.records();
    let by_body = |body: &str| ids(&records[rig.bodies().iter().position(|b| b == body).unwrap()]);
    let (direct, inner, below) = (rig.span("direct"), rig.span("inner"), rig.span("below"));
    assert_eq!(by_body("outside"), None);
    assert_eq!(by_body("direct"), ids_of(&direct));
    assert_eq!(by_body("inner"), ids_of(&inner));
    assert_eq!(by_body("filtered"), ids_of(&inner));
    assert_eq!(by_body("root"), None);
    assert_eq!(by_body("below"), ids_of(&below));
    assert_eq!(by_body("explicit"), ids_of(&inner));
    assert_eq!(by_body("after"), None);
    assert_eq!(inner.parent_span_id, direct.span_context.span_id());
    assert_eq!(below.parent_span_id, inner.span_context.span_id());
    assert_eq!(inner.span_context.trace_id(), direct.span_context.trace_id());
}

#[test]
fn rust_log_rules_records_and_never_spans() {
    let rig = Rig::new("off", true);
    rig.run(|| info_span!("span").in_scope(|| error!("unheard")));
    assert_eq!(rig.records().len(), 0);
    rig.span("span");

    let rig = Rig::new("warn,my_target=trace", true);
    rig.run(|| {
        info!("unheard");
        trace!(target: "my_target::deep", "heard");
        warn!("heard too");
    });
    assert_eq!(rig.bodies(), ["heard", "heard too"]);

    let rig = Rig::new("no[such{directive", true);
    rig.run(|| info!("default"));
    assert_eq!(rig.bodies(), ["default"]);
}

#[test]
fn exporters_libraries_and_suppressed_threads_are_never_heard() {
    for logs_on in [true, false] {
        let rig = Rig::new("trace,hyper=trace,h2=trace,opentelemetry=trace", logs_on);
        rig.run(|| {
            info_span!("mine").in_scope(|| {
                trace!(target: "hyper::proto", "hyper");
                error!(target: "h2::codec", "h2");
                error!(target: "opentelemetry-otlp", "otlp");
                error!(target: "tower_http::trace", "tower");
                error_span!(target: "h2::client", "h2 span").in_scope(|| {});
                let _suppressed = Context::enter_telemetry_suppressed_scope();
                error!("suppressed");
                info_span!("suppressed span").in_scope(|| {});
            });
        });
        assert_eq!(rig.records().len(), 0);
        let spans = rig.spans.get_finished_spans().unwrap();
        assert_eq!(spans.iter().map(|span| span.name.as_ref()).collect::<Vec<_>>(), ["mine"]);
        assert_eq!(spans[0].status, Status::Unset);
        assert_eq!(spans[0].events.len(), 0);
    }
}

#[test]
fn integers_of_spans_stay_integers() {
    let rig = Rig::new("", true);
    rig.run(|| {
        let span = info_span!(
            "span",
            port = 8080u16,
            wide = 7u128,
            huge = u64::MAX,
            later = tracing::field::Empty,
            twice = 1u64
        );
        span.record("later", 9u64);
        span.record("twice", "text");
        span.in_scope(|| {});
        drop(span);
        drop(info_span!("never entered", port = 1u16));
    });
    let span = rig.span("span");
    for (key, value) in [
        ("port", Value::I64(8080)),
        ("wide", Value::I64(7)),
        ("huge", Value::String(u64::MAX.to_string().into())),
        ("later", Value::I64(9)),
        ("twice", Value::String("text".into())),
    ] {
        assert_eq!(span_attribute(&span.attributes, key), Some(value), "{key}");
    }
    assert_eq!(span_attribute(&rig.span("never entered").attributes, "port"), Some(Value::I64(1)));
}

#[test]
fn without_logs_events_belong_to_their_tracing_span() {
    let rig = Rig::new("", false);
    rig.run(|| {
        let direct = rig.tracer.start("direct");
        let context = Context::current_with_span(direct);
        let guard = context.clone().attach();
        error!("not a span's");
        info_span!("span").in_scope(|| {
            info!(size = 3u64, "step");
            error!(error = "boom", "failed");
        });
        drop(guard);
        context.span().end();
    });
    let span = rig.span("span");
    let names: Vec<_> = span.events.iter().map(|event| event.name.as_ref()).collect();
    assert_eq!(names, ["step", "exception"]);
    assert_eq!(span_attribute(&span.events[0].attributes, "size"), Some(Value::I64(3)));
    assert_eq!(span_attribute(&span.events[1].attributes, "exception.message"), Some("boom".into()));
    assert_eq!(span.status, Status::error("boom"));
    let direct = rig.span("direct");
    assert_eq!((direct.status, direct.events.len()), (Status::Unset, 0));
}

#[test]
fn with_logs_only_errors_concern_a_span() {
    let rig = Rig::new("", true);
    rig.run(|| {
        info_span!("span").in_scope(|| {
            info!("step");
            error!("plain");
        });
    });
    let span = rig.span("span");
    assert_eq!((span.events.len(), span.status), (0, Status::error("")));
    assert_eq!(rig.bodies(), ["step", "plain"]);
}

#[test]
fn records_of_the_log_crate_keep_their_place() {
    let rig = Rig::new("info,quiet=warn", true);
    rig.run(|| {
        let log = |level, target: &str| {
            let record = log::Record::builder()
                .level(level)
                .target(target)
                .module_path(Some("my::module"))
                .file(Some("src/my.rs"))
                .line(Some(12))
                .args(format_args!("from log"))
                .build();
            tracing_log::format_trace(&record).unwrap();
        };
        log(log::Level::Warn, "my::target");
        log(log::Level::Error, "hyper::proto");
        log(log::Level::Debug, "my::target");
        log(log::Level::Info, "quiet");
    });
    let records = rig.records();
    assert_eq!(records.len(), 1, "{records:?}");
    let record = &records[0];
    assert_eq!(record.target().unwrap(), "my::target");
    assert_eq!(record.severity_number(), Some(Severity::Warn));
    assert_eq!(attribute(record, "code.file.path"), Some(AnyValue::String("src/my.rs".into())));
    assert_eq!(attribute(record, "code.function.name"), Some(AnyValue::String("my::module".into())));
    assert_eq!(attribute(record, "code.line.number"), Some(AnyValue::Int(12)));
    assert_eq!(record.event_name(), None);
    assert_eq!(record.attributes_iter().count(), 3, "{record:?}");
}

#[test]
fn nothing_is_enabled_where_nothing_is_exported() {
    let layer = layer_with::<Registry>(None, None, "trace");
    let dispatch = Dispatch::new(Registry::default().with(layer));
    dispatcher::with_default(&dispatch, || {
        assert!(!tracing::enabled!(tracing::Level::ERROR));
        info_span!("span").in_scope(|| error!("unheard"));
    });
}

#[test]
fn directives_about_spans_work_and_other_layers_stay_undisturbed() {
    let rig = Rig::new("error,[inside]=debug", true);
    rig.run(|| {
        tracing::debug!("outside");
        info_span!("inside").in_scope(|| tracing::debug!("inside"));
    });
    assert_eq!(rig.bodies(), ["inside"]);
    rig.span("inside");
}
