//! What a supervisor hands to the servers it starts.

use super::resolve::{RunId, enabled, run_id};
use super::variables::{self, Reader, VariableInfo, typed};
use super::{ChildCommand, Environment, TelemetryConfig, parse};
use crate::diagnostics::warn_once;

/// The variables that a supervisor puts on each server it starts, so that they all take part in one
/// run. Made by [`configure_telemetry_env`]; empty when telemetry is off.
///
/// It holds only what the servers do not inherit anyway: a variable that the user has set is left alone.
/// Values may be secret (`OTEL_EXPORTER_OTLP_HEADERS`); `Debug` shows names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TelemetryEnv {
    run_id: Option<String>,
    variables: Vec<(&'static str, String)>,
}

impl TelemetryEnv {
    /// Telemetry is off: nothing is handed over.
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Whether telemetry is on.
    pub fn is_enabled(&self) -> bool {
        self.run_id.is_some()
    }

    /// The run's id; `None` when telemetry is off.
    pub fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    /// The variables and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Puts the variables on a command, `std`'s or tokio's. Everything else the command inherits stays;
    /// nothing changes when telemetry is off.
    ///
    /// ```
    /// use nemo_gym_telemetry::{TelemetryConfig, configure_telemetry_env};
    ///
    /// let mut config = TelemetryConfig::default();
    /// config.enabled = true;
    /// let telemetry = configure_telemetry_env(&config);
    /// let mut server = std::process::Command::new("my_server");
    /// telemetry.apply_to(&mut server);
    /// ```
    pub fn apply_to<C: ChildCommand>(&self, command: &mut C) {
        command.std_command().envs(self.iter());
    }
}

impl<'a> IntoIterator for &'a TelemetryEnv {
    type Item = (&'a str, &'a str);
    type IntoIter = std::iter::Map<
        std::slice::Iter<'a, (&'static str, String)>,
        fn(&'a (&'static str, String)) -> (&'a str, &'a str),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.variables.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

impl std::fmt::Debug for TelemetryEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TelemetryEnv")
            .field("run_id", &self.run_id)
            .field("variables", &self.variables.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .finish()
    }
}

/// What the servers of a run get, from the block and this process's environment: see
/// [`configure_telemetry_env_in`].
pub fn configure_telemetry_env<'a>(config: impl Into<Option<&'a TelemetryConfig>>) -> TelemetryEnv {
    configure_telemetry_env_in(config, &Environment::from_process())
}

/// What the servers of a run get, from the block and an environment.
///
/// Nothing without a block (`None`), and nothing unless the block or the environment switches telemetry
/// on: `NEMO_GYM_OTEL_ENABLED` beats the block, which beats `NEMO_LENS_ENABLED`. Otherwise every field of
/// the block becomes a variable, except where the user has set that variable, or its `NEMO_LENS_*`
/// counterpart, to something that is not blank; fields that are null or blank become none. The run id is
/// the user's, else the block's, else `SLURM_JOB_ID`, else 12 generated hex digits.
///
/// This process's environment does not change. A supervisor that takes part in the run itself
/// initialises its telemetry with [`Environment::with`] these variables.
pub fn configure_telemetry_env_in<'a>(
    config: impl Into<Option<&'a TelemetryConfig>>,
    env: &Environment,
) -> TelemetryEnv {
    let (handed_over, warnings) = configure(config.into(), env);
    warnings.iter().for_each(|warning| warn_once(warning));
    handed_over
}

pub(super) fn configure(config: Option<&TelemetryConfig>, env: &Environment) -> (TelemetryEnv, Vec<String>) {
    let Some(config) = config else { return (TelemetryEnv::disabled(), Vec::new()) };
    let mut reader = Reader::new(env);
    if !enabled(&mut reader, Some(config)) {
        return (TelemetryEnv::disabled(), reader.warnings);
    }
    let mut out = Fields { config, reader, variables: Vec::new() };
    if !out.reader.is_set(variables::NEMO_GYM_OTEL_ENABLED) {
        out.variables.push((variables::NEMO_GYM_OTEL_ENABLED, "1".to_owned()));
    }

    let default = TelemetryConfig::default();
    out.shared(&typed::NEMO_GYM_OTEL_SPAN_GROUPS.info, "span_groups", &config.span_groups, &default.span_groups);
    let switches = [
        (&typed::NEMO_GYM_OTEL_TRACES_ENABLED, "traces_enabled", config.traces_enabled, default.traces_enabled),
        (&typed::NEMO_GYM_OTEL_METRICS_ENABLED, "metrics_enabled", config.metrics_enabled, default.metrics_enabled),
        (&typed::NEMO_GYM_OTEL_LOGS_ENABLED, "logs_enabled", config.logs_enabled, default.logs_enabled),
    ];
    for (variable, field, value, default) in switches {
        out.shared(&variable.info, field, switch(value), switch(default));
    }
    out.shared(&typed::NEMO_GYM_OTEL_EXPORTER.info, "exporter", &config.exporter, &default.exporter);
    let id = out.run_id();

    let memory = &config.memory_profiling;
    out.own(variables::OTEL_SERVICE_NAME, &config.service_name);
    out.own(variables::NEMO_GYM_OTEL_SERVICE_NAME_PER_SERVER, switch(config.service_name_per_server));
    out.own(variables::OTEL_EXPORTER_OTLP_ENDPOINT, config.otlp_endpoint.as_deref().unwrap_or_default());
    out.own(variables::OTEL_EXPORTER_OTLP_PROTOCOL, config.otlp_protocol.as_deref().unwrap_or_default());
    out.own(variables::OTEL_EXPORTER_OTLP_HEADERS, config.otlp_headers.as_deref().unwrap_or_default());
    out.own(variables::NEMO_GYM_OTEL_MEMORY_PROFILING_ENABLED, switch(memory.enabled));
    out.own(variables::NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS, &python_text(memory.interval_seconds));
    let sample_interval = python_text(config.event_loop_sample_interval_seconds);
    out.own(variables::NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS, &sample_interval);
    out.own(variables::NEMO_GYM_OTEL_EVENT_LOOP_TASK_COUNT, switch(config.event_loop_task_count));
    (TelemetryEnv { run_id: Some(id), variables: out.variables }, out.reader.warnings)
}

fn switch(value: bool) -> &'static str {
    if value { "1" } else { "0" }
}

/// The block's fields on their way to becoming variables.
struct Fields<'a> {
    config: &'a TelemetryConfig,
    reader: Reader<'a>,
    variables: Vec<(&'static str, String)>,
}

impl Fields<'_> {
    /// A field whose variable has no `NEMO_LENS_*` counterpart.
    fn own(&mut self, name: &'static str, value: &str) {
        if !self.reader.is_set(name) && !parse::strip(value).is_empty() {
            self.variables.push((name, value.to_owned()));
        }
    }

    /// A field whose variable has such a counterpart: servers read that one by themselves, unless the
    /// variable proper is written over it.
    fn shared(&mut self, variable: &VariableInfo, field: &str, value: &str, default: &str) {
        let lens = variable.fallback.filter(|name| self.reader.is_set(name));
        match lens {
            Some(lens) => self.contradiction(lens, field, value, self.config.was_written(field) || value != default),
            None => self.own(variable.name, value),
        }
    }

    /// One warning where the block says one thing and a `NEMO_LENS_*` variable another.
    fn contradiction(&mut self, lens: &str, field: &str, value: &str, explicit: bool) {
        let in_environment = self.reader.value(lens).unwrap_or_default();
        let same = match parse::boolean_word(in_environment) {
            Some(set) => parse::boolean_word(value) == Some(set),
            None => in_environment == parse::strip(value),
        };
        if explicit && !same {
            self.reader
                .warnings
                .push(format!("{lens} beats telemetry.{field} of the configuration, which says otherwise"));
        }
    }

    fn run_id(&mut self) -> String {
        let lens = variables::NEMO_LENS_RUN_ID;
        if let (true, Some(block)) = (self.reader.is_set(lens), &self.config.run_id) {
            self.contradiction(lens, "run_id", block, true);
        }
        match run_id(&mut self.reader, Some(self.config)) {
            RunId::Environment(id) => id,
            RunId::Own(id) => {
                self.variables.push((variables::NEMO_GYM_OTEL_RUN_ID, id.clone()));
                id
            }
        }
    }
}

/// A number as Python's `str` writes it: the shortest digits that give the number back, an exponent
/// below 1e-4 and from 1e16 on.
fn python_text(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..16) => format!("{value:?}"),
        Ok(power) => format!("{mantissa}e{}{:02}", if power < 0 { '-' } else { '+' }, power.unsigned_abs()),
        Err(_) => scientific,
    }
}

#[cfg(test)]
mod tests {
    use super::python_text;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        // Each checked against CPython's repr.
        let cases = [
            (1.0, "1.0"),
            (5.0, "5.0"),
            (0.25, "0.25"),
            (1e-05, "1e-05"),
            (0.0001, "0.0001"),
            (0.00012345, "0.00012345"),
            (1.5e-7, "1.5e-07"),
            (1e22, "1e+22"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9007199254740993.0, "9007199254740992.0"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::INFINITY, "inf"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_text(value), expected);
        }
    }
}
