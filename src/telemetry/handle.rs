//! What a running process needs from telemetry: the switches, tracers and instruments, behind one `Arc`.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use crate::config::ServerIdentity;
use crate::config::settings::PropagatorChoice;
use crate::metrics::Instruments;
use crate::runtime::Monitors;
use crate::span_group::{SpanGroup, SpanGroups};
use crate::startup::HandleStartup;

/// Telemetry is on: received context is adopted and passed on.
const ACTIVE: u32 = 1 << 16;
/// Spans are exported.
const TRACES: u32 = 1 << 17;
/// Metrics are recorded.
const METRICS: u32 = 1 << 18;

/// The switches of a handle, read once at the head of every instrumented request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switches(u32);

impl Switches {
    pub(crate) const OFF: Switches = Switches(0);

    pub(crate) fn new(groups: SpanGroups, traces: bool, metrics: bool) -> Self {
        Switches(groups.bits() | ACTIVE | if traces { TRACES } else { 0 } | if metrics { METRICS } else { 0 })
    }
    /// Wholly off: nothing is measured, headers stay untouched.
    #[inline]
    pub(crate) fn is_off(self) -> bool {
        self.0 == 0
    }
    /// Whether spans of the group are made.
    #[inline]
    pub(crate) fn spans(self, group: SpanGroup) -> bool {
        self.0 & (group.bit() | TRACES) == group.bit() | TRACES
    }
    /// Whether the group's metrics are recorded.
    #[inline]
    pub(crate) fn metrics_of(self, group: SpanGroup) -> bool {
        self.0 & (group.bit() | METRICS) == group.bit() | METRICS
    }
    /// Whether metrics are recorded at all.
    #[inline]
    pub(crate) fn metrics(self) -> bool {
        self.0 & METRICS != 0
    }
    pub(crate) fn groups(self) -> SpanGroups {
        SpanGroups::from_bits(self.0)
    }
}

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
    instruments: Instruments,
    runtime_monitors: Monitors,
    startup: HandleStartup,
    identity: ServerIdentity,
    /// The sampler decides by the parent's sampled flag when there is a parent.
    parent_based: bool,
}

/// Version and schema of our scopes.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

impl Telemetry {
    pub(crate) fn from_parts(
        switches: Switches,
        tracer_provider: SdkTracerProvider,
        meter_provider: SdkMeterProvider,
        identity: ServerIdentity,
        parent_based: bool,
    ) -> Self {
        let own = || {
            let scope = InstrumentationScope::builder("nemo_gym_telemetry").with_version(env!("CARGO_PKG_VERSION"));
            tracer_provider.tracer_with_scope(scope.with_schema_url(SCHEMA_URL).build())
        };
        let instruments = Instruments::new(&meter_provider, &identity);
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
                meter_provider,
                identity,
                parent_based,
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
        DISABLED.get_or_init(|| {
            Self::from_parts(
                Switches::OFF,
                SdkTracerProvider::builder().build(),
                SdkMeterProvider::builder().build(),
                ServerIdentity::unknown(),
                true,
            )
        })
    }

    #[inline]
    pub(crate) fn switches(&self) -> Switches {
        Switches(self.shared.switches.load(Relaxed))
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
        self.shared.parent_based
    }

    /// Which parts of a context go into and come out of headers.
    #[inline]
    pub(crate) fn propagators(&self) -> PropagatorChoice {
        PropagatorChoice { trace_context: true, baggage: true }
    }
    /// Trace ids of new roots are random.
    #[inline]
    pub(crate) fn random_ids(&self) -> bool {
        true
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
        &self.shared.identity
    }
    /// The tracer provider; one without processors when traces are off.
    pub fn tracer_provider(&self) -> &SdkTracerProvider {
        &self.shared.tracer_provider
    }
    /// The meter provider; one without readers when metrics are off.
    pub fn meter_provider(&self) -> &SdkMeterProvider {
        &self.shared.meter_provider
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

pub(super) fn init_global(make: impl FnOnce() -> Telemetry) -> Telemetry {
    GLOBAL
        .get_or_init(|| {
            let telemetry = make();
            crate::span_group::set_process_groups(telemetry.span_groups());
            telemetry
        })
        .clone()
}
