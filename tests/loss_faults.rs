//! produced = exported + lost, exactly, whatever happens between a server and its collector.

mod signals_support;

use std::collections::HashSet;
use std::time::Duration;

use nemo_gym_telemetry::{Environment, SignalDelivery, Telemetry};
use opentelemetry::logs::{LogRecord as _, Logger as _, LoggerProvider as _};
use opentelemetry::trace::{Span as _, Tracer as _, TracerProvider as _};
use signals_support::proxy::{Fault, Proxy};
use signals_support::sink::Sink;

const FAULTS: [Fault; 7] = [
    Fault::None,
    Fault::Delay(Duration::from_millis(150)),
    Fault::Reset,
    Fault::Unavailable,
    Fault::LoseAnswer,
    Fault::Hang,
    Fault::None,
];

fn telemetry(proxy: &Proxy, protocol: &str) -> Telemetry {
    let url = proxy.url();
    let environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "400"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "400"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "50"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "20"),
        ("OTEL_BLRP_MAX_QUEUE_SIZE", "400"),
        ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ]);
    Telemetry::builder().with_environment(environment).build()
}

/// Ids of what was made.
#[derive(Default)]
struct Made {
    spans: HashSet<String>,
    records: HashSet<String>,
}

impl Made {
    fn more(&mut self, telemetry: &Telemetry, count: usize) {
        let tracer = telemetry.tracer_provider().tracer("test");
        let logger = telemetry.logger_provider().unwrap().logger("test");
        for _ in 0..count {
            let mut span = tracer.start("span");
            let id = span.span_context().span_id().to_string();
            span.end();
            let mut record = logger.create_log_record();
            record.set_body(id.clone().into());
            logger.emit(record);
            self.spans.insert(id.clone());
            self.records.insert(id);
        }
    }
}

/// The books agree with each other and with what the sink has.
fn check(what: &str, delivery: &SignalDelivery, produced: &HashSet<String>, stored: &HashSet<String>) {
    assert_eq!(delivery.in_flight, 0, "{what}: {delivery}");
    assert_eq!(delivery.exported + delivery.lost_total(), produced.len() as u64, "{what}: {delivery}");
    assert!(stored.is_subset(produced), "{what}: something was stored that nobody made");
    let missing = produced.difference(stored).count() as u64;
    // What an answer was lost for may be stored; what was never stored is among the lost.
    assert!(missing <= delivery.lost_total(), "{what}: {missing} are missing; {delivery}");
    assert!(delivery.exported <= stored.len() as u64, "{what}: {} stored; {delivery}", stored.len());
    assert!(delivery.exported > 0 && delivery.lost_total() > 0, "{what}: both must have happened; {delivery}");
}

fn faults(protocol: &str) {
    let Some(sink) = Sink::start() else { return };
    let proxy = Proxy::start(if protocol == "grpc" { sink.grpc } else { sink.http });
    let telemetry = telemetry(&proxy, protocol);
    let mut made = Made::default();
    for fault in FAULTS {
        proxy.set(fault);
        let struck = proxy.struck();
        // A while under this fault, and until it has struck.
        for _ in 0..20 {
            made.more(&telemetry, 25);
            std::thread::sleep(Duration::from_millis(20));
        }
        if fault != Fault::None {
            signals_support::eventually("the fault strikes", || {
                made.more(&telemetry, 1);
                proxy.struck() > struck
            });
        }
    }
    proxy.set(Fault::None);
    let before = telemetry.delivery();
    signals_support::eventually("data flows again", || {
        made.more(&telemetry, 1);
        let now = telemetry.delivery();
        now.spans.exported > before.spans.exported && now.log_records.exported > before.log_records.exported
    });
    let report = telemetry.shutdown_blocking(Duration::from_secs(30));
    assert!(!report.timed_out, "{report:?}");
    let (spans, _) = sink.span_ids();
    check("spans", &report.delivery.spans, &made.spans, &spans);
    let records = sink.log_bodies().into_iter().collect();
    check("log records", &report.delivery.log_records, &made.records, &records);
    assert_eq!(telemetry.delivery(), report.delivery, "nothing is counted after the report");
}

#[test]
fn over_http() {
    faults("http/protobuf");
}

#[test]
fn over_grpc() {
    faults("grpc");
}

/// The collector goes away for good and the shutdown does not wait for it.
#[test]
fn a_shutdown_without_a_collector_counts_everything() {
    let Some(sink) = Sink::start() else { return };
    for protocol in ["http/protobuf", "grpc"] {
        let proxy = Proxy::start(if protocol == "grpc" { sink.grpc } else { sink.http });
        let telemetry = telemetry(&proxy, protocol);
        let logger = telemetry.logger_provider().unwrap().logger("kept");
        let mut made = Made::default();
        made.more(&telemetry, 100);
        signals_support::eventually("the first export", || telemetry.delivery().spans.exported > 0);
        proxy.set(Fault::Hang);
        made.more(&telemetry, 1000);
        let report = telemetry.shutdown_blocking(Duration::from_millis(1500));
        let delivery = &report.delivery.spans;
        assert_eq!(delivery.exported + delivery.lost_total(), made.spans.len() as u64, "{protocol}: {delivery}");
        let records = &report.delivery.log_records;
        assert_eq!(records.exported + records.lost_total(), made.records.len() as u64, "{protocol}: {records}");
        logger.emit(logger.create_log_record());
        assert_eq!(telemetry.delivery().log_records.lost.get("already_shutdown"), Some(&1), "{protocol}");
    }
}
