//! The environment as a value.

use std::collections::BTreeMap;

use super::parse::strip;

/// A snapshot of environment variables. Everything that reads configuration reads it from such a
/// value, so that tests run in parallel and nothing depends on when the process's own variables change.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process, now. Bytes of a value that are not UTF-8 become U+FFFD, so that a
    /// damaged value is heard of as a bad one instead of passing for unset; variables whose *name* is
    /// not UTF-8 are left out.
    pub fn from_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
                .collect(),
        )
    }

    /// The variable's value as it stands, blank or not.
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The variable's value without surrounding white space; `None` when unset or blank
    /// (OpenTelemetry specification: an empty value is an unset one).
    pub fn get(&self, name: &str) -> Option<&str> {
        self.raw(name).map(strip).filter(|v| !v.is_empty())
    }

    /// Sets a variable in this value (never in the process).
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// This environment with further variables, which win over those of the same name: for example
    /// what [`configure_telemetry_env`](crate::configure_telemetry_env) hands to a supervisor's servers.
    ///
    /// ```
    /// use nemo_gym_telemetry::{Environment, TelemetryConfig, configure_telemetry_env_in};
    ///
    /// let environment = Environment::from_iter([("SLURM_JOB_ID", "4242")]);
    /// let mut config = TelemetryConfig::default();
    /// config.enabled = true;
    /// let handed_over = configure_telemetry_env_in(&config, &environment);
    /// let own = environment.with(&handed_over);
    /// assert_eq!(own.get("NEMO_GYM_OTEL_RUN_ID"), Some("4242"));
    /// ```
    #[must_use]
    pub fn with<K: Into<String>, V: Into<String>>(mut self, variables: impl IntoIterator<Item = (K, V)>) -> Self {
        self.0.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Every variable, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        Self(iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

/// Names only: values may be secret.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Environment").field(&self.0.keys().collect::<Vec<_>>()).finish()
    }
}
