//! Batch processors for spans and log records: a queue, a thread, an exporter, and the ledger.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::logs::Severity;
use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter, LogProcessor, SdkLogRecord};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};

use super::attributes::tidy;
use super::ledger::{ExporterComponent, LossLedger, Signal};
use super::patience::Patience;
use super::worker::{Batcher, Sink, block_on};
use crate::config::settings::BatchSettings;

/// An exporter, shared with the processor because its resource is set after the thread has started.
type SharedExporter<E> = Arc<Mutex<E>>;

/// Exports finished spans in batches from a thread of its own, and counts each of them.
///
/// Unlike the SDK's processor it keeps the export timeout and the shutdown timeout, makes attribute
/// keys unique, and applies the attribute length limit.
#[derive(Debug)]
pub(crate) struct BatchSpans<E> {
    batcher: Batcher<SpanData>,
    exporter: SharedExporter<E>,
}

struct SpanSink<E> {
    exporter: SharedExporter<E>,
    timeout: Duration,
    max_value_chars: Option<usize>,
}

impl<E: SpanExporter + 'static> BatchSpans<E> {
    /// Starts the thread. `max_value_chars`: `OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT`.
    pub(crate) fn start(
        exporter: E,
        component: ExporterComponent,
        settings: &BatchSettings,
        max_value_chars: Option<usize>,
        ledger: &LossLedger,
    ) -> Self {
        ledger.signal(Signal::Spans).set_exporter(component);
        let exporter = Arc::new(Mutex::new(exporter));
        let sink = SpanSink { exporter: Arc::clone(&exporter), timeout: settings.export_timeout, max_value_chars };
        let batcher = Batcher::start("otel-spans", settings, ledger.clone(), Signal::Spans, sink);
        Self { batcher, exporter }
    }
}

impl<E: SpanExporter + 'static> Sink<SpanData> for SpanSink<E> {
    fn export(&mut self, mut batch: Vec<SpanData>, patience: &Patience) -> OTelSdkResult {
        batch.iter_mut().for_each(|span| tidy(span, self.max_value_chars));
        let exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner);
        block_on(exporter.export(batch), self.timeout, patience)
    }

    fn shutdown(&mut self, timeout: Duration) {
        let _ = self.exporter.lock().unwrap_or_else(PoisonError::into_inner).shutdown_with_timeout(timeout);
    }
}

impl<E: SpanExporter> SpanProcessor for BatchSpans<E> {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.batcher.push(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batcher.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batcher.shutdown(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).set_resource(resource);
    }
}

/// A log record with the scope it came from.
type Record = (SdkLogRecord, InstrumentationScope);

/// Exports log records in batches from a thread of its own, and counts each of them.
#[derive(Debug)]
pub(crate) struct BatchLogs<E> {
    batcher: Batcher<Record>,
    exporter: SharedExporter<E>,
}

struct LogSink<E> {
    exporter: SharedExporter<E>,
    timeout: Duration,
}

impl<E: LogExporter + 'static> BatchLogs<E> {
    /// Starts the thread.
    pub(crate) fn start(
        exporter: E,
        component: ExporterComponent,
        settings: &BatchSettings,
        ledger: &LossLedger,
    ) -> Self {
        ledger.signal(Signal::LogRecords).set_exporter(component);
        let exporter = Arc::new(Mutex::new(exporter));
        let sink = LogSink { exporter: Arc::clone(&exporter), timeout: settings.export_timeout };
        let batcher = Batcher::start("otel-logs", settings, ledger.clone(), Signal::LogRecords, sink);
        Self { batcher, exporter }
    }
}

impl<E: LogExporter + 'static> Sink<Record> for LogSink<E> {
    fn export(&mut self, batch: Vec<Record>, patience: &Patience) -> OTelSdkResult {
        let records: Vec<_> = batch.iter().map(|(record, scope)| (record, scope)).collect();
        let exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner);
        block_on(exporter.export(LogBatch::new(&records)), self.timeout, patience)
    }

    fn shutdown(&mut self, timeout: Duration) {
        let _ = self.exporter.lock().unwrap_or_else(PoisonError::into_inner).shutdown_with_timeout(timeout);
    }
}

impl<E: LogExporter> LogProcessor for BatchLogs<E> {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        self.batcher.push((record.clone(), scope.clone()));
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batcher.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batcher.shutdown(timeout)
    }

    fn event_enabled(&self, _level: Severity, _target: &str, _name: Option<&str>) -> bool {
        true
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).set_resource(resource);
    }
}
