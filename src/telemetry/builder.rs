//! Makes a telemetry handle: owned, or the process-wide one.

use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::handle::{self, Facts, Telemetry};
use super::providers::{HandedIn, Providers};
use super::resource::resource;
use crate::config::settings::Settings;
use crate::config::{Environment, ServerIdentity, TelemetryConfig};
use crate::diagnostics;
use crate::propagation::GymPropagator;
use crate::startup::Stamp;

/// Choices for a telemetry handle. Made by [`Telemetry::builder`].
#[derive(Debug, Default)]
#[must_use]
pub struct TelemetryBuilder {
    environment: Option<Environment>,
    config: Option<TelemetryConfig>,
    identity: Option<ServerIdentity>,
    default_identity: Option<ServerIdentity>,
    tracer_provider: Option<SdkTracerProvider>,
    meter_provider: Option<SdkMeterProvider>,
    parent_based_sampler: bool,
    logger_provider: Option<SdkLoggerProvider>,
    service_version: Option<String>,
    resource_attributes: Vec<KeyValue>,
}

impl TelemetryBuilder {
    /// Reads settings from this value instead of the process's environment.
    pub fn with_environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// The `telemetry:` block of the Gym configuration. The environment's variables beat it; see
    /// [`TelemetryConfig`].
    pub fn with_config(mut self, config: TelemetryConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// The server's identity; wins over the environment's.
    pub fn with_identity(mut self, identity: ServerIdentity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// The identity where the environment tells none.
    pub fn with_default_identity(mut self, identity: ServerIdentity) -> Self {
        self.default_identity = Some(identity);
        self
    }

    /// Uses a tracer provider of its owner's; it is never shut down by us, nor made the global one.
    ///
    /// A provider handed in switches telemetry on, unless the environment says that it is off
    /// (`NEMO_GYM_OTEL_ENABLED`, `OTEL_SDK_DISABLED`). Its owner decides about sampler, limits and resource.
    pub fn with_tracer_provider(mut self, provider: SdkTracerProvider) -> Self {
        self.tracer_provider = Some(provider);
        self
    }

    /// Uses a meter provider of its owner's, as [`with_tracer_provider`](Self::with_tracer_provider) does.
    pub fn with_meter_provider(mut self, provider: SdkMeterProvider) -> Self {
        self.meter_provider = Some(provider);
        self
    }

    /// Says that the sampler of the tracer provider handed in drops whatever an unsampled parent has
    /// (`ParentBased`, the SDK's default). An unsampled request then costs next to nothing; otherwise its span has to be
    /// built first for the sampler to see.
    pub fn with_parent_based_sampler(mut self) -> Self {
        self.parent_based_sampler = true;
        self
    }

    /// Uses a logger provider of its owner's, as [`with_tracer_provider`](Self::with_tracer_provider) does.
    pub fn with_logger_provider(mut self, provider: SdkLoggerProvider) -> Self {
        self.logger_provider = Some(provider);
        self
    }

    /// `service.version`: the version of the server that uses this crate.
    pub fn with_service_version(mut self, version: impl Into<String>) -> Self {
        self.service_version = Some(version.into());
        self
    }

    /// Adds a resource attribute.
    pub fn with_resource_attribute(mut self, attribute: KeyValue) -> Self {
        self.resource_attributes.push(attribute);
        self
    }

    /// Makes a handle owned by the caller; nothing process-wide changes. Dropping its last clone shuts it
    /// down, as [`Telemetry::shutdown_blocking`] does with 5 s.
    ///
    /// Never fails: what cannot be used is said in one line, and its default or nothing takes its place.
    pub fn build(self) -> Telemetry {
        let began = Stamp::now();
        let environment = self.environment.unwrap_or_else(Environment::from_process);
        let (settings, mut warnings) = Settings::resolve(&environment, self.config.as_ref());
        let identity = ServerIdentity::resolve(self.identity, &environment, self.default_identity);
        let handed_in = HandedIn {
            tracer: self.tracer_provider.is_some(),
            meter: self.meter_provider.is_some(),
            logger: self.logger_provider.is_some(),
        };
        let switched_off = settings.sdk_disabled || says_off(&environment);
        if !settings.enabled && (switched_off || !handed_in.any()) {
            // What an operator who wants no telemetry has set wrong does not matter.
            return Telemetry::off(identity, settings.run_id);
        }
        let owned = if settings.enabled {
            let (resource, more_warnings) = resource(
                &environment,
                &settings,
                &identity,
                self.service_version.as_deref(),
                &self.resource_attributes,
            );
            warnings.extend(more_warnings);
            Providers::build(&settings, &resource, handed_in)
        } else {
            Providers::default()
        };
        warnings.iter().for_each(|warning| diagnostics::warn_once(warning));
        let facts = Facts {
            identity,
            run_id: settings.run_id.clone(),
            propagators: settings.propagators,
            parent_based: if handed_in.tracer { self.parent_based_sampler } else { settings.sampler.parent_based },
            random_ids: owned.tracer.is_some(),
        };
        let tracer = self.tracer_provider.or_else(|| owned.tracer.clone());
        let meter = self.meter_provider.or_else(|| owned.meter.clone());
        let logger = self.logger_provider.or_else(|| owned.logger.clone());
        let telemetry = Telemetry::from_parts(settings.span_groups, tracer, meter, logger, facts, owned);
        telemetry.runtime_monitors().configure(&settings);
        telemetry.startup().initialised(began, &environment);
        telemetry
    }

    /// Makes the process-wide handle, once; later calls return the first one, shut down or not.
    ///
    /// Callable from any thread, inside a runtime or not. Makes the providers of this crate (not those
    /// handed in) and its propagator the global ones.
    pub fn init(self) -> Telemetry {
        let telemetry = handle::init_global(|| {
            let telemetry = self.build();
            if telemetry.is_enabled() {
                global::set_text_map_propagator(GymPropagator::with_choice(telemetry.propagators()));
            }
            let (tracer, meter) = telemetry.own_providers();
            if let Some(provider) = tracer {
                global::set_tracer_provider(provider);
            }
            if meter.is_some() {
                global::set_meter_provider(telemetry.guarded_meter_provider());
            }
            telemetry
        });
        crate::runtime::ensure_started(&telemetry);
        telemetry
    }
}

/// Whether a variable switches telemetry off in so many words.
fn says_off(environment: &Environment) -> bool {
    use crate::config::variables::{NEMO_GYM_OTEL_ENABLED, NEMO_LENS_ENABLED};
    [NEMO_GYM_OTEL_ENABLED, NEMO_LENS_ENABLED].iter().any(|name| environment.get(name).is_some())
        && !crate::config::is_telemetry_env_enabled_in(environment)
}

/// Initialises this process's telemetry from its environment; later calls return the first handle.
pub fn init_telemetry(identity: ServerIdentity) -> Telemetry {
    Telemetry::builder().with_identity(identity).init()
}
