//! Makes a telemetry handle: owned, or the process-wide one.

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::handle::{self, Switches, Telemetry};
use crate::config::{Environment, ServerIdentity};
use crate::span_group::SpanGroups;
use crate::startup::Stamp;

/// Choices for a telemetry handle. Made by [`Telemetry::builder`].
#[derive(Debug, Default)]
#[must_use]
pub struct TelemetryBuilder {
    environment: Option<Environment>,
    identity: Option<ServerIdentity>,
    default_identity: Option<ServerIdentity>,
    tracer_provider: Option<SdkTracerProvider>,
    meter_provider: Option<SdkMeterProvider>,
    service_version: Option<String>,
    resource_attributes: Vec<KeyValue>,
}

impl TelemetryBuilder {
    /// Reads settings from this value instead of the process's environment.
    pub fn with_environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
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

    /// Uses a tracer provider of its owner's; it is never shut down by us.
    pub fn with_tracer_provider(mut self, provider: SdkTracerProvider) -> Self {
        self.tracer_provider = Some(provider);
        self
    }

    /// Uses a meter provider of its owner's; it is never shut down by us.
    pub fn with_meter_provider(mut self, provider: SdkMeterProvider) -> Self {
        self.meter_provider = Some(provider);
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

    /// Makes a handle owned by the caller; nothing process-wide changes.
    pub fn build(self) -> Telemetry {
        let began = Stamp::now();
        let environment = self.environment.unwrap_or_else(Environment::from_process);
        let on = self.tracer_provider.is_some() || self.meter_provider.is_some();
        let groups = environment
            .get("NEMO_GYM_OTEL_SPAN_GROUPS")
            .map_or(SpanGroups::DEFAULT, |spec| SpanGroups::resolve(spec).0);
        let switches = if on {
            Switches::new(groups, self.tracer_provider.is_some(), self.meter_provider.is_some())
        } else {
            Switches::OFF
        };
        let telemetry = Telemetry::from_parts(
            switches,
            self.tracer_provider.unwrap_or_else(|| SdkTracerProvider::builder().build()),
            self.meter_provider.unwrap_or_else(|| SdkMeterProvider::builder().build()),
            self.identity.or(self.default_identity).unwrap_or_default(),
            false,
        );
        telemetry.startup().initialised(began, &environment);
        telemetry
    }

    /// Makes the process-wide handle, once; later calls return the first one.
    pub fn init(self) -> Telemetry {
        let telemetry = handle::init_global(|| self.build());
        crate::runtime::ensure_started(&telemetry);
        telemetry
    }
}

/// Initialises this process's telemetry from its environment; later calls return the first handle.
pub fn init_telemetry(identity: ServerIdentity) -> Telemetry {
    Telemetry::builder().with_identity(identity).init()
}
