//! A reading of the ledger.

use std::collections::BTreeMap;
use std::fmt;

/// What became of everything that was handed to telemetry so far.
///
#[doc = include_str!("../../../docs/loss.md")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeliveryReport {
    /// Spans that ended and were sampled.
    pub spans: SignalDelivery,
    /// Log records.
    pub log_records: SignalDelivery,
    /// Metric data points. A failed export of cumulative points loses resolution, not sums: the next
    /// export holds them again.
    pub metric_data_points: SignalDelivery,
}

impl DeliveryReport {
    /// Whether nothing was lost.
    pub fn is_complete(&self) -> bool {
        self.spans.lost_total() == 0 && self.log_records.lost_total() == 0 && self.metric_data_points.lost_total() == 0
    }
}

/// One signal's part of a [`DeliveryReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignalDelivery {
    /// Accepted by the collector, or written to the console.
    pub exported: u64,
    /// Lost, by reason: `queue_full`, `already_shutdown` and `shutdown` (still waiting when the
    /// shutdown's time was up) before the exporter; `timeout`, `rejected` (partial success), an HTTP
    /// status such as `503`, a gRPC status such as `UNAVAILABLE`, `network_error` or `_OTHER` in it.
    pub lost: BTreeMap<String, u64>,
    /// In the hands of the exporter right now.
    pub in_flight: u64,
}

impl SignalDelivery {
    /// Everything lost, whatever the reason.
    pub fn lost_total(&self) -> u64 {
        self.lost.values().sum()
    }
}

impl fmt::Display for SignalDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} exported, {} lost", self.exported, self.lost_total())?;
        for (i, (reason, count)) in self.lost.iter().enumerate() {
            write!(f, "{}{reason} {count}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.lost.is_empty() {
            f.write_str(")")?;
        }
        if self.in_flight > 0 {
            write!(f, ", {} in flight", self.in_flight)?;
        }
        Ok(())
    }
}

impl fmt::Display for DeliveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "spans: {}; log records: {}; metric data points: {}",
            self.spans, self.log_records, self.metric_data_points
        )
    }
}
