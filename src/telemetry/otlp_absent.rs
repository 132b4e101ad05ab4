//! Stands for the OTLP exporters where neither protocol is compiled in: none can be made.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_sdk::metrics::Temporality;

use super::accounting::{ExporterComponent, LossLedger};
use super::console::{ConsoleLogExporter, ConsoleMetricExporter, ConsoleSpanExporter};
use crate::config::settings::OtlpSettings;
use crate::diagnostics::Pace;

/// Never exists.
#[derive(Debug)]
pub(crate) struct Shared(Infallible);

impl Shared {
    pub(crate) fn start(_: &Arc<Pace>, _: &LossLedger) -> Result<Self, String> {
        Err("OTLP needs the cargo feature `otlp-grpc` or `otlp-http` of nemo-gym-telemetry; nothing is exported".into())
    }

    pub(crate) fn spans(
        &self,
        _: &OtlpSettings,
        _: Duration,
    ) -> Result<(ConsoleSpanExporter, ExporterComponent), String> {
        match self.0 {}
    }

    pub(crate) fn metrics(
        &self,
        _: &OtlpSettings,
        _: Duration,
        _: Temporality,
    ) -> Result<(ConsoleMetricExporter, ExporterComponent), String> {
        match self.0 {}
    }

    pub(crate) fn logs(
        &self,
        _: &OtlpSettings,
        _: Duration,
    ) -> Result<(ConsoleLogExporter, ExporterComponent), String> {
        match self.0 {}
    }

    pub(crate) fn close_at(&self, _: Instant) {
        match self.0 {}
    }

    pub(crate) fn stop(&self, _: Instant) -> bool {
        match self.0 {}
    }
}
