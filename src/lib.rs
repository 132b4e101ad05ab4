//! OpenTelemetry for Rust servers in a NeMo Gym fleet.

#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations)]

pub mod config;
mod diagnostics;
pub mod egress;
pub mod ingress;
pub mod job;
pub mod metrics;
pub mod propagation;
pub mod rollout;
pub mod runtime;
pub mod sandbox;
pub mod span;
pub mod span_group;
pub mod startup;
#[cfg(feature = "supervisor")]
pub mod supervisor;
pub mod telemetry;

pub use config::{
    ConfigError, Environment, MemoryProfilingConfig, ServerIdentity, ServerType, TELEMETRY_CONFIG_KEY, TelemetryConfig,
    TelemetryEnv, configure_telemetry_env, configure_telemetry_env_in, is_telemetry_env_enabled,
    is_telemetry_env_enabled_in, is_telemetry_metrics_enabled, is_telemetry_metrics_enabled_in,
    memory_profiling_config_from_env, memory_profiling_config_from_env_in, strip_telemetry_env,
};
pub use opentelemetry;
pub use propagation::GymPropagator;
pub use span_group::{ALL_GROUPS, CROSS_PROCESS_SPINE, SpanGroup, SpanGroups, is_span_group_enabled};
pub use telemetry::logs::init_tracing;
pub use telemetry::{
    DeliveryReport, ShutdownGuard, ShutdownReport, SignalDelivery, Telemetry, TelemetryBuilder, get_telemetry,
    init_telemetry, is_metrics_exporter_active, serve, shutdown_telemetry,
};
