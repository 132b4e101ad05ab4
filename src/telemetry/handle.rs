//! What a running process needs from telemetry: the switches, tracers and instruments, behind one `Arc`.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::{Meter, MeterProvider as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::sync::oneshot;

use super::accounting::{DeliveryReport, LossLedger};
use super::callbacks::GuardedMeterProvider;
use super::providers::Providers;
use super::shutdown::{DEFAULT_SHUTDOWN_TIMEOUT, Lifecycle, ShutdownGuard, ShutdownReport};
use super::switches::Switches;
use crate::config::ServerIdentity;
use crate::config::settings::PropagatorChoice;
use crate::metrics::Instruments;
use crate::runtime::Monitors;
use crate::span_group::SpanGroups;
use crate::startup::HandleStartup;

/// Instrumentation scopes. Those of the `gym.*` spans are upstream's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    /// SERVER spans.
    Server,
    /// CLIENT spans.
    Client,
    /// `gym.*` spans made by code between the middlewares, and semantic spans.
    Helpers,
    /// Start-up spans.
    Startup,
}

/// A handle to this process's telemetry. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Telemetry {
    shared: Arc<Shared>,
}

struct Shared {
    switches: AtomicU32,
    tracers: [SdkTracer; 4],
    tracer_provider: SdkTracerProvider,
    meter_provider: SdkMeterProvider,
    meters: GuardedMeterProvider<SdkMeterProvider>,
    logger_provider: Option<SdkLoggerProvider>,
    /// Metrics leave this process: by an exporter of ours, or a provider of somebody's.
    exports_metrics: bool,
    instruments: Instruments,
    runtime_monitors: Monitors,
    startup: HandleStartup,
    facts: Facts,
    /// This is the handle of `init_telemetry`.
    process_wide: AtomicBool,
    /// Servers that run with this handle; the last one ends it.
    servers: AtomicUsize,
    ledger: LossLedger,
    lifecycle: Lifecycle,
}

/// What does not change about a handle.
#[derive(Debug)]
pub(super) struct Facts {
    pub identity: ServerIdentity,
    pub run_id: String,
    pub propagators: PropagatorChoice,
    /// The sampler decides by the parent's sampled flag when there is a parent.
    pub parent_based: bool,
    /// Trace ids come from the SDK's random generator: new roots may say so.
    pub random_ids: bool,
}

impl Facts {
    /// Of a handle that does nothing.
    pub(super) fn off(identity: ServerIdentity, run_id: String) -> Self {
        Self {
            identity,
            run_id,
            propagators: PropagatorChoice { trace_context: true, baggage: true },
            parent_based: false,
            random_ids: false,
        }
    }
}

/// Version and schema of our scopes.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

impl Telemetry {
    /// An enabled handle. A signal without a provider is off.
    pub(super) fn from_parts(
        groups: SpanGroups,
        tracer_provider: Option<SdkTracerProvider>,
        meter_provider: Option<SdkMeterProvider>,
        logger_provider: Option<SdkLoggerProvider>,
        facts: Facts,
        owned: Providers,
    ) -> Self {
        let switches = Switches::new(groups, tracer_provider.is_some(), meter_provider.is_some());
        Self::assemble(switches, tracer_provider, meter_provider, logger_provider, facts, owned)
    }

    /// A handle that does nothing but knows who and in which run this process is.
    pub(super) fn off(identity: ServerIdentity, run_id: String) -> Self {
        Self::assemble(Switches::OFF, None, None, None, Facts::off(identity, run_id), Providers::default())
    }

    fn assemble(
        switches: Switches,
        tracer_provider: Option<SdkTracerProvider>,
        meter_provider: Option<SdkMeterProvider>,
        logger_provider: Option<SdkLoggerProvider>,
        facts: Facts,
        owned: Providers,
    ) -> Self {
        let exports_metrics = meter_provider.is_some();
        let tracer_provider = tracer_provider.unwrap_or_else(|| SdkTracerProvider::builder().build());
        let meter_provider = meter_provider.unwrap_or_else(|| SdkMeterProvider::builder().build());
        let own = || {
            let scope = InstrumentationScope::builder("nemo_gym_telemetry").with_version(env!("CARGO_PKG_VERSION"));
            tracer_provider.tracer_with_scope(scope.with_schema_url(SCHEMA_URL).build())
        };
        let instruments = Instruments::new(&meter_provider, &facts.identity);
        if exports_metrics {
            owned.ledger.observe(&instruments.meter);
        }
        Self {
            shared: Arc::new(Shared {
                switches: AtomicU32::new(switches.0),
                tracers: [
                    own(),
                    tracer_provider.tracer("nemo.gym"),
                    tracer_provider.tracer("nemo.lens.helpers"),
                    tracer_provider.tracer("nemo.lens"),
                ],
                runtime_monitors: Monitors::new(instruments.meter.clone(), switches.metrics()),
                instruments,
                startup: HandleStartup::default(),
                tracer_provider,
                meters: GuardedMeterProvider::new(meter_provider.clone()),
                meter_provider,
                logger_provider,
                exports_metrics,
                facts,
                process_wide: AtomicBool::new(false),
                servers: AtomicUsize::new(0),
                ledger: owned.ledger.clone(),
                lifecycle: Lifecycle::new(owned),
            }),
        }
    }

    /// Choices for a new handle.
    pub fn builder() -> super::TelemetryBuilder {
        super::TelemetryBuilder::default()
    }

    /// A handle with everything off: no thread, no socket, no timer.
    pub fn disabled() -> Self {
        Self::disabled_ref().clone()
    }

    /// The process-wide handle, without counting a reference.
    #[inline]
    pub(crate) fn process() -> &'static Self {
        GLOBAL.get().unwrap_or_else(|| Self::disabled_ref())
    }

    fn disabled_ref() -> &'static Self {
        static DISABLED: OnceLock<Telemetry> = OnceLock::new();
        DISABLED.get_or_init(|| Self::off(ServerIdentity::unknown(), String::new()))
    }

    #[inline]
    pub(crate) fn switches(&self) -> Switches {
        self.shared.switches()
    }
    #[inline]
    pub(crate) fn tracer(&self, scope: Scope) -> &SdkTracer {
        &self.shared.tracers[scope as usize]
    }
    #[inline]
    pub(crate) fn instruments(&self) -> &Instruments {
        &self.shared.instruments
    }
    pub(crate) fn startup(&self) -> &HandleStartup {
        &self.shared.startup
    }
    #[inline]
    pub(crate) fn runtime_monitors(&self) -> &Monitors {
        &self.shared.runtime_monitors
    }
    #[inline]
    pub(crate) fn parent_based(&self) -> bool {
        self.shared.facts.parent_based
    }
    /// Trace ids of new roots are random (W3C Trace Context Level 2).
    #[inline]
    pub(crate) fn random_ids(&self) -> bool {
        self.shared.facts.random_ids
    }
    /// What is read from and written to headers.
    #[inline]
    pub(crate) fn propagators(&self) -> PropagatorChoice {
        self.shared.facts.propagators
    }

    /// Whether telemetry is on: initialised as enabled and not yet shut down.
    pub fn is_enabled(&self) -> bool {
        !self.switches().is_off()
    }
    /// The span groups that are on.
    pub fn span_groups(&self) -> SpanGroups {
        self.switches().groups()
    }
    /// Who this server is.
    pub fn identity(&self) -> &ServerIdentity {
        &self.shared.facts.identity
    }
    /// The tracer provider; one without processors when traces are off.
    pub fn tracer_provider(&self) -> &SdkTracerProvider {
        &self.shared.tracer_provider
    }
    /// The meter provider; one without readers when metrics are off.
    pub fn meter_provider(&self) -> &SdkMeterProvider {
        &self.shared.meter_provider
    }
    /// The logger provider; `None` when logs are off.
    pub fn logger_provider(&self) -> Option<&SdkLoggerProvider> {
        self.shared.logger_provider.as_ref()
    }
    /// A meter for metrics of your own. Unlike one of [`Telemetry::meter_provider`], it guards callbacks of
    /// observable instruments: one that panics or blocks costs the value of its own instrument only.
    pub fn meter(&self, name: &'static str) -> Meter {
        self.shared.meters.meter(name)
    }
    /// The meter provider behind [`Telemetry::meter`].
    pub(super) fn guarded_meter_provider(&self) -> GuardedMeterProvider<SdkMeterProvider> {
        self.shared.meters.clone()
    }
    /// Whether spans are made.
    pub(super) fn makes_spans(&self) -> bool {
        self.switches().traces()
    }
    /// The number of servers that run with this handle.
    pub(super) fn servers(&self) -> &AtomicUsize {
        &self.shared.servers
    }
    /// The providers that this handle made and must end.
    pub(super) fn own_providers(&self) -> (Option<SdkTracerProvider>, Option<SdkMeterProvider>) {
        self.shared.lifecycle.own_providers()
    }
    /// The id that all processes of a run share (`nemo.run.id`); empty when telemetry is off and nobody gave one.
    pub fn run_id(&self) -> &str {
        &self.shared.facts.run_id
    }
    /// Whether metrics leave this process: they are on, and an exporter or a provider handed in takes them.
    pub fn is_metrics_exporter_active(&self) -> bool {
        self.shared.exports_metrics && self.switches().metrics()
    }

    /// What became of all that this handle's own exporters were given so far.
    pub fn delivery(&self) -> DeliveryReport {
        self.shared.ledger.snapshot()
    }

    /// Sends everything that is pending and ends telemetry: afterwards requests are served as if it had
    /// never been on. Takes 5 s at most; see [`Telemetry::shutdown_with_timeout`].
    pub async fn shutdown(&self) -> ShutdownReport {
        self.shutdown_with_timeout(DEFAULT_SHUTDOWN_TIMEOUT).await
    }

    /// [`Telemetry::shutdown`] with another bound. It holds for all signals together, on every kind of
    /// runtime, and with a collector that does not answer. What could not be sent by then is lost: it is
    /// counted in the report and said on stderr.
    ///
    /// Providers that were handed in are left alone. A second call sends nothing and returns the first
    /// one's report. The work goes on when the future is dropped.
    pub async fn shutdown_with_timeout(&self, timeout: Duration) -> ShutdownReport {
        let telemetry = self.clone();
        on_a_thread("gym-shutdown", move || telemetry.shutdown_blocking(timeout)).await
    }

    /// [`Telemetry::shutdown_with_timeout`] for code that is not async, `Drop` included. It blocks the
    /// calling thread but never waits for a runtime's thread, so it cannot deadlock on one.
    pub fn shutdown_blocking(&self, timeout: Duration) -> ShutdownReport {
        self.shared.end(timeout)
    }

    /// A guard that shuts telemetry down when it is dropped. To be held by `main`: it covers early returns
    /// and panics.
    pub fn shutdown_guard(&self) -> ShutdownGuard {
        ShutdownGuard::new(self.clone())
    }

    /// Sends what is pending now, within 5 s; whether all of it went out. Telemetry goes on.
    pub async fn flush(&self) -> bool {
        let telemetry = self.clone();
        on_a_thread("gym-flush", move || telemetry.shared.lifecycle.flush(DEFAULT_SHUTDOWN_TIMEOUT)).await
    }
}

impl Shared {
    #[inline]
    fn switches(&self) -> Switches {
        Switches(self.switches.load(Relaxed))
    }

    fn end(&self, timeout: Duration) -> ShutdownReport {
        if !self.switches().is_off() {
            self.switches.store(Switches::ENDED.0, Relaxed);
        }
        if self.process_wide.load(Relaxed) {
            crate::span_group::set_process_groups(SpanGroups::NONE);
        }
        // The last export still tells about the runtimes.
        self.runtime_monitors.close_samples();
        let report = self.lifecycle.end(timeout);
        self.runtime_monitors.stop();
        self.instruments.stop();
        report
    }
}

impl Drop for Shared {
    /// The last clone of an owned handle is gone. The SDK's own `Drop` would wait for each provider in turn.
    fn drop(&mut self) {
        if !self.lifecycle.is_over() {
            self.end(DEFAULT_SHUTDOWN_TIMEOUT);
        }
    }
}

/// Runs blocking work on a new thread, or here when there is none to be had.
async fn on_a_thread<T: Default + Send + 'static>(name: &str, work: impl Fn() -> T + Clone + Send + 'static) -> T {
    let (sender, receiver) = oneshot::channel();
    let on_thread = work.clone();
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || drop(sender.send(on_thread())));
    match spawned {
        Ok(_) => receiver.await.unwrap_or_default(),
        Err(_) => work(),
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("enabled", &self.is_enabled())
            .field("span_groups", &self.span_groups())
            .field("identity", self.identity())
            .finish_non_exhaustive()
    }
}

/// The process-wide handle.
static GLOBAL: OnceLock<Telemetry> = OnceLock::new();

/// The handle that `init_telemetry` made, or a disabled one before that.
pub fn get_telemetry() -> Telemetry {
    Telemetry::process().clone()
}

/// Whether this process's metrics leave it; see [`Telemetry::is_metrics_exporter_active`].
pub fn is_metrics_exporter_active() -> bool {
    get_telemetry().is_metrics_exporter_active()
}

pub(super) fn init_global(make: impl FnOnce() -> Telemetry) -> Telemetry {
    GLOBAL
        .get_or_init(|| {
            let telemetry = make();
            telemetry.shared.process_wide.store(true, Relaxed);
            crate::span_group::set_process_groups(telemetry.span_groups());
            telemetry
        })
        .clone()
}
