//! The counters behind a delivery report, and their export as `otel.sdk.*` metrics.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use opentelemetry_sdk::error::OTelSdkResult;

use super::delivery::{DeliveryReport, SignalDelivery};
use super::error_type::{OTHER, TIMEOUT, error_type};
use super::patience::Patience;
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
    batches: Mutex<Batches>,
    exporter: Mutex<Option<ExporterComponent>>,
    pub(super) patience: Patience,
}

/// What is counted by batches: under one lock, so that a batch is always in exactly one of the counts.
#[derive(Debug, Default)]
struct Batches {
    /// Handed to the exporter.
    submitted: u64,
    /// The size of the batch in the exporter's hands. Exports of one signal never overlap.
    in_flight: u64,
    /// What the collector said to have rejected of the batch in flight.
    rejected: u64,
    exported: u64,
    /// What the exporter failed to deliver, by `error.type`.
    failed: BTreeMap<Cow<'static, str>, u64>,
    /// Still waiting when the time of a shutdown was up.
    cut_off: u64,
}

impl Batches {
    /// The batch in flight has failed.
    fn fail(&mut self, reason: Cow<'static, str>) {
        let count = mem::take(&mut self.in_flight);
        self.add_failed(reason, count);
    }

    fn add_failed(&mut self, reason: Cow<'static, str>, count: u64) {
        if count > 0 {
            let known = self.failed.len() < MAX_REASONS || self.failed.contains_key(&reason);
            *self.failed.entry(if known { reason } else { OTHER.into() }).or_default() += count;
        }
    }
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
    #[cfg_attr(not(any(feature = "otlp-grpc", feature = "otlp-http")), allow(dead_code))]
    pub(crate) fn note_rejected(&self, signal: Signal, count: u64) {
        self.signal(signal).batches().rejected += count;
    }

    /// Between a signal's queue and its exporter.
    #[cfg_attr(not(any(feature = "otlp-grpc", feature = "otlp-http")), expect(dead_code))]
    pub(crate) fn patience(&self, signal: Signal) -> &Patience {
        &self.signal(signal).patience
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
    /// exporter. The callbacks only read counters: they neither block nor panic.
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

    fn batches(&self) -> MutexGuard<'_, Batches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch leaves the queue for the exporter.
    pub(super) fn submit(&self, count: u64) {
        let mut batches = self.batches();
        batches.submitted += count;
        batches.in_flight = count;
        batches.rejected = 0;
    }

    /// The time of a shutdown is up: `waiting` items were never handed to the exporter, and nobody
    /// waits for the batch in its hands any more.
    pub(super) fn count_cut_off(&self, waiting: u64) {
        let mut batches = self.batches();
        batches.cut_off += waiting;
        batches.fail(SHUTDOWN.into());
    }

    /// Follows the submitted batch. What becomes of it is told to the returned guard; a guard that is
    /// dropped before (the export timed out or panicked) counts the batch as failed.
    pub(super) fn follow(&self) -> InFlight<'_> {
        InFlight { ledger: self, finished: false }
    }

    fn snapshot(&self) -> SignalDelivery {
        let batches = self.batches();
        let failed = batches.failed.iter().map(|(reason, count)| (reason.clone().into_owned(), *count));
        let mut lost: BTreeMap<String, u64> = failed.collect();
        for (reason, count) in self.refusals(&batches) {
            if count > 0 {
                *lost.entry(reason.to_owned()).or_default() += count;
            }
        }
        SignalDelivery { exported: batches.exported, lost, in_flight: batches.in_flight }
    }

    /// What never came to the exporter.
    fn refusals(&self, batches: &Batches) -> [(&'static str, u64); 3] {
        [
            ("queue_full", self.queue_full.load(Relaxed)),
            ("already_shutdown", self.already_shutdown.load(Relaxed)),
            (SHUTDOWN, batches.cut_off),
        ]
    }

    fn observe_processor(&self, instrument: &dyn AsyncInstrument<u64>, attributes: &[KeyValue]) {
        let batches = self.batches();
        instrument.observe(batches.submitted, attributes);
        for (reason, count) in self.refusals(&batches) {
            observe_failure(instrument, count, attributes, reason.into());
        }
    }

    fn observe_exporter(&self, instrument: &dyn AsyncInstrument<u64>, attributes: &[KeyValue]) {
        let batches = self.batches();
        instrument.observe(batches.exported, attributes);
        for (reason, count) in &batches.failed {
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
        let mut batches = self.ledger.batches();
        match result {
            Ok(()) => {
                // 0: a shutdown gave up on this batch and has counted it.
                let count = mem::take(&mut batches.in_flight);
                let rejected = batches.rejected.min(count);
                batches.exported += count - rejected;
                batches.add_failed("rejected".into(), rejected);
            }
            Err(error) => batches.fail(error_type(error)),
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.ledger.batches().fail(if std::thread::panicking() { "panic" } else { TIMEOUT }.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;

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
