//! Collectors that are absent, slow, failing, and back again (casebook EXP-05).

mod otlp_support;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nemo_gym_telemetry::Telemetry;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::{ClosedPort, Collector, Messages, PROTOCOLS, Reply, environment};

const INTERVAL: Duration = Duration::from_millis(500);

fn build(endpoint: &str, protocol: &str) -> Telemetry {
    let mut environment = environment(endpoint, protocol);
    environment.set("OTEL_BSP_SCHEDULE_DELAY", INTERVAL.as_millis().to_string());
    environment.set("OTEL_METRIC_EXPORT_INTERVAL", INTERVAL.as_millis().to_string());
    Telemetry::builder().with_environment(environment).build()
}

fn span(telemetry: &Telemetry, name: &'static str) {
    drop(telemetry.tracer_provider().tracer("test").start(name));
}

/// What the operator may have to wait for, with room for a busy machine.
fn soon() -> Duration {
    2 * INTERVAL + Duration::from_secs(3)
}

#[test]
fn absent_at_start_and_back_later() {
    let messages = Messages::capture();
    for protocol in PROTOCOLS {
        let port = ClosedPort::reserve();
        let address = port.address;
        let began = Instant::now();
        let telemetry = build(&format!("http://{address}"), protocol);
        assert!(began.elapsed() < Duration::from_secs(2));
        let outage = Instant::now();
        while outage.elapsed() < Duration::from_secs(4) {
            span(&telemetry, "during");
            thread::sleep(Duration::from_millis(20));
        }
        let collector = Collector::on(port.open(), |_| Reply::Take);
        let back = Instant::now();
        span(&telemetry, "after");
        collector
            .wait_for("spans and metrics", |r| r.spans.iter().any(|name| name == "after") && !r.metrics.is_empty());
        assert!(back.elapsed() < soon(), "{:?}", back.elapsed());
        let report = telemetry.shutdown_blocking(Duration::from_secs(5));
        // The timeout of 10 s outlasts this outage.
        assert!(report.delivery.is_complete(), "{report:?}");
        let said = messages.lines_with(&address.to_string());
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("connection refused"), "{said:?}");
    }
}

/// Giving up after the timeout would lose what there is room for.
#[test]
fn an_outage_longer_than_the_timeouts_loses_nothing() {
    for protocol in PROTOCOLS {
        let port = ClosedPort::reserve();
        let address = port.address;
        let mut environment = environment(&format!("http://{address}"), protocol);
        environment.set("OTEL_EXPORTER_OTLP_TIMEOUT", "200");
        environment.set("OTEL_BSP_EXPORT_TIMEOUT", "400");
        environment.set("OTEL_BSP_SCHEDULE_DELAY", "50");
        environment.set("OTEL_METRIC_EXPORT_INTERVAL", "50");
        let telemetry = Telemetry::builder().with_environment(environment).build();
        let outage = Instant::now();
        let mut sent = 0;
        while outage.elapsed() < Duration::from_secs(3) {
            span(&telemetry, "during");
            sent += 1;
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(telemetry.delivery().spans.lost_total(), 0, "{protocol}");
        let collector = Collector::on(port.open(), |_| Reply::Take);
        collector.wait_for("all spans", |r| r.spans.len() == sent);
        let report = telemetry.shutdown_blocking(Duration::from_secs(5));
        assert_eq!((report.delivery.spans.exported, report.delivery.spans.lost_total()), (sent as u64, 0));
    }
}

/// What waits is bounded: a queue that fills up takes the batch's patience away.
#[test]
fn a_full_queue_is_not_held_up() {
    for protocol in PROTOCOLS {
        let port = ClosedPort::reserve();
        let address = port.address;
        let mut environment = environment(&format!("http://{address}"), protocol);
        environment.set("OTEL_EXPORTER_OTLP_TIMEOUT", "200");
        environment.set("OTEL_BSP_SCHEDULE_DELAY", "50");
        environment.set("OTEL_BSP_MAX_QUEUE_SIZE", "64");
        environment.set("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16");
        let telemetry = Telemetry::builder().with_environment(environment).build();
        let mut sent = 0;
        let given_up = || telemetry.delivery().spans.lost.get("network_error").copied().unwrap_or_default();
        let outage = Instant::now();
        while given_up() == 0 {
            assert!(outage.elapsed() < Duration::from_secs(20), "{protocol}: nothing makes room");
            span(&telemetry, "during");
            sent += 1;
            thread::sleep(Duration::from_millis(1));
        }
        let collector = Collector::on(port.open(), |_| Reply::Take);
        collector.wait_for("what was kept", |r| r.spans.len() > 16);
        let delivery = telemetry.shutdown_blocking(Duration::from_secs(5)).delivery.spans;
        assert_eq!(delivery.exported + delivery.lost_total(), sent, "{delivery:?}");
        assert_eq!(collector.look(|r| r.spans.len() as u64), delivery.exported);
    }
}

#[test]
fn gone_in_the_middle_and_back() {
    for protocol in PROTOCOLS {
        let first = Collector::start();
        let address = first.address;
        let telemetry = build(&first.url(), protocol);
        span(&telemetry, "before");
        first.wait_for("the first span", |r| r.spans == ["before"]);
        drop(first);
        span(&telemetry, "during");
        thread::sleep(INTERVAL * 2);
        let second = Collector::on(TcpListener::bind(address).unwrap(), |_| Reply::Take);
        span(&telemetry, "after");
        second.wait_for("both spans", |r| {
            r.spans.contains(&"during".to_owned()) && r.spans.contains(&"after".to_owned())
        });
        let report = telemetry.shutdown_blocking(Duration::from_secs(5));
        assert_eq!((report.delivery.spans.exported, report.delivery.spans.lost_total()), (3, 0), "{report:?}");
    }
}

/// Refuses, in several ways, until it is told to recover.
#[test]
fn refusals_that_pass_lose_nothing() {
    for protocol in PROTOCOLS {
        for refusal in [
            Reply::Refuse(503, None),
            Reply::Refuse(503, Some("1")),
            Reply::Refuse(429, Some("1")),
            Reply::Refuse(502, None),
            Reply::Grpc(14),
            Reply::Reset,
        ] {
            if matches!(refusal, Reply::Grpc(_)) && protocol != "grpc" {
                continue;
            }
            let case = format!("{protocol}, {refusal:?}");
            let healthy = Arc::new(AtomicBool::new(false));
            let for_collector = Arc::clone(&healthy);
            let collector =
                Collector::with(move |_| if for_collector.load(Relaxed) { Reply::Take } else { refusal.clone() });
            let telemetry = build(&collector.url(), protocol);
            span(&telemetry, "patient");
            collector.wait_for("a first attempt", |r| !r.calls_of("trace").is_empty());
            healthy.store(true, Relaxed);
            let back = Instant::now();
            collector.wait_for(&case, |r| r.spans == ["patient"]);
            assert!(back.elapsed() < soon(), "{case}: {:?}", back.elapsed());
            let report = telemetry.shutdown_blocking(Duration::from_secs(5));
            assert_eq!(
                (report.delivery.spans.exported, report.delivery.spans.lost_total()),
                (1, 0),
                "{case}: {report:?}"
            );
        }
    }
}

#[test]
fn retry_after_is_kept() {
    for protocol in PROTOCOLS {
        let collector =
            Collector::with(|call| if call.before == 0 { Reply::Refuse(503, Some("2")) } else { Reply::Take });
        let telemetry = build(&collector.url(), protocol);
        span(&telemetry, "asked to wait");
        collector.wait_for("a first attempt", |r| r.calls_of("trace").len() == 1);
        let refused = Instant::now();
        collector.wait_for("the span", |r| r.spans == ["asked to wait"]);
        assert!(refused.elapsed() > Duration::from_millis(1900), "{protocol}: {:?}", refused.elapsed());
        telemetry.shutdown_blocking(Duration::from_secs(5));
    }
}

#[test]
fn refusals_for_good_are_counted_and_not_repeated() {
    for protocol in PROTOCOLS {
        let replies: &[Reply] = if protocol == "grpc" {
            &[Reply::Grpc(3), Reply::Grpc(16), Reply::Grpc(12), Reply::Grpc(8)]
        } else {
            &[Reply::Refuse(400, None), Reply::Refuse(401, None), Reply::Refuse(404, None), Reply::Refuse(500, None)]
        };
        for reply in replies {
            let case = format!("{protocol}, {reply:?}");
            let reply = reply.clone();
            let collector = Collector::with(move |_| reply.clone());
            let telemetry = build(&collector.url(), protocol);
            span(&telemetry, "refused");
            let report = telemetry.shutdown_blocking(Duration::from_secs(5));
            assert_eq!(
                (report.delivery.spans.exported, report.delivery.spans.lost_total()),
                (0, 1),
                "{case}: {report:?}"
            );
            assert!(!report.timed_out, "{case}");
            assert_eq!(collector.look(|r| r.calls_of("trace").len()), 1, "{case}");
        }
    }
}

#[test]
fn partial_success_is_counted() {
    for protocol in PROTOCOLS {
        let collector = Collector::with(|call| if call.signal == "trace" { Reply::Partial(2) } else { Reply::Take });
        let telemetry = build(&collector.url(), protocol);
        for _ in 0..5 {
            span(&telemetry, "some");
        }
        let spans = telemetry.shutdown_blocking(Duration::from_secs(5)).delivery.spans;
        assert_eq!((spans.exported, spans.lost.get("rejected")), (3, Some(&2)), "{protocol}: {spans:?}");
    }
}

/// Answers take 2 s: nobody waits for them but the exporter.
#[test]
fn slow_answers_hold_up_nobody() {
    for protocol in PROTOCOLS {
        let collector = Collector::with(|_| Reply::Slow(Duration::from_secs(2)));
        let telemetry = build(&collector.url(), protocol);
        let began = Instant::now();
        for _ in 0..2000 {
            span(&telemetry, "quick");
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        collector.wait_for("spans", |r| r.spans.len() >= 512);
        telemetry.shutdown_blocking(Duration::from_millis(500));
    }
}

/// A connection that has died without a sign must not be used again.
#[test]
fn a_collector_that_never_answers_costs_its_requests_only() {
    for protocol in PROTOCOLS {
        let hung = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&hung);
        let collector = Collector::with(move |call| {
            if call.signal == "trace" && counter.fetch_add(1, Relaxed) == 0 { Reply::Hang } else { Reply::Take }
        });
        let mut environment = environment(&collector.url(), protocol);
        environment.set("OTEL_EXPORTER_OTLP_TIMEOUT", "1000");
        environment.set("OTEL_BSP_SCHEDULE_DELAY", "100");
        let telemetry = Telemetry::builder().with_environment(environment).build();
        span(&telemetry, "swallowed");
        collector.wait_for("the request", |r| r.calls_of("trace").len() == 1);
        span(&telemetry, "next");
        collector.wait_for("the next span", |r| r.spans == ["next"]);
        let spans = telemetry.shutdown_blocking(Duration::from_secs(5)).delivery.spans;
        assert_eq!((spans.exported, spans.lost.get("timeout")), (1, Some(&1)), "{protocol}: {spans:?}");
    }
}

#[test]
fn failures_of_all_signals_are_one_line_in_ten_seconds() {
    let messages = Messages::capture();
    for protocol in PROTOCOLS {
        let port = ClosedPort::reserve();
        let address = port.address;
        let mut environment = environment(&format!("http://{address}"), protocol);
        environment.set("OTEL_EXPORTER_OTLP_TIMEOUT", "300");
        environment.set("OTEL_BSP_SCHEDULE_DELAY", "50");
        environment.set("OTEL_METRIC_EXPORT_INTERVAL", "50");
        let telemetry = Telemetry::builder().with_environment(environment).build();
        let counter = telemetry.meter_provider().meter("test").u64_counter("count").build();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            span(&telemetry, "lost");
            counter.add(1, &[]);
            thread::sleep(Duration::from_millis(10));
        }
        let said = messages.lines_with(&address.to_string());
        assert_eq!(said.len(), 1, "{protocol}: {said:?}");
        let report = telemetry.shutdown_blocking(Duration::from_secs(5));
        assert!(report.delivery.spans.lost_total() > 0);
    }
}

/// Collectors take 4 MiB over gRPC by default: a batch above that goes out in parts.
#[test]
fn large_batches_are_cut_and_one_giant_takes_nobody_with_it() {
    for protocol in PROTOCOLS {
        let collector = Collector::with(|call| match call.size {
            size if size > 4 * 1024 * 1024 => {
                if call.grpc {
                    Reply::Grpc(8)
                } else {
                    Reply::Refuse(413, None)
                }
            }
            _ => Reply::Take,
        });
        let mut environment = environment(&collector.url(), protocol);
        environment.set("OTEL_BSP_SCHEDULE_DELAY", "3600000");
        let telemetry = Telemetry::builder().with_environment(environment).build();
        let tracer = telemetry.tracer_provider().tracer("test");
        let text = |size: usize| opentelemetry::KeyValue::new("text", "x".repeat(size));
        for size in [100_000; 100].into_iter().chain([5_000_000]) {
            drop(tracer.span_builder("large").with_attributes([text(size)]).start(&tracer));
        }
        let spans = telemetry.shutdown_blocking(Duration::from_secs(20)).delivery.spans;
        assert_eq!((spans.exported, spans.lost_total()), (100, 1), "{protocol}: {spans:?}");
        assert_eq!(collector.look(|r| r.spans.len()), 100, "{protocol}");
    }
}
