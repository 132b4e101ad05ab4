//! A collector that is gone for good. Alone in its process: what is asserted on is the process's memory.

mod otlp_support;
mod signals_support;

use std::time::Duration;

use opentelemetry::logs::{LogRecord as _, Logger as _, LoggerProvider as _};
use opentelemetry::trace::TracerProvider as _;
use otlp_support::{Collector, Reply};
use signals_support::load::{request, telemetry};

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
