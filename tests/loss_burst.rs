//! Bursts over a slow collector, and a collector that is gone for good (casebook PERF-02).

mod otlp_support;
mod signals_support;

use std::time::Duration;

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::logs::{LogRecord as _, Logger as _, LoggerProvider as _};
use opentelemetry::trace::{Span as _, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;
use otlp_support::{Collector, Reply};

fn telemetry(url: &str, more: &[(&str, &str)]) -> Telemetry {
    let mut environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_METRICS_EXPORTER", "none"),
    ]);
    for (name, value) in more {
        environment.set(*name, *value);
    }
    Telemetry::builder().with_environment(environment).build()
}

/// The two spans of a request, with attributes as the server layer makes them.
fn request(tracer: &SdkTracer, i: usize) {
    let server = tracer
        .span_builder("POST /v1/responses")
        .with_attributes(vec![
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new("url.scheme", "http"),
            KeyValue::new("url.path", format!("/v1/responses/{i}")),
            KeyValue::new("http.route", "/v1/responses"),
            KeyValue::new("server.address", "127.0.0.1".to_owned()),
            KeyValue::new("server.port", 8080),
            KeyValue::new("network.protocol.version", "1.1"),
            KeyValue::new("http.response.status_code", 200),
            KeyValue::new("user_agent.original", "Python/3.13 aiohttp/3.14.5".to_owned()),
            KeyValue::new("nemo.gym.rollout.id", format!("{i}-0")),
        ])
        .start(tracer);
    let context = Context::new().with_span(server);
    let inner = tracer.span_builder("gym.agent.responses").with_attributes(vec![
        KeyValue::new("nemo.gym.server.name", "example_agent"),
        KeyValue::new("nemo.gym.rollout.id", format!("{i}-0")),
    ]);
    inner.start_with_context(tracer, &context).end();
}

/// Requests on four threads at once.
fn burst(telemetry: &Telemetry, requests: usize) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let tracer = telemetry.tracer_provider().tracer("test");
                (0..requests / 4).for_each(|i| request(&tracer, i));
            });
        }
    });
}

/// 20 ms a batch: 16 384 requests with two spans each, all at once, and nothing lost.
#[test]
fn a_fan_out_of_rollouts_is_exported_whole() {
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Collector::with(|_| Reply::Slow(Duration::from_millis(20)));
        let telemetry = telemetry(&collector.url(), &[("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)]);
        burst(&telemetry, 16_384);
        let report = telemetry.shutdown_blocking(Duration::from_secs(50));
        assert!(report.delivery.is_complete(), "{protocol}: {}", report.delivery);
        assert_eq!(report.delivery.spans.exported, 16_384 * 2);
        assert_eq!(collector.look(|received| received.spans.len()), 16_384 * 2);
    }
}

/// 80 000 spans, 50 ms a batch: what the queue holds decides, and whatever does not fit is counted.
#[test]
fn what_does_not_fit_the_queue_is_counted() {
    for (queue, fits) in [("2048", false), ("100000", true)] {
        let collector = Collector::with(|_| Reply::Slow(Duration::from_millis(50)));
        let more = [("OTEL_BSP_MAX_QUEUE_SIZE", queue), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512")];
        let telemetry = telemetry(&collector.url(), &more);
        burst(&telemetry, 40_000);
        let delivery = telemetry.shutdown_blocking(Duration::from_secs(50)).delivery.spans;
        assert_eq!(delivery.exported + delivery.lost_total(), 80_000, "{queue}: {delivery}");
        assert_eq!(delivery.lost.contains_key("queue_full"), !fits, "{queue}: {delivery}");
        assert_eq!(delivery.lost_total() == 0, fits, "{queue}: {delivery}");
        assert_eq!(collector.look(|received| received.spans.len()) as u64, delivery.exported);
    }
}

/// Spans and log records without end, and nobody to take them: memory stays within the queues' bounds.
#[test]
fn memory_is_bounded_when_the_collector_is_gone() {
    let collector = Collector::with(|_| Reply::Hang);
    let telemetry = telemetry(&collector.url(), &[("NEMO_GYM_OTEL_LOGS_ENABLED", "1")]);
    let logger = telemetry.logger_provider().unwrap().logger("test");
    let tracer = telemetry.tracer_provider().tracer("test");
    // Warm: thread stacks, the runtime, the first buffers.
    (0..100).for_each(|i| request(&tracer, i));
    let before = signals_support::resident_memory();
    for i in 0..200_000 {
        request(&tracer, i);
        if i % 2 == 0 {
            let mut record = logger.create_log_record();
            record.set_body(format!("request {i} was answered").into());
            record.add_attribute("code.file.path", "src/server.rs".to_owned());
            record.add_attribute("code.line.number", 42);
            logger.emit(record);
        }
    }
    let grown = signals_support::resident_memory().saturating_sub(before);
    let delivery = telemetry.delivery();
    eprintln!("grown by {} MiB; {delivery}", grown >> 20);
    assert!(delivery.spans.lost.contains_key("queue_full"), "{delivery}");
    assert!(delivery.log_records.lost.contains_key("queue_full"), "{delivery}");
    assert!(grown < 128 << 20, "grown by {} MiB; {delivery}", grown >> 20);
    // However long the queue is, the report is complete.
    let report = telemetry.shutdown_blocking(Duration::from_millis(500));
    assert_eq!(report.delivery.spans.lost_total(), 400_200, "{}", report.delivery);
    assert_eq!(report.delivery.log_records.lost_total(), 100_000, "{}", report.delivery);
}
