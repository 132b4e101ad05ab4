//! Upstream's questions to the environment.

use super::variables::{Reader, typed};
use super::{Environment, MemoryProfilingConfig};
use crate::diagnostics::warn_once;

/// Whether this process's environment switches telemetry on: see [`is_telemetry_env_enabled_in`].
pub fn is_telemetry_env_enabled() -> bool {
    is_telemetry_env_enabled_in(&Environment::from_process())
}

/// Whether an environment switches telemetry on: the first of `NEMO_GYM_OTEL_ENABLED` and
/// `NEMO_LENS_ENABLED` that is not blank decides. Neither: false. Says nothing of `OTEL_SDK_DISABLED`,
/// which stops initialisation all the same.
pub fn is_telemetry_env_enabled_in(env: &Environment) -> bool {
    say(env, |r| r.read(&typed::NEMO_GYM_OTEL_ENABLED).or(None, false))
}

/// Whether this process's environment leaves metrics on: see [`is_telemetry_metrics_enabled_in`].
pub fn is_telemetry_metrics_enabled() -> bool {
    is_telemetry_metrics_enabled_in(&Environment::from_process())
}

/// Whether an environment leaves metrics on: the first of `NEMO_GYM_OTEL_METRICS_ENABLED` and
/// `NEMO_LENS_METRICS_ENABLED` that is not blank decides. Neither, or no boolean: true.
pub fn is_telemetry_metrics_enabled_in(env: &Environment) -> bool {
    say(env, |r| r.read(&typed::NEMO_GYM_OTEL_METRICS_ENABLED).or(None, true))
}

/// What this process's environment says of memory profiling: see [`memory_profiling_config_from_env_in`].
pub fn memory_profiling_config_from_env() -> MemoryProfilingConfig {
    memory_profiling_config_from_env_in(&Environment::from_process())
}

/// What an environment says of memory profiling: `NEMO_GYM_OTEL_MEMORY_PROFILING_ENABLED` (default:
/// off) and `NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS` (default: 1.0). A bad interval is warned
/// about and means the default.
pub fn memory_profiling_config_from_env_in(env: &Environment) -> MemoryProfilingConfig {
    say(env, |r| memory_profiling(r, None))
}

pub(crate) fn memory_profiling(r: &mut Reader<'_>, block: Option<&MemoryProfilingConfig>) -> MemoryProfilingConfig {
    let default = MemoryProfilingConfig::default();
    let enabled = r.read(&typed::NEMO_GYM_OTEL_MEMORY_PROFILING_ENABLED).or(block.map(|b| b.enabled), default.enabled);
    let interval_seconds = r
        .read(&typed::NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS)
        .or(block.map(|b| b.interval_seconds), default.interval_seconds);
    MemoryProfilingConfig { enabled, interval_seconds }
}

/// Asks, and says what was wrong, once a process.
fn say<T>(env: &Environment, ask: impl FnOnce(&mut Reader<'_>) -> T) -> T {
    let mut reader = Reader::new(env);
    let answer = ask(&mut reader);
    reader.warnings.iter().for_each(|warning| warn_once(warning));
    answer
}
