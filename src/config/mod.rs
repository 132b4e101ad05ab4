//! Configuration: the `telemetry:` block, the environment, and what a supervisor hands its servers.
//!
#![doc = include_str!("../../docs/configuration.md")]

mod block;
mod command;
mod document;
mod environment;
mod error;
mod flags;
mod handover;
mod identity;
mod interpolation;
mod otlp;
pub(crate) mod parse;
mod resolve;
pub(crate) mod settings;
pub mod variables;

#[cfg(test)]
pub(crate) mod tests;

pub use block::{MemoryProfilingConfig, TELEMETRY_CONFIG_KEY, TelemetryConfig};
pub use command::{ChildCommand, strip_telemetry_env};
pub use document::GlobalConfig;
pub use environment::Environment;
pub use error::{ConfigError, ConfigErrorKind};
pub use flags::{
    is_telemetry_env_enabled, is_telemetry_env_enabled_in, is_telemetry_metrics_enabled,
    is_telemetry_metrics_enabled_in, memory_profiling_config_from_env, memory_profiling_config_from_env_in,
};
pub use handover::{TelemetryEnv, configure_telemetry_env, configure_telemetry_env_in};
pub use identity::{ServerIdentity, ServerType};
