//! Bursts over a slow collector (casebook PERF-02).

mod otlp_support;
mod signals_support;

use std::time::Duration;

use nemo_gym_telemetry::Telemetry;
use opentelemetry::trace::TracerProvider as _;
use otlp_support::{Collector, Reply};
use signals_support::load::{request, telemetry};

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
