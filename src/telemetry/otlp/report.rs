//! What exporters say to the operator: seldom, with `host:port` only, and what to do where that is known.

use std::time::Duration;

use super::Signal;
use super::failure::Failure;
use crate::diagnostics::{self, RateLimit};

/// The voice of all exporters of a telemetry handle; they share its limits.
#[derive(Debug)]
pub(crate) struct Reporter {
    failures: RateLimit,
    mix_ups: RateLimit,
}

impl Reporter {
    pub(crate) fn new() -> Self {
        Self { failures: RateLimit::new(Duration::from_secs(10)), mix_ups: RateLimit::new(Duration::from_secs(60)) }
    }

    /// Says that exporting fails, at most once in 10 s; that protocols do not fit, at most once a minute.
    pub(super) fn failed(&self, signal: Signal, protocol: &str, authority: &str, failure: &Failure) {
        let limit = if failure.mix_up.is_some() { &self.mix_ups } else { &self.failures };
        if limit.allow() {
            diagnostics::warn(&format!(
                "OTLP {protocol} export of {} to {authority} fails: {}",
                signal.as_str(),
                failure.reason
            ));
        }
    }

    /// Says that the collector took a request but refused part of it.
    pub(super) fn rejected(&self, signal: Signal, authority: &str, count: u64) {
        if self.failures.allow() {
            diagnostics::warn(&format!("the collector at {authority} rejected {count} items of {}", signal.as_str()));
        }
    }
}
