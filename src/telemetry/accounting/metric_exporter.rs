//! The wrapper that counts metric exports. Spans and log records are counted by their processors.

use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;

use super::ledger::{ExporterComponent, LossLedger, Signal};

/// Counts the data points that pass through an exporter.
#[derive(Debug)]
pub(crate) struct CountedMetricExporter<E> {
    inner: E,
    ledger: LossLedger,
}

impl<E: PushMetricExporter> CountedMetricExporter<E> {
    pub(crate) fn new(inner: E, component: ExporterComponent, ledger: &LossLedger) -> Self {
        ledger.signal(Signal::MetricDataPoints).set_exporter(component);
        Self { inner, ledger: ledger.clone() }
    }
}

impl<E: PushMetricExporter> PushMetricExporter for CountedMetricExporter<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let signal = self.ledger.signal(Signal::MetricDataPoints);
        signal.submit(data_points(metrics));
        let in_flight = signal.follow();
        self.ledger.note_collection();
        let result = self.inner.export(metrics).await;
        in_flight.finish(&result);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}

fn data_points(metrics: &ResourceMetrics) -> u64 {
    fn count<T>(data: &MetricData<T>) -> usize {
        match data {
            MetricData::Gauge(gauge) => gauge.data_points().count(),
            MetricData::Sum(sum) => sum.data_points().count(),
            MetricData::Histogram(histogram) => histogram.data_points().count(),
            MetricData::ExponentialHistogram(histogram) => histogram.data_points().count(),
        }
    }
    let points = metrics.scope_metrics().flat_map(|scope| scope.metrics()).map(|metric| match metric.data() {
        AggregatedMetrics::F64(data) => count(data),
        AggregatedMetrics::U64(data) => count(data),
        AggregatedMetrics::I64(data) => count(data),
    });
    points.sum::<usize>() as u64
}
