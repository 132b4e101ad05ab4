//! Delivery accounting: what became of every span, log record and metric data point.
//!
//! The SDK drops what does not fit its queue or what a collector refuses without an exact count, and
//! its batch processors keep neither their export timeout nor their shutdown timeout. Here the batch
//! processors are the crate's own ([`BatchSpans`], [`BatchLogs`]), the metric exporter is wrapped
//! ([`CountedMetricExporter`]), and all of them write into one [`LossLedger`]:
//!
//! ```text
//! ended spans = refused by the queue + cut off at shutdown + handed to the exporter
//! handed to the exporter = exported + failed (by reason)
//! ```

mod attributes;
mod delivery;
mod error_type;
mod ledger;
mod metric_exporter;
mod patience;
mod processors;
mod queue;
mod reporter;
mod worker;

pub use delivery::{DeliveryReport, SignalDelivery};
#[cfg(any(feature = "otlp-grpc", feature = "otlp-http"))]
pub(crate) use ledger::Signal;
pub(crate) use ledger::{ExporterComponent, LossLedger};
pub(crate) use metric_exporter::CountedMetricExporter;
#[cfg(any(feature = "otlp-grpc", feature = "otlp-http"))]
pub(crate) use patience::Patience;
pub(crate) use processors::{BatchLogs, BatchSpans};
pub(crate) use reporter::LossReporter;

#[cfg(test)]
mod tests;
