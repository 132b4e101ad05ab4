//! The counters behind a delivery report, and their export as `otel.sdk.*` metrics.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};

use super::delivery::{DeliveryReport, SignalDelivery};
use crate::metrics::catalog::{
    self, OTEL_SDK_EXPORTER_LOG_EXPORTED, OTEL_SDK_EXPORTER_METRIC_DATA_POINT_EXPORTED,
    OTEL_SDK_EXPORTER_SPAN_EXPORTED, OTEL_SDK_PROCESSOR_LOG_PROCESSED, OTEL_SDK_PROCESSOR_SPAN_PROCESSED,
};

/// A kind of telemetry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Spans,
    LogRecords,
    MetricDataPoints,
}

/// Who exports, for the attributes of the `otel.sdk.exporter.*` metrics.
#[derive(Clone, Debug)]
pub(crate) struct ExporterComponent {
    /// `otel.component.type`, such as `otlp_grpc_span_exporter`.
    pub(crate) component_type: &'static str,
    /// `server.address` and `server.port` of the collector.
    pub(crate) server: Option<(String, Option<u16>)>,
}

impl ExporterComponent {
    fn attributes(&self) -> Vec<KeyValue> {
        let mut attributes = component_attributes(self.component_type);
        if let Some((address, port)) = &self.server {
            attributes.push(KeyValue::new("server.address", address.clone()));
            if let Some(port) = port {
                attributes.push(KeyValue::new("server.port", i64::from(*port)));
            }
        }
        attributes
    }
}

/// Semantic conventions: the name is the type with a number that tells instances apart.
fn component_attributes(component_type: &'static str) -> Vec<KeyValue> {
    vec![
        KeyValue::new("otel.component.type", component_type),
        KeyValue::new("otel.component.name", format!("{component_type}/0")),
    ]
}

/// Where the processors and exporters of one telemetry handle keep count. Cheap to clone; clones
/// share everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossLedger {
    signals: Arc<[SignalLedger; 3]>,
    last_collection: Arc<Mutex<Option<Instant>>>,
}

/// One signal's counters.
#[derive(Debug, Default)]
pub(super) struct SignalLedger {
    /// Refused by a full queue.
    queue_full: AtomicU64,
    /// Offered after shutdown.
    already_shutdown: AtomicU64,
    /// Still waiting when the time of a shutdown was up.
    cut_off: AtomicU64,
    /// Handed to the exporter.
    submitted: AtomicU64,
    exported: AtomicU64,
    /// What the exporter failed to deliver, by `error.type`. Touched once per failed batch.
    failed: Mutex<BTreeMap<Cow<'static, str>, u64>>,
    /// The size of the batch in the exporter's hands. Exports of one signal never overlap.
    in_flight: AtomicU64,
    /// What the collector said to have rejected of the batch in flight.
    rejected: AtomicU64,
    exporter: Mutex<Option<ExporterComponent>>,
}

/// `error.type` of what was cut off at shutdown.
const SHUTDOWN: &str = "shutdown";
/// Bound on the number of different failure reasons.
const MAX_REASONS: usize = 64;

impl LossLedger {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(super) fn signal(&self, signal: Signal) -> &SignalLedger {
        &self.signals[signal as usize]
    }

    /// Says that the collector rejected `count` items of the batch being exported (the partial success
    /// of OTLP). To be called between the begin and the end of that export, by whoever sees the response.
    #[allow(dead_code)]
    pub(crate) fn note_rejected(&self, signal: Signal, count: u64) {
        self.signal(signal).rejected.fetch_add(count, Relaxed);
    }

    /// Metrics have been collected.
    pub(super) fn note_collection(&self) {
        *self.last_collection.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(super) fn last_collection(&self) -> Option<Instant> {
        *self.last_collection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody waits any more for what exporters still hold: it counts as lost.
    pub(crate) fn close(&self) {
        self.signals.iter().for_each(|signal| signal.count_cut_off(0));
    }

    /// Reads every counter.
    pub(crate) fn snapshot(&self) -> DeliveryReport {
        let [spans, log_records, metric_data_points] = &*self.signals;
        DeliveryReport {
            spans: spans.snapshot(),
            log_records: log_records.snapshot(),
            metric_data_points: metric_data_points.snapshot(),
        }
    }

    /// Exports the counters as observable instruments of `meter`, for the signals that have an
    /// exporter. The callbacks read atomics: they neither block nor panic.
    pub(crate) fn observe(&self, meter: &Meter) {
        let processors = [
            (Signal::Spans, &OTEL_SDK_PROCESSOR_SPAN_PROCESSED, "batching_span_processor"),
            (Signal::LogRecords, &OTEL_SDK_PROCESSOR_LOG_PROCESSED, "batching_log_processor"),
        ];
        for (signal, metric, component_type) in processors {
            if self.signal(signal).exporter().is_some() {
                let (ledger, attributes) = (self.clone(), component_attributes(component_type));
                observe(metric, meter, move |instrument| {
                    ledger.signal(signal).observe_processor(instrument, &attributes)
                });
            }
        }
        let exporters = [
            (Signal::Spans, &OTEL_SDK_EXPORTER_SPAN_EXPORTED),
            (Signal::LogRecords, &OTEL_SDK_EXPORTER_LOG_EXPORTED),
            (Signal::MetricDataPoints, &OTEL_SDK_EXPORTER_METRIC_DATA_POINT_EXPORTED),
        ];
        for (signal, metric) in exporters {
            if let Some(exporter) = self.signal(signal).exporter() {
                let (ledger, attributes) = (self.clone(), exporter.attributes());
                observe(metric, meter, move |instrument| {
                    ledger.signal(signal).observe_exporter(instrument, &attributes)
                });
            }
        }
    }
}

fn observe(
    metric: &catalog::Metric,
    meter: &Meter,
    callback: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static,
) {
    // The provider keeps the callback; the returned handle holds nothing.
    let _ = metric.observe_u64_counter(meter, callback);
}

impl SignalLedger {
    pub(super) fn set_exporter(&self, exporter: ExporterComponent) {
        *self.exporter.lock().unwrap_or_else(PoisonError::into_inner) = Some(exporter);
    }

    fn exporter(&self) -> Option<ExporterComponent> {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cold]
    pub(super) fn count_queue_full(&self) {
        self.queue_full.fetch_add(1, Relaxed);
    }

    #[cold]
    pub(super) fn count_already_shutdown(&self) {
        self.already_shutdown.fetch_add(1, Relaxed);
    }

    /// A batch leaves the queue for the exporter.
    pub(super) fn submit(&self, count: u64) {
        self.rejected.store(0, Relaxed);
        self.in_flight.store(count, Relaxed);
        self.submitted.fetch_add(count, Relaxed);
    }

    /// The time of a shutdown is up: `waiting` items were never handed to the exporter, and nobody
    /// waits for the batch in its hands any more.
    pub(super) fn count_cut_off(&self, waiting: u64) {
        self.cut_off.fetch_add(waiting, Relaxed);
        let abandoned = self.in_flight.swap(0, Relaxed);
        self.count_failed(SHUTDOWN.into(), abandoned);
    }

    /// Follows the submitted batch. What becomes of it is told to the returned guard; a guard that is
    /// dropped before (the export timed out or panicked) counts the batch as failed.
    pub(super) fn follow(&self) -> InFlight<'_> {
        InFlight { ledger: self, finished: false }
    }

    fn count_failed(&self, reason: Cow<'static, str>, count: u64) {
        if count == 0 {
            return;
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = if failed.len() < MAX_REASONS || failed.contains_key(&reason) { reason } else { OTHER.into() };
        *failed.entry(reason).or_default() += count;
    }

    fn snapshot(&self) -> SignalDelivery {
        let mut lost: BTreeMap<String, u64> = self
            .failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(reason, count)| (reason.clone().into_owned(), *count))
            .collect();
        for (reason, counter) in self.refusals() {
            let count = counter.load(Relaxed);
            if count > 0 {
                *lost.entry(reason.to_owned()).or_default() += count;
            }
        }
        SignalDelivery { exported: self.exported.load(Relaxed), lost, in_flight: self.in_flight.load(Relaxed) }
    }

    fn refusals(&self) -> [(&'static str, &AtomicU64); 3] {
        [("queue_full", &self.queue_full), ("already_shutdown", &self.already_shutdown), (SHUTDOWN, &self.cut_off)]
    }

    fn observe_processor(&self, instrument: &dyn AsyncInstrument<u64>, attributes: &[KeyValue]) {
        instrument.observe(self.submitted.load(Relaxed), attributes);
        for (reason, counter) in self.refusals() {
            observe_failure(instrument, counter.load(Relaxed), attributes, reason.into());
        }
    }

    fn observe_exporter(&self, instrument: &dyn AsyncInstrument<u64>, attributes: &[KeyValue]) {
        instrument.observe(self.exported.load(Relaxed), attributes);
        for (reason, count) in self.failed.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            observe_failure(instrument, *count, attributes, reason.clone());
        }
    }
}

fn observe_failure(
    instrument: &dyn AsyncInstrument<u64>,
    count: u64,
    attributes: &[KeyValue],
    reason: Cow<'static, str>,
) {
    if count > 0 {
        let mut attributes = attributes.to_vec();
        attributes.push(KeyValue::new("error.type", reason));
        instrument.observe(count, &attributes);
    }
}

/// A batch in the exporter's hands.
#[derive(Debug)]
pub(super) struct InFlight<'a> {
    ledger: &'a SignalLedger,
    finished: bool,
}

impl InFlight<'_> {
    pub(super) fn finish(mut self, result: &OTelSdkResult) {
        self.finished = true;
        // 0: a shutdown gave up on this batch and has counted it.
        let count = self.ledger.in_flight.swap(0, Relaxed);
        match result {
            Ok(()) => {
                let rejected = self.ledger.rejected.swap(0, Relaxed).min(count);
                self.ledger.exported.fetch_add(count - rejected, Relaxed);
                self.ledger.count_failed("rejected".into(), rejected);
            }
            Err(error) => self.ledger.count_failed(error_type(error), count),
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let count = self.ledger.in_flight.swap(0, Relaxed);
            self.ledger.count_failed(if std::thread::panicking() { "panic" } else { TIMEOUT }.into(), count);
        }
    }
}

const OTHER: &str = "_OTHER";
const TIMEOUT: &str = "timeout";

/// A low-cardinality name for an export error. The SDK's errors are text; of the text only a status
/// that it is known to hold is used, never the text itself.
fn error_type(error: &OTelSdkError) -> Cow<'static, str> {
    match error {
        OTelSdkError::Timeout(_) => TIMEOUT.into(),
        OTelSdkError::AlreadyShutdown => "already_shutdown".into(),
        OTelSdkError::InternalFailure(text) => text_error_type(text),
    }
}

fn text_error_type(text: &str) -> Cow<'static, str> {
    if let Some((_, rest)) = text.split_once("gRPC code: ") {
        let code = rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        return GRPC_CODES.iter().find(|(name, _)| *name == code).map_or(OTHER, |(_, error_type)| error_type).into();
    }
    if let Some((_, rest)) = text.split_once("status code: ") {
        let code: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if code.len() == 3 {
            return code.into();
        }
    }
    let known = [
        ("timed out", TIMEOUT),
        ("panicked", "panic"),
        ("network error", "network_error"),
        ("already shutdown", "already_shutdown"),
    ];
    known.iter().find(|(part, _)| text.contains(part)).map_or(OTHER, |(_, error_type)| error_type).into()
}

/// `Debug` names of gRPC codes and the names that the semantic conventions use.
const GRPC_CODES: &[(&str, &str)] = &[
    ("Cancelled", "CANCELLED"),
    ("Unknown", "UNKNOWN"),
    ("InvalidArgument", "INVALID_ARGUMENT"),
    ("DeadlineExceeded", "DEADLINE_EXCEEDED"),
    ("NotFound", "NOT_FOUND"),
    ("AlreadyExists", "ALREADY_EXISTS"),
    ("PermissionDenied", "PERMISSION_DENIED"),
    ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
    ("FailedPrecondition", "FAILED_PRECONDITION"),
    ("Aborted", "ABORTED"),
    ("OutOfRange", "OUT_OF_RANGE"),
    ("Unimplemented", "UNIMPLEMENTED"),
    ("Internal", "INTERNAL"),
    ("Unavailable", "UNAVAILABLE"),
    ("DataLoss", "DATA_LOSS"),
    ("Unauthenticated", "UNAUTHENTICATED"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_types_are_statuses_and_never_the_text() {
        for (text, error_type) in [
            ("TonicTracesClient export failed with gRPC code: Unavailable: transport error", "UNAVAILABLE"),
            ("TonicLogsClient export failed with gRPC code: Bogus", "_OTHER"),
            ("HTTP export failed with status code: 503", "503"),
            ("HTTP export failed with status code: secret", "_OTHER"),
            ("HTTP export failed: network error", "network_error"),
            ("operation timed out after 10s", "timeout"),
            ("http://user:secret@host refused", "_OTHER"),
        ] {
            assert_eq!(text_error_type(text), error_type);
        }
    }

    #[test]
    fn partial_success_splits_a_batch() {
        let ledger = LossLedger::new();
        ledger.signal(Signal::Spans).submit(10);
        let export = ledger.signal(Signal::Spans).follow();
        assert_eq!(ledger.snapshot().spans.in_flight, 10);
        ledger.note_rejected(Signal::Spans, 3);
        export.finish(&Ok(()));
        let spans = ledger.snapshot().spans;
        assert_eq!((spans.exported, spans.lost_total(), spans.lost.get("rejected")), (7, 3, Some(&3)));
    }

    #[test]
    fn a_batch_given_up_by_shutdown_is_counted_once() {
        let ledger = LossLedger::new();
        let signal = ledger.signal(Signal::Spans);
        signal.submit(10);
        let export = signal.follow();
        signal.count_cut_off(5);
        export.finish(&Ok(()));
        let spans = ledger.snapshot().spans;
        assert_eq!((spans.exported, spans.lost.get("shutdown")), (0, Some(&15)));
    }

    #[test]
    fn reasons_are_bounded() {
        let ledger = LossLedger::new();
        for code in 100..900 {
            ledger.signal(Signal::LogRecords).submit(1);
            let export = ledger.signal(Signal::LogRecords).follow();
            export.finish(&Err(OTelSdkError::InternalFailure(format!("status code: {code}"))));
        }
        let logs = ledger.snapshot().log_records;
        assert_eq!(logs.lost_total(), 800);
        assert!(logs.lost.len() <= MAX_REASONS + 1);
    }
}
