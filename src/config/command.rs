//! Commands of child processes: what telemetry does with their environment.

use std::ffi::OsStr;

use super::TELEMETRY_CONFIG_KEY;
use super::document::{GlobalConfig, Node};
use super::variables::NEMO_GYM_CONFIG_DICT;

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::process::Command {}
    impl Sealed for tokio::process::Command {}
}

/// A command whose environment can be prepared: `std`'s or tokio's.
pub trait ChildCommand: sealed::Sealed {
    /// The command as the standard library knows it.
    fn std_command(&mut self) -> &mut std::process::Command;
}

impl ChildCommand for std::process::Command {
    fn std_command(&mut self) -> &mut std::process::Command {
        self
    }
}

impl ChildCommand for tokio::process::Command {
    fn std_command(&mut self) -> &mut std::process::Command {
        self.as_std_mut()
    }
}

/// Beginnings of the names of telemetry variables, those that this crate does not know included.
const PREFIXES: [&str; 4] = ["OTEL_", "NEMO_GYM_OTEL_", "NEMO_LENS_", "NEMO_GYM_STARTUP_"];

/// The context of a trace in environment variables (OpenTelemetry specification, environment variables
/// as context propagation carriers).
const CONTEXT: [&str; 3] = ["TRACEPARENT", "TRACESTATE", "BAGGAGE"];

/// Takes every telemetry variable from a command, so that what it starts (a sandbox, say) sees neither
/// the collector's address nor its credentials: all `OTEL_*`, `NEMO_GYM_OTEL_*`, `NEMO_LENS_*` and
/// `NEMO_GYM_STARTUP_*`, inherited or set on the command, and the trace context (`TRACEPARENT`,
/// `TRACESTATE`, `BAGGAGE`). `NEMO_GYM_CONFIG_DICT` goes too, unless it plainly holds no `telemetry`
/// block, where credentials may stand as well. Other variables stay.
///
/// Call it when the command's environment is complete.
///
/// ```
/// let mut sandbox = std::process::Command::new("sandbox");
/// nemo_gym_telemetry::strip_telemetry_env(&mut sandbox);
/// ```
pub fn strip_telemetry_env<C: ChildCommand>(command: &mut C) {
    let command = command.std_command();
    let inherited = std::env::vars_os().map(|(name, _)| name);
    let own = command.get_envs().filter(|(_, value)| value.is_some()).map(|(name, _)| name.to_owned());
    let telemetry: Vec<_> = inherited.chain(own).filter(|name| is_telemetry_variable(name)).collect();
    for name in telemetry {
        command.env_remove(name);
    }

    let own = command.get_envs().find(|(name, _)| *name == NEMO_GYM_CONFIG_DICT).map(|(_, value)| value);
    let config = own.map_or_else(|| std::env::var_os(NEMO_GYM_CONFIG_DICT), |value| value.map(OsStr::to_owned));
    if config.is_some_and(|config| may_hold_block(&config)) {
        command.env_remove(NEMO_GYM_CONFIG_DICT);
    }
}

fn is_telemetry_variable(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    PREFIXES.iter().any(|prefix| bytes.starts_with(prefix.as_bytes()))
        || CONTEXT.iter().any(|context| bytes == context.as_bytes())
}

fn may_hold_block(config: &OsStr) -> bool {
    let entry = config.to_str().map(|text| GlobalConfig::Text(text).entry(TELEMETRY_CONFIG_KEY));
    !matches!(entry, Some(Ok(None | Some(Node::Null))))
}
