//! The `telemetry:` block of a Gym configuration.

use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::document::{GlobalConfig, Node};
use super::error::{ConfigError, ConfigErrorKind};
use super::{Environment, interpolation, parse};

/// The key of the block in a Gym configuration.
pub const TELEMETRY_CONFIG_KEY: &str = "telemetry";

/// The `telemetry:` block, by which a supervisor configures a fleet. Absent fields have their defaults;
/// unknown keys are accepted and ignored, so that configurations of other versions load.
///
/// Reading is as lax as upstream's (pydantic's lax mode): booleans may be `1`, `"yes"`, `"OFF"` …,
/// intervals may be numeric texts; texts must be texts. Errors name the field. Exporter, protocol, span
/// groups and endpoint are not checked here; a bad one is warned about where it is used.
///
/// ```
/// use nemo_gym_telemetry::TelemetryConfig;
///
/// let config = TelemetryConfig::from_global_config(
///     "telemetry:\n  enabled: yes\n  span_groups: per_rollout\npolicy_model: {}\n",
/// )?;
/// assert!(config.enabled);
/// assert_eq!(config.span_groups, "per_rollout");
/// # Ok::<(), nemo_gym_telemetry::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TelemetryConfig {
    /// Whether telemetry is on. Default: false.
    pub enabled: bool,
    /// The service's name before a server's name is appended. Default: `nemo-gym`; blank means the default.
    pub service_name: String,
    /// Whether `service.name` is `<service>/<server>`. Default: true.
    pub service_name_per_server: bool,
    /// Span groups and presets, separated by commas. Default: `default`.
    pub span_groups: String,
    /// Whether spans are exported. Default: true.
    pub traces_enabled: bool,
    /// Whether metrics are exported. Default: true.
    pub metrics_enabled: bool,
    /// Whether log records are exported. Default: false.
    pub logs_enabled: bool,
    /// `otlp` (the default) or `console`.
    pub exporter: String,
    /// The run's id. Default: `SLURM_JOB_ID`, else a generated one.
    pub run_id: Option<String>,
    /// As `OTEL_EXPORTER_OTLP_ENDPOINT`, which beats it.
    pub otlp_endpoint: Option<String>,
    /// As `OTEL_EXPORTER_OTLP_PROTOCOL`, which beats it.
    pub otlp_protocol: Option<String>,
    /// As `OTEL_EXPORTER_OTLP_HEADERS`, which beats it. Secret: `Debug` does not show it.
    pub otlp_headers: Option<String>,
    /// Sampling of the servers' memory by the supervisor.
    pub memory_profiling: MemoryProfilingConfig,
    /// Seconds between samples of a server's event loop or runtime. Default: 1.0.
    #[serde(serialize_with = "number")]
    pub event_loop_sample_interval_seconds: f64,
    /// Whether Python servers count their tasks. Default: false. The Rust gauge is always there.
    pub event_loop_task_count: bool,
    #[serde(skip)]
    written: Written,
}

/// Sampling of the servers' memory by the supervisor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MemoryProfilingConfig {
    /// Whether memory is sampled. Default: false.
    pub enabled: bool,
    /// Seconds between samples, greater than 0; may be infinite. Default: 1.0.
    #[serde(serialize_with = "number")]
    pub interval_seconds: f64,
}

impl MemoryProfilingConfig {
    /// The interval put between 10 ms and a day: never a spin, always a date.
    pub fn interval(&self) -> Duration {
        parse::interval_of(self.interval_seconds)
    }
}

impl Default for MemoryProfilingConfig {
    fn default() -> Self {
        Self { enabled: false, interval_seconds: 1.0 }
    }
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            service_name: "nemo-gym".to_owned(),
            service_name_per_server: true,
            span_groups: "default".to_owned(),
            traces_enabled: true,
            metrics_enabled: true,
            logs_enabled: false,
            exporter: "otlp".to_owned(),
            run_id: None,
            otlp_endpoint: None,
            otlp_protocol: None,
            otlp_headers: None,
            memory_profiling: MemoryProfilingConfig::default(),
            event_loop_sample_interval_seconds: 1.0,
            event_loop_task_count: false,
            written: Written::default(),
        }
    }
}

/// Which fields stood in the block, as far as it matters: those that a `NEMO_LENS_*` variable may
/// contradict. Configurations are equal whichever of their defaults were written out.
#[derive(Clone, Debug, Default)]
struct Written(Vec<&'static str>);

impl PartialEq for Written {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl TelemetryConfig {
    /// The optional `telemetry` block of a Gym configuration, given as JSON or YAML text or as a
    /// `serde_json::Value`. No block, or null: all defaults, which means disabled.
    ///
    /// `${oc.env:NAME}` and `${oc.env:NAME,default}` in texts are resolved from this process's
    /// environment, where a blank variable is an unset one; [`Self::from_global_config_in`] takes
    /// another environment.
    ///
    /// # Errors
    /// The text is neither JSON nor YAML, or a field cannot be used, or it holds an interpolation that
    /// cannot be resolved. The error names the field and never shows its value.
    pub fn from_global_config<'a>(config: impl Into<GlobalConfig<'a>>) -> Result<Self, ConfigError> {
        Self::from_global_config_in(config, &Environment::from_process())
    }

    /// [`Self::from_global_config`] with interpolations resolved from an environment given as a value.
    ///
    /// # Errors
    /// As [`Self::from_global_config`].
    pub fn from_global_config_in<'a>(
        config: impl Into<GlobalConfig<'a>>,
        env: &Environment,
    ) -> Result<Self, ConfigError> {
        match config.into().entry(TELEMETRY_CONFIG_KEY)? {
            Some(block) => Self::from_node(&block, Some(env)),
            None => Ok(Self::default()),
        }
    }

    fn from_node(block: &Node, env: Option<&Environment>) -> Result<Self, ConfigError> {
        let block = resolved(block, env).map_err(|kind| ConfigError::new("", kind))?;
        let fields = match &block {
            Node::Null => return Ok(Self::default()),
            Node::Map(_) => Fields { block: &block, env },
            _ => return Err(ConfigError::new("", ConfigErrorKind::ModelType)),
        };
        let default = Self::default();
        let memory = match fields.field("memory_profiling", Ok)? {
            None => default.memory_profiling,
            Some(node @ Node::Map(_)) => {
                memory_profiling(Fields { block: &node, env }).map_err(|e| e.within("memory_profiling"))?
            }
            Some(_) => return Err(ConfigError::new("memory_profiling", ConfigErrorKind::ModelType)),
        };
        let lens = ["span_groups", "traces_enabled", "metrics_enabled", "logs_enabled", "exporter", "run_id"];
        Ok(Self {
            enabled: fields.field("enabled", boolean)?.unwrap_or(default.enabled),
            service_name: fields.field("service_name", text)?.unwrap_or(default.service_name),
            service_name_per_server: fields
                .field("service_name_per_server", boolean)?
                .unwrap_or(default.service_name_per_server),
            span_groups: fields.field("span_groups", text)?.unwrap_or(default.span_groups),
            traces_enabled: fields.field("traces_enabled", boolean)?.unwrap_or(default.traces_enabled),
            metrics_enabled: fields.field("metrics_enabled", boolean)?.unwrap_or(default.metrics_enabled),
            logs_enabled: fields.field("logs_enabled", boolean)?.unwrap_or(default.logs_enabled),
            exporter: fields.field("exporter", text)?.unwrap_or(default.exporter),
            run_id: fields.field("run_id", text_or_null)?.flatten(),
            otlp_endpoint: fields.field("otlp_endpoint", text_or_null)?.flatten(),
            otlp_protocol: fields.field("otlp_protocol", text_or_null)?.flatten(),
            otlp_headers: fields.field("otlp_headers", text_or_null)?.flatten(),
            memory_profiling: memory,
            event_loop_sample_interval_seconds: fields
                .field("event_loop_sample_interval_seconds", positive)?
                .unwrap_or(default.event_loop_sample_interval_seconds),
            event_loop_task_count: fields
                .field("event_loop_task_count", boolean)?
                .unwrap_or(default.event_loop_task_count),
            written: Written(lens.into_iter().filter(|name| block.get(name).is_some()).collect()),
        })
    }

    /// Whether a field stood in the block (only those that have a `NEMO_LENS_*` variable are known).
    pub(crate) fn was_written(&self, field: &str) -> bool {
        self.written.0.contains(&field)
    }
}

fn memory_profiling(fields: Fields<'_>) -> Result<MemoryProfilingConfig, ConfigError> {
    let default = MemoryProfilingConfig::default();
    Ok(MemoryProfilingConfig {
        enabled: fields.field("enabled", boolean)?.unwrap_or(default.enabled),
        interval_seconds: fields.field("interval_seconds", positive)?.unwrap_or(default.interval_seconds),
    })
}

/// The fields of a mapping, interpolations resolved as they are read.
#[derive(Clone, Copy)]
struct Fields<'a> {
    block: &'a Node,
    env: Option<&'a Environment>,
}

impl Fields<'_> {
    fn field<T>(
        self,
        name: &str,
        read: impl FnOnce(Node) -> Result<T, ConfigErrorKind>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(node) = self.block.get(name) else { return Ok(None) };
        resolved(node, self.env).and_then(read).map(Some).map_err(|kind| ConfigError::new(name, kind))
    }
}

/// A value with its interpolations resolved; without an environment there must be none.
fn resolved(node: &Node, env: Option<&Environment>) -> Result<Node, ConfigErrorKind> {
    match (node, env) {
        (Node::Text(text), _) if !interpolation::has_interpolation(text) => Ok(node.clone()),
        (Node::Text(text), Some(env)) => match interpolation::resolve(text, env) {
            Ok(text) => Ok(text.map_or(Node::Null, Node::Text)),
            Err(interpolation::Unresolved) => Err(ConfigErrorKind::Interpolation),
        },
        (Node::Text(_), None) => Err(ConfigErrorKind::Interpolation),
        _ => Ok(node.clone()),
    }
}

fn boolean(node: Node) -> Result<bool, ConfigErrorKind> {
    let whole = |value: i64| match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ConfigErrorKind::BoolParsing),
    };
    match node {
        Node::Bool(value) => Ok(value),
        Node::Int(value) => whole(value),
        Node::Float(value) if value.fract() == 0.0 => whole(value as i64),
        Node::Text(text) => match text.to_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
            "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
            _ => Err(ConfigErrorKind::BoolParsing),
        },
        _ => Err(ConfigErrorKind::BoolType),
    }
}

fn text(node: Node) -> Result<String, ConfigErrorKind> {
    match node {
        Node::Text(text) => Ok(text),
        _ => Err(ConfigErrorKind::StringType),
    }
}

fn text_or_null(node: Node) -> Result<Option<String>, ConfigErrorKind> {
    match node {
        Node::Null => Ok(None),
        other => text(other).map(Some),
    }
}

fn positive(node: Node) -> Result<f64, ConfigErrorKind> {
    let value = match node {
        Node::Bool(value) => f64::from(u8::from(value)),
        Node::Int(value) => value as f64,
        Node::Float(value) => value,
        Node::Text(text) => parse::python_float(&text).ok_or(ConfigErrorKind::FloatParsing)?,
        _ => return Err(ConfigErrorKind::FloatType),
    };
    if value > 0.0 { Ok(value) } else { Err(ConfigErrorKind::GreaterThan) }
}

/// Writes infinity, which JSON cannot hold, as the text that is read back as it.
fn number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.serialize_str(&value.to_string()) }
}

impl<'de> Deserialize<'de> for TelemetryConfig {
    /// Reads the block itself. Interpolations are not resolved but rejected; see
    /// [`TelemetryConfig::from_global_config`].
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_node(&Node::deserialize(deserializer)?, None).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for MemoryProfilingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Node::deserialize(deserializer)?;
        let read = match &node {
            Node::Map(_) => memory_profiling(Fields { block: &node, env: None }),
            _ => Err(ConfigError::new("", ConfigErrorKind::ModelType)),
        };
        read.map_err(|e| D::Error::custom(e.within("memory_profiling")))
    }
}

/// Without what may be secret: headers, and an endpoint that may hold a user's password.
impl fmt::Debug for TelemetryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |field: &Option<String>| field.as_ref().map(|_| "[set]");
        f.debug_struct("TelemetryConfig")
            .field("enabled", &self.enabled)
            .field("service_name", &self.service_name)
            .field("service_name_per_server", &self.service_name_per_server)
            .field("span_groups", &self.span_groups)
            .field("traces_enabled", &self.traces_enabled)
            .field("metrics_enabled", &self.metrics_enabled)
            .field("logs_enabled", &self.logs_enabled)
            .field("exporter", &self.exporter)
            .field("run_id", &self.run_id)
            .field("otlp_endpoint", &shown(&self.otlp_endpoint))
            .field("otlp_protocol", &self.otlp_protocol)
            .field("otlp_headers", &shown(&self.otlp_headers))
            .field("memory_profiling", &self.memory_profiling)
            .field("event_loop_sample_interval_seconds", &self.event_loop_sample_interval_seconds)
            .field("event_loop_task_count", &self.event_loop_task_count)
            .finish()
    }
}
