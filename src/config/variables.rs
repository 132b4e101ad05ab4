//! Every environment variable the crate reads: one table of names, fallbacks, defaults, parsers and effects.
//!
//! The constants are the variables' names. `docs/configuration.md` shows the same table; a test holds
//! the two together.

use super::Environment;
use super::parse::{Parsed, Parser};

/// What there is to know about one environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VariableInfo {
    /// The variable's name.
    pub name: &'static str,
    /// The variable that is read when this one is unset or blank.
    pub fallback: Option<&'static str>,
    /// What unset and unusable values mean: a value of the variable, or words in parentheses.
    pub default: &'static str,
    /// What the variable does.
    pub effect: &'static str,
}

/// A row of the table: the variable with the parser of its values.
#[derive(Debug)]
pub(crate) struct Variable<T: 'static> {
    pub info: VariableInfo,
    pub parse: Parser<T>,
}

/// What reading a variable gave.
#[derive(Debug, PartialEq)]
pub(crate) enum Read<T> {
    Unset,
    Set(T),
    /// Warned about: the default applies, not the next source.
    Bad,
}

impl<T> Read<T> {
    /// The variable's value, else the block's, else the default; the default at once for a bad value.
    pub(crate) fn or(self, block: Option<T>, default: T) -> T {
        match self {
            Read::Set(value) => value,
            Read::Unset => block.unwrap_or(default),
            Read::Bad => default,
        }
    }

    pub(crate) fn set(self) -> Option<T> {
        match self {
            Read::Set(value) => Some(value),
            Read::Unset | Read::Bad => None,
        }
    }
}

/// Reads variables and collects what has to be said about their values.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    env: &'a Environment,
    pub warnings: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(env: &'a Environment) -> Self {
        Self { env, warnings: Vec::new() }
    }

    /// Whether the variable has a value that is not blank.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.env.get(name).is_some()
    }

    /// The variable's text; `None` when unset or blank.
    pub(crate) fn value(&self, name: &str) -> Option<&'a str> {
        self.env.get(name)
    }

    pub(crate) fn read<T>(&mut self, variable: &Variable<T>) -> Read<T> {
        let names = [Some(variable.info.name), variable.info.fallback];
        match names.into_iter().flatten().find_map(|name| Some((name, self.env.get(name)?))) {
            Some((name, value)) => self.parse(variable, name, value),
            None => Read::Unset,
        }
    }

    /// Parses a value that may come from elsewhere; `label` names its source in warnings.
    pub(crate) fn parse<T>(&mut self, variable: &Variable<T>, label: &str, value: &str) -> Read<T> {
        match (variable.parse)(value) {
            Parsed::Good(value) => Read::Set(value),
            Parsed::Adjusted(value, what) => {
                self.warnings.push(format!("{label} {what}"));
                Read::Set(value)
            }
            Parsed::Bad(expected) => {
                let default = variable.info.default.trim_matches(['(', ')']);
                self.warnings.push(format!("{label} is not {expected}; its default is used: {default}"));
                Read::Bad
            }
        }
    }
}

/// Writes the table: per row a public name, a typed entry in `typed`, and an entry in [`all`].
macro_rules! variables {
    ($( $name:ident $(or $fallback:ident)? : $type:ty = $default:literal by $parse:ident, $effect:literal; )*) => {
        $(
            #[doc = $effect]
            #[doc = concat!("\n\nDefault: ", $default, ".")]
            pub const $name: &str = stringify!($name);
            $(
                #[doc = concat!("Read where `", stringify!($name), "` is unset or blank.")]
                pub const $fallback: &str = stringify!($fallback);
            )?
        )*

        /// The table with parsers.
        pub(crate) mod typed {
            use std::path::PathBuf;
            use std::time::Duration;

            use opentelemetry_sdk::metrics::Temporality;

            use super::{Variable, VariableInfo};
            use crate::config::parse;
            use crate::config::settings::{ExporterChoice, OtlpProtocol, PropagatorChoice, SamplerChoice};
            use crate::span_group::SpanGroups;

            $(
                pub(crate) static $name: Variable<$type> = Variable {
                    info: VariableInfo {
                        name: stringify!($name),
                        fallback: [$(Some(stringify!($fallback)),)? None][0],
                        default: $default,
                        effect: $effect,
                    },
                    parse: parse::$parse,
                };
            )*
        }

        /// Every variable, in the order of the documentation.
        pub fn all() -> impl Iterator<Item = VariableInfo> {
            [$(typed::$name.info),*].into_iter()
        }
    };
}

variables! {
    NEMO_GYM_OTEL_ENABLED or NEMO_LENS_ENABLED: bool = "0" by boolean,
        "Switches telemetry on. Beats the block; `NEMO_LENS_ENABLED=0` does not switch off an enabled block.";
    NEMO_GYM_OTEL_SPAN_GROUPS or NEMO_LENS_SPAN_GROUPS: SpanGroups = "default" by span_groups,
        "Span groups and presets, separated by commas. Unknown entries are left out.";
    NEMO_GYM_OTEL_TRACES_ENABLED or NEMO_LENS_TRACES_ENABLED: bool = "1" by boolean,
        "Whether spans are made and exported.";
    NEMO_GYM_OTEL_METRICS_ENABLED or NEMO_LENS_METRICS_ENABLED: bool = "1" by boolean,
        "Whether metrics are recorded and exported.";
    NEMO_GYM_OTEL_LOGS_ENABLED or NEMO_LENS_LOGS_ENABLED: bool = "0" by boolean, "Whether log records are exported.";
    NEMO_GYM_OTEL_EXPORTER or NEMO_LENS_EXPORTER: ExporterChoice = "otlp" by gym_exporter,
        "Where all signals go: `otlp`, or `console` for JSON lines on stdout.";
    NEMO_GYM_OTEL_RUN_ID or NEMO_LENS_RUN_ID: String = "(SLURM_JOB_ID, else 12 generated hex digits)" by text,
        "The run's id.";
    NEMO_GYM_OTEL_USER_ID or NEMO_LENS_USER_ID: String = "(none)" by text, "Resource attribute `nemo.user.id`.";
    NEMO_GYM_OTEL_SERVICE_NAME_PER_SERVER: bool = "1" by gym_switch,
        "Whether `service.name` is `<service>/<server>`. Words that are no boolean count as false.";
    NEMO_GYM_OTEL_MEMORY_PROFILING_ENABLED: bool = "0" by gym_switch,
        "Whether the supervisor samples its servers' memory. Words that are no boolean count as false.";
    NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS: f64 = "1.0" by seconds,
        "Seconds between memory samples, put between 0.01 and 86400.";
    NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS: Duration = "1.0" by interval,
        "Seconds between samples of the runtime's lag, put between 0.01 and 86400.";
    NEMO_GYM_OTEL_EVENT_LOOP_TASK_COUNT: bool = "0" by gym_switch,
        "Whether Python servers count their tasks. Handed over only: the Rust gauge is always there.";
    NEMO_GYM_OTEL_EVENT_LOOP_STUCK_THRESHOLD_MS: Duration = "100" by milliseconds,
        "Milliseconds without progress after which a runtime worker counts as stuck. This crate's own.";

    OTEL_SDK_DISABLED: bool = "false" by spec_boolean, "`true` switches everything off, whatever else is set.";
    OTEL_SERVICE_NAME: String = "nemo-gym" by text, "The service's name, before the server's name is appended.";
    OTEL_RESOURCE_ATTRIBUTES: Vec<(String, String)> = "(none)" by attributes,
        "Resource attributes: `key=value`, separated by commas, percent-encoded. Malformed entries are left out.";
    OTEL_PROPAGATORS: PropagatorChoice = "tracecontext,baggage" by propagators,
        "What is read from and written to headers, or `none`. Unknown entries are left out.";
    OTEL_TRACES_SAMPLER: SamplerChoice = "parentbased_always_on" by sampler,
        "`always_on`, `always_off` or `traceidratio`, each also after `parentbased_`.";
    OTEL_TRACES_SAMPLER_ARG: f64 = "1.0" by ratio, "The ratio of a `traceidratio` sampler, between 0 and 1.";
    OTEL_TRACES_EXPORTER: ExporterChoice = "(NEMO_GYM_OTEL_EXPORTER)" by signal_exporter,
        "Where spans go: `otlp`, `console` or `none`. Of a list, the first known one.";
    OTEL_METRICS_EXPORTER: ExporterChoice = "(NEMO_GYM_OTEL_EXPORTER)" by signal_exporter,
        "Where metrics go: `otlp`, `console` or `none`. Of a list, the first known one.";
    OTEL_LOGS_EXPORTER: ExporterChoice = "(NEMO_GYM_OTEL_EXPORTER)" by signal_exporter,
        "Where log records go: `otlp`, `console` or `none`. Of a list, the first known one.";

    OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT: usize = "(no limit)" by length, "Longest text of an attribute, in characters.";
    OTEL_ATTRIBUTE_COUNT_LIMIT: u32 = "128" by count, "Most attributes of a span, 65536 at most.";
    OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT: usize = "(OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)" by length,
        "Longest text of a span's attribute, in characters.";
    OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT: u32 = "(OTEL_ATTRIBUTE_COUNT_LIMIT)" by count,
        "Most attributes of a span, 65536 at most.";
    OTEL_SPAN_EVENT_COUNT_LIMIT: u32 = "128" by count, "Most events of a span, 65536 at most.";
    OTEL_SPAN_LINK_COUNT_LIMIT: u32 = "128" by count, "Most links of a span, 65536 at most.";
    OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT: u32 = "128" by count, "Most attributes of an event, 65536 at most.";
    OTEL_LINK_ATTRIBUTE_COUNT_LIMIT: u32 = "128" by count, "Most attributes of a link, 65536 at most.";

    OTEL_BSP_SCHEDULE_DELAY: Duration = "5000" by milliseconds, "Milliseconds between exports of span batches.";
    OTEL_BSP_EXPORT_TIMEOUT: Duration = "30000" by milliseconds, "Milliseconds an export of a span batch may take.";
    OTEL_BSP_MAX_QUEUE_SIZE: usize = "65536" by size,
        "Most spans waiting for export, 1048576 at most; further ones are dropped and counted.";
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE: usize = "512" by size,
        "Most spans in one export; never more than the queue holds.";
    OTEL_BLRP_SCHEDULE_DELAY: Duration = "1000" by milliseconds,
        "Milliseconds between exports of log record batches.";
    OTEL_BLRP_EXPORT_TIMEOUT: Duration = "30000" by milliseconds,
        "Milliseconds an export of a log record batch may take.";
    OTEL_BLRP_MAX_QUEUE_SIZE: usize = "65536" by size,
        "Most log records waiting for export, 1048576 at most; further ones are dropped and counted.";
    OTEL_BLRP_MAX_EXPORT_BATCH_SIZE: usize = "512" by size,
        "Most log records in one export; never more than the queue holds.";
    OTEL_METRIC_EXPORT_INTERVAL: Duration = "10000" by milliseconds, "Milliseconds between exports of metrics.";
    OTEL_METRIC_EXPORT_TIMEOUT: Duration = "30000" by milliseconds, "Milliseconds an export of metrics may take.";
    OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE: Temporality = "cumulative" by temporality,
        "`cumulative`, `delta` (counters and histograms only) or `lowmemory`.";

    OTEL_EXPORTER_OTLP_ENDPOINT: String = "(http://localhost:4317, with HTTP http://localhost:4318)" by text,
        "The collector. With HTTP, `v1/<signal>` is joined to its path.";
    OTEL_EXPORTER_OTLP_PROTOCOL: OtlpProtocol = "grpc" by protocol,
        "`grpc`, `http/protobuf` or `http/json`; the last is served by protobuf over HTTP.";
    OTEL_EXPORTER_OTLP_HEADERS: Vec<(String, String)> = "(none)" by headers,
        "Headers of every export: `name=value`, separated by commas, percent-encoded. Malformed ones are left out.";
    OTEL_EXPORTER_OTLP_TIMEOUT: Duration = "10000" by milliseconds, "Milliseconds one export may take.";
    OTEL_EXPORTER_OTLP_COMPRESSION: bool = "none" by compression, "`gzip` or `none`.";
    OTEL_EXPORTER_OTLP_CERTIFICATE: PathBuf = "(the system's)" by path,
        "PEM file of the authorities that sign the collector's certificate.";
    OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: PathBuf = "(none)" by path, "PEM file of the client's certificate.";
    OTEL_EXPORTER_OTLP_CLIENT_KEY: PathBuf = "(none)" by path, "PEM file of the client's private key.";
    OTEL_EXPORTER_OTLP_INSECURE: bool = "false" by spec_boolean,
        "With gRPC: whether an endpoint without a scheme is reached without TLS.";

    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: String = "(OTEL_EXPORTER_OTLP_ENDPOINT)" by text,
        "The collector of spans. With HTTP, used as it stands.";
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: OtlpProtocol = "(OTEL_EXPORTER_OTLP_PROTOCOL)" by protocol,
        "The protocol of spans.";
    OTEL_EXPORTER_OTLP_TRACES_HEADERS: Vec<(String, String)> = "(OTEL_EXPORTER_OTLP_HEADERS)" by headers,
        "Headers of the exports of spans, in place of the general ones.";
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: Duration = "(OTEL_EXPORTER_OTLP_TIMEOUT)" by milliseconds,
        "Milliseconds one export of spans may take.";
    OTEL_EXPORTER_OTLP_TRACES_COMPRESSION: bool = "(OTEL_EXPORTER_OTLP_COMPRESSION)" by compression,
        "The compression of spans.";
    OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE: PathBuf = "(OTEL_EXPORTER_OTLP_CERTIFICATE)" by path,
        "The authorities of the collector of spans.";
    OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE: PathBuf = "(OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE)" by path,
        "The client's certificate for spans.";
    OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY: PathBuf = "(OTEL_EXPORTER_OTLP_CLIENT_KEY)" by path,
        "The client's private key for spans.";
    OTEL_EXPORTER_OTLP_TRACES_INSECURE: bool = "(OTEL_EXPORTER_OTLP_INSECURE)" by spec_boolean,
        "The same as the general one, for spans.";

    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: String = "(OTEL_EXPORTER_OTLP_ENDPOINT)" by text,
        "The collector of metrics. With HTTP, used as it stands.";
    OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: OtlpProtocol = "(OTEL_EXPORTER_OTLP_PROTOCOL)" by protocol,
        "The protocol of metrics.";
    OTEL_EXPORTER_OTLP_METRICS_HEADERS: Vec<(String, String)> = "(OTEL_EXPORTER_OTLP_HEADERS)" by headers,
        "Headers of the exports of metrics, in place of the general ones.";
    OTEL_EXPORTER_OTLP_METRICS_TIMEOUT: Duration = "(OTEL_EXPORTER_OTLP_TIMEOUT)" by milliseconds,
        "Milliseconds one export of metrics may take.";
    OTEL_EXPORTER_OTLP_METRICS_COMPRESSION: bool = "(OTEL_EXPORTER_OTLP_COMPRESSION)" by compression,
        "The compression of metrics.";
    OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE: PathBuf = "(OTEL_EXPORTER_OTLP_CERTIFICATE)" by path,
        "The authorities of the collector of metrics.";
    OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE: PathBuf = "(OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE)" by path,
        "The client's certificate for metrics.";
    OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY: PathBuf = "(OTEL_EXPORTER_OTLP_CLIENT_KEY)" by path,
        "The client's private key for metrics.";
    OTEL_EXPORTER_OTLP_METRICS_INSECURE: bool = "(OTEL_EXPORTER_OTLP_INSECURE)" by spec_boolean,
        "The same as the general one, for metrics.";

    OTEL_EXPORTER_OTLP_LOGS_ENDPOINT: String = "(OTEL_EXPORTER_OTLP_ENDPOINT)" by text,
        "The collector of log records. With HTTP, used as it stands.";
    OTEL_EXPORTER_OTLP_LOGS_PROTOCOL: OtlpProtocol = "(OTEL_EXPORTER_OTLP_PROTOCOL)" by protocol,
        "The protocol of log records.";
    OTEL_EXPORTER_OTLP_LOGS_HEADERS: Vec<(String, String)> = "(OTEL_EXPORTER_OTLP_HEADERS)" by headers,
        "Headers of the exports of log records, in place of the general ones.";
    OTEL_EXPORTER_OTLP_LOGS_TIMEOUT: Duration = "(OTEL_EXPORTER_OTLP_TIMEOUT)" by milliseconds,
        "Milliseconds one export of log records may take.";
    OTEL_EXPORTER_OTLP_LOGS_COMPRESSION: bool = "(OTEL_EXPORTER_OTLP_COMPRESSION)" by compression,
        "The compression of log records.";
    OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE: PathBuf = "(OTEL_EXPORTER_OTLP_CERTIFICATE)" by path,
        "The authorities of the collector of log records.";
    OTEL_EXPORTER_OTLP_LOGS_CLIENT_CERTIFICATE: PathBuf = "(OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE)" by path,
        "The client's certificate for log records.";
    OTEL_EXPORTER_OTLP_LOGS_CLIENT_KEY: PathBuf = "(OTEL_EXPORTER_OTLP_CLIENT_KEY)" by path,
        "The client's private key for log records.";
    OTEL_EXPORTER_OTLP_LOGS_INSECURE: bool = "(OTEL_EXPORTER_OTLP_INSECURE)" by spec_boolean,
        "The same as the general one, for log records.";

    NEMO_GYM_CONFIG_PATH: String = "(none)" by text, "The server's name, set by a Gym supervisor.";
    NEMO_GYM_CONFIG_DICT: String = "(none)" by text,
        "The Gym configuration, JSON or YAML; tells the server's type. Set by a Gym supervisor.";
    NEMO_GYM_STARTUP_SPAWN_NS: String = "(none)" by text,
        "When the supervisor started the process, in nanoseconds since 1970. Set by a supervisor.";
    NEMO_GYM_STARTUP_SETUP_DONE_NS: String = "(none)" by text,
        "When a launcher had prepared the process's surroundings, in nanoseconds since 1970.";
    NEMO_GYM_STARTUP_SERVE_NS: String = "(none)" by text,
        "When the main process handed over to this worker process, in nanoseconds since 1970.";
    NEMO_GYM_STARTUP_TRACEPARENT: String = "(none)" by text,
        "The supervisor's span over this server's start: the parent of the start-up span only.";

    DEPLOYMENT_ENV or ENVIRONMENT: String = "(none)" by text,
        "Resource attributes `deployment.environment` and `deployment.environment.name`.";
    WANDB_ENTITY: String = "(none)" by text, "Resource attribute `wandb.entity`.";
    WANDB_PROJECT: String = "(none)" by text, "Resource attribute `wandb.project`.";
    CUDA_VISIBLE_DEVICES: String = "(counted by nvidia-smi)" by text,
        "Resource attribute `host.gpu.count`: the entries; blank counts as 0, the one blank that is not unset.";
    SLURM_JOB_ID: String = "(none)" by text,
        "Resource attribute `slurm.job.id`, and the run's id where none is set. Without it no other `slurm.*` is told.";
    SLURM_JOB_NAME: String = "(none)" by text, "Resource attribute `slurm.job.name`.";
    SLURM_NODELIST: String = "(none)" by text, "Resource attribute `slurm.nodelist`.";
    SLURM_NNODES: String = "(none)" by text, "Resource attribute `slurm.nnodes`.";
    SLURM_NTASKS: String = "(none)" by text, "Resource attribute `slurm.ntasks`.";
    SLURM_PARTITION: String = "(none)" by text, "Resource attribute `slurm.partition`.";
    SLURM_CLUSTER_NAME: String = "(none)" by text, "Resource attribute `slurm.cluster.name`.";
    KUBERNETES_SERVICE_HOST: String = "(none)" by text,
        "Tells that the process runs in Kubernetes; so does `/var/run/secrets/kubernetes.io`.";
    K8S_POD_NAME or HOSTNAME: String = "(none)" by text, "Resource attribute `k8s.pod.name`, in Kubernetes.";
    K8S_NAMESPACE: String = "(none)" by text, "Resource attribute `k8s.namespace.name`, in Kubernetes.";
    K8S_POD_UID: String = "(none)" by text, "Resource attribute `k8s.pod.uid`, in Kubernetes.";
    K8S_NODE_NAME: String = "(none)" by text, "Resource attribute `k8s.node.name`, in Kubernetes.";
    K8S_CONTAINER_NAME: String = "(none)" by text, "Resource attribute `k8s.container.name`, in Kubernetes.";
    K8S_JOB_NAME: String = "(none)" by text, "Resource attribute `k8s.job.name`, in Kubernetes.";
}
