//! The batch processors against exporters that dawdle, fail, hang and panic.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _};
use opentelemetry::trace::{Span as _, SpanId, Tracer as _, TracerProvider as _};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::logs::{LogBatch, LogExporter, SdkLoggerProvider};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};

use super::*;
use crate::config::settings::BatchSettings;

/// What the exporter does with a batch.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    Accept,
    Dawdle(Duration),
    Refuse,
    Panic,
    /// A future that never ends.
    Hang,
    /// Holds the thread until the gate opens.
    Block,
}

#[derive(Clone, Debug)]
struct Probe {
    state: Arc<ProbeState>,
}

#[derive(Debug)]
struct ProbeState {
    behaviour: Mutex<Behaviour>,
    accepted: Mutex<Vec<SpanData>>,
    batches: Mutex<Vec<usize>>,
    gate: Mutex<bool>,
    opened: Condvar,
    began: AtomicUsize,
    suppressed: AtomicBool,
    shut_down: AtomicUsize,
}

impl Probe {
    fn new(behaviour: Behaviour) -> Self {
        let state = ProbeState {
            behaviour: Mutex::new(behaviour),
            accepted: Mutex::default(),
            batches: Mutex::default(),
            gate: Mutex::new(false),
            opened: Condvar::new(),
            began: AtomicUsize::new(0),
            suppressed: AtomicBool::new(true),
            shut_down: AtomicUsize::new(0),
        };
        Self { state: Arc::new(state) }
    }

    fn behave(&self, behaviour: Behaviour) {
        *self.state.behaviour.lock().unwrap() = behaviour;
    }

    fn open(&self) {
        *self.state.gate.lock().unwrap() = true;
        self.state.opened.notify_all();
    }

    fn accepted(&self) -> usize {
        self.state.accepted.lock().unwrap().len()
    }

    async fn act(&self, size: usize) -> OTelSdkResult {
        self.state.began.fetch_add(1, SeqCst);
        self.state.suppressed.fetch_and(opentelemetry::Context::is_current_telemetry_suppressed(), SeqCst);
        self.state.batches.lock().unwrap().push(size);
        let behaviour = *self.state.behaviour.lock().unwrap();
        match behaviour {
            Behaviour::Accept => Ok(()),
            Behaviour::Dawdle(time) => {
                thread::sleep(time);
                Ok(())
            }
            Behaviour::Refuse => Err(OTelSdkError::InternalFailure("HTTP export failed with status code: 503".into())),
            Behaviour::Panic => panic!("exporter panics on purpose"),
            Behaviour::Hang => std::future::pending().await,
            Behaviour::Block => {
                let gate = self.state.gate.lock().unwrap();
                drop(self.state.opened.wait_while(gate, |open| !*open).unwrap());
                Ok(())
            }
        }
    }
}

impl SpanExporter for Probe {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.act(batch.len()).await?;
        self.state.accepted.lock().unwrap().extend(batch);
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        self.state.shut_down.fetch_add(1, SeqCst);
        Ok(())
    }
}

impl LogExporter for Probe {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        self.act(batch.iter().count()).await
    }
}

const NEVER: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(20);

fn settings(queue: usize, batch: usize) -> BatchSettings {
    BatchSettings {
        max_queue_size: queue,
        max_export_batch_size: batch,
        scheduled_delay: NEVER,
        export_timeout: Duration::from_secs(30),
    }
}

fn component() -> ExporterComponent {
    ExporterComponent { component_type: "test_span_exporter", server: None }
}

fn spans(probe: &Probe, settings: &BatchSettings) -> (SdkTracerProvider, LossLedger) {
    let ledger = LossLedger::new();
    let processor = BatchSpans::start(probe.clone(), component(), settings, None, &ledger);
    (SdkTracerProvider::builder().with_span_processor(processor).build(), ledger)
}

fn make_spans(provider: &SdkTracerProvider, count: usize) {
    let tracer = provider.tracer("test");
    for _ in 0..count {
        tracer.start("span").end();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {SOON:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_full_batch_goes_out_at_once_and_a_flush_takes_the_rest() {
    let probe = Probe::new(Behaviour::Accept);
    let (provider, ledger) = spans(&probe, &settings(65_536, 512));
    make_spans(&provider, 1100);
    eventually("full batches", || probe.accepted() >= 1024);
    assert_eq!(probe.accepted(), 1024);
    provider.force_flush().unwrap();
    assert_eq!(probe.accepted(), 1100);
    assert!(probe.state.batches.lock().unwrap().iter().all(|size| *size <= 512));
    assert!(probe.state.suppressed.load(SeqCst), "the exporter's thread must be suppressed");
    provider.shutdown().unwrap();
    assert_eq!(probe.state.shut_down.load(SeqCst), 1);
    assert_eq!(ledger.snapshot().spans.exported, 1100);
    assert!(ledger.snapshot().is_complete());
}

#[test]
fn the_scheduled_delay_takes_what_is_there() {
    let probe = Probe::new(Behaviour::Accept);
    let settings = BatchSettings { scheduled_delay: Duration::from_millis(20), ..settings(100, 50) };
    let (provider, _ledger) = spans(&probe, &settings);
    make_spans(&provider, 1);
    eventually("the delay", || probe.accepted() == 1);
}

#[test]
fn every_span_of_many_threads_arrives_once() {
    let probe = Probe::new(Behaviour::Accept);
    let (provider, ledger) = spans(&probe, &settings(65_536, 512));
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| make_spans(&provider, 1000));
        }
        for _ in 0..20 {
            provider.force_flush().unwrap();
        }
    });
    provider.shutdown().unwrap();
    let ids: HashSet<SpanId> =
        probe.state.accepted.lock().unwrap().iter().map(|span| span.span_context.span_id()).collect();
    assert_eq!((ids.len(), probe.accepted()), (32_000, 32_000));
    assert_eq!(ledger.snapshot().spans.exported, 32_000);
}

#[test]
fn a_full_queue_refuses_and_counts_exactly() {
    for (queue, batch) in [(1, 1), (2, 512), (100, 10), (2048, 512), (20_000, 512)] {
        let probe = Probe::new(Behaviour::Block);
        let (provider, ledger) = spans(&probe, &settings(queue, batch));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| make_spans(&provider, 10_000));
            }
        });
        probe.open();
        provider.shutdown().unwrap();
        let spans = ledger.snapshot().spans;
        let dropped = spans.lost.get("queue_full").copied().unwrap_or_default();
        assert!(dropped > 0, "queue {queue}: {spans}");
        assert_eq!(spans.exported + dropped, 40_000, "queue {queue}: {spans}");
        assert_eq!(probe.accepted() as u64, spans.exported);
        assert!(spans.exported >= queue as u64 * 95 / 100, "queue {queue} held only {}", spans.exported);
        assert!(probe.state.batches.lock().unwrap().iter().all(|size| *size <= batch), "queue {queue}");
    }
}

#[test]
fn a_burst_that_fits_loses_nothing_to_a_slow_collector() {
    let probe = Probe::new(Behaviour::Dawdle(Duration::from_millis(20)));
    let (provider, ledger) = spans(&probe, &settings(65_536, 512));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| make_spans(&provider, 16_384 * 2 / 4));
        }
    });
    provider.shutdown_with_timeout(Duration::from_secs(60)).unwrap();
    let spans = ledger.snapshot().spans;
    assert_eq!((spans.exported, spans.lost_total()), (32_768, 0));
}

#[test]
fn failures_and_panics_are_counted_and_the_next_batch_goes_on() {
    let probe = Probe::new(Behaviour::Refuse);
    let (provider, ledger) = spans(&probe, &settings(1000, 10));
    make_spans(&provider, 7);
    provider.force_flush().unwrap_err();
    probe.behave(Behaviour::Panic);
    make_spans(&provider, 5);
    provider.force_flush().unwrap_err();
    probe.behave(Behaviour::Accept);
    make_spans(&provider, 3);
    provider.force_flush().unwrap();
    let spans = ledger.snapshot().spans;
    assert_eq!((spans.exported, spans.lost.get("503"), spans.lost.get("panic")), (3, Some(&7), Some(&5)));
}

#[test]
fn the_export_timeout_ends_a_hanging_exporter() {
    let probe = Probe::new(Behaviour::Hang);
    let settings = BatchSettings { export_timeout: Duration::from_millis(200), ..settings(1000, 1) };
    let (provider, ledger) = spans(&probe, &settings);
    make_spans(&provider, 1);
    eventually("the timeout", || ledger.snapshot().spans.lost.get("timeout") == Some(&1));
    probe.behave(Behaviour::Accept);
    make_spans(&provider, 1);
    provider.shutdown().unwrap();
    assert_eq!(ledger.snapshot().spans.exported, 1);
}

#[test]
fn a_shutdown_keeps_its_timeout_and_counts_what_it_cuts_off() {
    let probe = Probe::new(Behaviour::Block);
    let (provider, ledger) = spans(&probe, &settings(1000, 10));
    make_spans(&provider, 35);
    eventually("the first export", || probe.state.began.load(SeqCst) == 1);
    let begin = Instant::now();
    provider.shutdown_with_timeout(Duration::from_millis(300)).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let report = ledger.snapshot().spans;
    assert_eq!((report.exported, report.lost.get("shutdown")), (0, Some(&35)), "{report}");
    // The batch that the exporter held may still be stored; it stays counted as lost, once.
    make_spans(&provider, 2);
    probe.open();
    eventually("the end of the thread", || probe.state.shut_down.load(SeqCst) == 1);
    assert_eq!(ledger.snapshot().spans.lost_total() + ledger.snapshot().spans.exported, 35);
}

#[test]
fn spans_after_a_shutdown_are_counted() {
    let probe = Probe::new(Behaviour::Accept);
    let ledger = LossLedger::new();
    let processor = BatchSpans::start(probe.clone(), component(), &settings(10, 10), None, &ledger);
    let (batcher, span) = (processor, finished_span());
    use opentelemetry_sdk::trace::SpanProcessor as _;
    batcher.shutdown().unwrap();
    batcher.shutdown().unwrap_err();
    batcher.on_end(span);
    assert_eq!(ledger.snapshot().spans.lost.get("already_shutdown"), Some(&1));
}

fn finished_span() -> SpanData {
    let probe = Probe::new(Behaviour::Accept);
    let (provider, _ledger) = spans(&probe, &settings(10, 1));
    make_spans(&provider, 1);
    provider.shutdown().unwrap();
    probe.state.accepted.lock().unwrap().pop().unwrap()
}

#[test]
fn a_dropped_provider_still_exports() {
    let probe = Probe::new(Behaviour::Accept);
    let (provider, _ledger) = spans(&probe, &settings(10, 10));
    make_spans(&provider, 3);
    drop(provider);
    eventually("the export", || probe.accepted() == 3);
}

#[test]
fn repeated_keys_and_long_values_are_tidied_before_export() {
    let probe = Probe::new(Behaviour::Accept);
    let ledger = LossLedger::new();
    let processor = BatchSpans::start(probe.clone(), component(), &settings(10, 1), Some(3), &ledger);
    let provider = SdkTracerProvider::builder().with_span_processor(processor).build();
    let mut span = provider.tracer("test").start("span");
    span.set_attribute(KeyValue::new("key", "first"));
    span.set_attribute(KeyValue::new("key", "second"));
    span.add_event("event", vec![KeyValue::new("key", "x"), KeyValue::new("key", "yyyy")]);
    span.end();
    provider.shutdown().unwrap();
    let spans = probe.state.accepted.lock().unwrap();
    assert_eq!(spans[0].attributes, [KeyValue::new("key", "sec")]);
    assert_eq!(spans[0].events[0].attributes, [KeyValue::new("key", "yyy")]);
}

#[test]
fn log_records_are_counted_like_spans() {
    let probe = Probe::new(Behaviour::Accept);
    let ledger = LossLedger::new();
    let processor = BatchLogs::start(probe.clone(), component(), &settings(100, 10), &ledger);
    let provider = SdkLoggerProvider::builder().with_log_processor(processor).build();
    let logger = provider.logger("test");
    let emit = |count: usize| {
        for _ in 0..count {
            let mut record = logger.create_log_record();
            record.set_body(AnyValue::from("text"));
            logger.emit(record);
        }
    };
    emit(25);
    provider.force_flush().unwrap();
    probe.behave(Behaviour::Refuse);
    emit(7);
    provider.force_flush().unwrap_err();
    provider.shutdown().unwrap();
    let logs = ledger.snapshot().log_records;
    assert_eq!((logs.exported, logs.lost.get("503")), (25, Some(&7)));
}

/// An exporter whose collector is away: it holds on for as long as it may.
#[cfg(any(feature = "otlp-grpc", feature = "otlp-http"))]
#[derive(Debug)]
struct Holding(LossLedger);

#[cfg(any(feature = "otlp-grpc", feature = "otlp-http"))]
impl SpanExporter for Holding {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        let patience = self.0.patience(Signal::Spans);
        std::future::poll_fn(|task| {
            if !patience.hold() {
                return std::task::Poll::Ready(Err(OTelSdkError::InternalFailure("away".to_owned())));
            }
            thread::sleep(Duration::from_millis(1));
            task.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await
    }
}

#[cfg(any(feature = "otlp-grpc", feature = "otlp-http"))]
#[test]
fn a_batch_is_held_until_room_gets_scarce_or_a_shutdown_begins() {
    let ledger = LossLedger::new();
    let mut settings = settings(20, 5);
    settings.export_timeout = Duration::from_millis(20);
    let processor = BatchSpans::start(Holding(ledger.clone()), component(), &settings, None, &ledger);
    let provider = SdkTracerProvider::builder().with_span_processor(processor).build();
    make_spans(&provider, 5);
    eventually("the export", || ledger.snapshot().spans.in_flight == 5);
    thread::sleep(10 * settings.export_timeout);
    assert_eq!(ledger.snapshot().spans.lost_total(), 0, "held beyond the export timeout");
    make_spans(&provider, 11);
    eventually("room", || ledger.snapshot().spans.lost_total() >= 5);
    let began = Instant::now();
    provider.shutdown_with_timeout(Duration::from_secs(20)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "a shutdown is not held up");
    assert_eq!(ledger.snapshot().spans.lost_total(), 16);
}
