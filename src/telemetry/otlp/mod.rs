//! OTLP exporters over gRPC and http/protobuf.
//!
//! ```text
//! SDK's batch thread ──> exporters ──> client ───────────────> transport ──> grpc | http
//!                        encode        attempts, pauses, end   one attempt
//! ```
//! Everything right of the client runs on a private runtime.

mod client;
mod control;
mod endpoint;
mod exporters;
mod failure;
#[cfg(feature = "otlp-grpc")]
mod first_bytes;
#[cfg(feature = "otlp-grpc")]
mod grpc;
mod headers;
#[cfg(feature = "otlp-http")]
mod http;
mod report;
mod runtime;
mod signal;
mod split;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_sdk::metrics::Temporality;

use client::Client;
pub(crate) use control::ExportControl;
use endpoint::Target;
pub(crate) use exporters::{OtlpLogExporter, OtlpMetricExporter, OtlpSpanExporter};
use report::Reporter;
use runtime::ExportRuntime;
pub(crate) use signal::Signal;
use transport::Transport;

use crate::config::settings::{OtlpProtocol, OtlpSettings};
use crate::diagnostics::{self, Pace};
use crate::telemetry::accounting::{ExporterComponent, LossLedger};

/// The longest wait for a connection within a request's timeout. A lost SYN is sent again after 1 s and
/// after 3 s; after that a new attempt is as good.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the OTLP exporters of one telemetry handle share.
#[derive(Debug)]
pub(crate) struct Shared {
    runtime: Arc<ExportRuntime>,
    control: ExportControl,
    reporter: Arc<Reporter>,
}

impl Shared {
    /// Starts the export thread. An error is one line to say.
    pub(crate) fn start(pace: &Arc<Pace>, ledger: &LossLedger) -> Result<Self, String> {
        let runtime = ExportRuntime::start()
            .map_err(|error| format!("the OTLP export thread does not start ({error}); nothing is exported"))?;
        Ok(Self {
            runtime: Arc::new(runtime),
            control: ExportControl::new(),
            reporter: Arc::new(Reporter::new(Arc::clone(pace), ledger.clone())),
        })
    }

    /// The exporter of spans and who it is, or one line that says why there is none. `interval` is the
    /// time between exports.
    pub(crate) fn spans(
        &self,
        settings: &OtlpSettings,
        interval: Duration,
    ) -> Result<(OtlpSpanExporter, ExporterComponent), String> {
        let (client, component) = self.client(Signal::Traces, settings, interval)?;
        Ok((OtlpSpanExporter::new(client), component))
    }

    /// The exporter of metrics.
    pub(crate) fn metrics(
        &self,
        settings: &OtlpSettings,
        interval: Duration,
        temporality: Temporality,
    ) -> Result<(OtlpMetricExporter, ExporterComponent), String> {
        let (client, component) = self.client(Signal::Metrics, settings, interval)?;
        Ok((OtlpMetricExporter::new(client, temporality), component))
    }

    /// The exporter of log records.
    pub(crate) fn logs(
        &self,
        settings: &OtlpSettings,
        interval: Duration,
    ) -> Result<(OtlpLogExporter, ExporterComponent), String> {
        let (client, component) = self.client(Signal::Logs, settings, interval)?;
        Ok((OtlpLogExporter::new(client), component))
    }

    /// Nothing is sent after `deadline`.
    pub(crate) fn close_at(&self, deadline: Instant) {
        self.control.close_at(deadline);
    }

    /// Ends the export thread; whether it ended in time.
    pub(crate) fn stop(&self, deadline: Instant) -> bool {
        self.runtime.stop(deadline)
    }

    fn client(
        &self,
        signal: Signal,
        settings: &OtlpSettings,
        interval: Duration,
    ) -> Result<(Client, ExporterComponent), String> {
        let (target, notes) = Target::resolve(signal, settings)?;
        let (headers, more_notes) = headers::usable(&settings.headers);
        for note in notes.iter().chain(&more_notes) {
            diagnostics::warn_once(note);
        }
        let refuse = |why: String| format!("{}: {why}", target.source);
        let _inside = self.runtime.handle().enter();
        let transport = match settings.protocol {
            #[cfg(feature = "otlp-grpc")]
            OtlpProtocol::Grpc => {
                Transport::Grpc(Box::new(grpc::Grpc::new(signal, &target, headers, settings).map_err(refuse)?))
            }
            #[cfg(feature = "otlp-http")]
            OtlpProtocol::HttpProtobuf => {
                Transport::Http(Box::new(http::Http::new(target.clone(), headers, settings).map_err(refuse)?))
            }
            #[allow(unreachable_patterns)]
            protocol => {
                let feature = if protocol == OtlpProtocol::Grpc { "otlp-grpc" } else { "otlp-http" };
                return Err(refuse(format!("the protocol needs the cargo feature `{feature}` of nemo-gym-telemetry")));
            }
        };
        let component = ExporterComponent {
            component_type: signal.component_type(settings.protocol),
            server: target.url.host_str().map(|host| (host.to_owned(), target.url.port_or_known_default())),
        };
        Ok((Client::new(signal, target.authority, transport, settings, interval, self), component))
    }
}
