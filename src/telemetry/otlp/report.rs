//! What exporters say to the operator: seldom, with `host:port` only, and what to do where that is known.

use std::sync::Arc;
use std::time::Duration;

use super::Signal;
use super::failure::Failure;
use crate::diagnostics::{self, Pace};
use crate::telemetry::accounting::{LossLedger, Patience, SignalDelivery};

/// Nothing more is said for this long after a failure was.
const FAILURE_QUIET: Duration = Duration::from_secs(10);
/// The same after a mix-up of protocols, which only the operator can end.
const MIX_UP_QUIET: Duration = Duration::from_secs(60);

/// The voice of all exporters of a telemetry handle. Shares its pace with the report of losses.
#[derive(Debug)]
pub(super) struct Reporter {
    pace: Arc<Pace>,
    ledger: LossLedger,
}

impl Reporter {
    pub(super) fn new(pace: Arc<Pace>, ledger: LossLedger) -> Self {
        Self { pace, ledger }
    }

    pub(super) fn failed(&self, signal: Signal, protocol: &str, authority: &str, failure: &Failure) {
        if self.pace.may_speak(if failure.mix_up.is_some() { MIX_UP_QUIET } else { FAILURE_QUIET }) {
            diagnostics::warn(&format!(
                "OTLP {protocol} export of {} to {authority} fails: {}{}{}",
                signal.as_str(),
                failure.reason,
                failure.mix_up.map(|mix_up| format!("; {}", mix_up.hint())).unwrap_or_default(),
                self.lost(signal)
            ));
        }
    }

    /// Whether a request may outlive its timeout. Metrics need not: the next ones carry the sums.
    pub(super) fn patience(&self, signal: Signal) -> Option<&Patience> {
        (signal != Signal::Metrics).then(|| self.ledger.patience(signal.in_ledger()))
    }

    /// The collector took a request but refused part of it.
    pub(super) fn rejected(&self, signal: Signal, authority: &str, count: u64) {
        self.ledger.note_rejected(signal.in_ledger(), count);
        if self.pace.may_speak(FAILURE_QUIET) {
            diagnostics::warn(&format!(
                "the collector at {authority} rejected {count} {} of a request",
                signal.items()
            ));
        }
    }

    fn lost(&self, signal: Signal) -> String {
        let delivery = self.ledger.snapshot();
        let of_signal: &SignalDelivery = match signal {
            Signal::Traces => &delivery.spans,
            Signal::Metrics => &delivery.metric_data_points,
            Signal::Logs => &delivery.log_records,
        };
        match of_signal.lost_total() {
            0 => String::new(),
            count => format!("; {count} {} lost so far", signal.items()),
        }
    }
}
