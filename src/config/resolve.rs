//! Settings from the environment and the configuration block.

use std::time::Duration;

use super::settings::{BatchSettings, ExporterChoice, RootSampler, Settings, SpanLimitSettings};
use super::variables::{Read, Reader, Variable, typed};
use super::{Environment, TelemetryConfig, parse};

impl Settings {
    /// Resolves every setting, and says what was wrong with the values: one warning a variable, without
    /// the value.
    ///
    /// `NEMO_GYM_OTEL_*` beats `NEMO_LENS_*`, which beats the block (upstream's order, for `enabled` too,
    /// except that `NEMO_LENS_ENABLED=0` does not switch off an enabled block); the user's `OTEL_*` beat
    /// the block. A bad value means the setting's default, not the next source: servers that see only
    /// the environment must come to the same settings.
    pub(crate) fn resolve(env: &Environment, block: Option<&TelemetryConfig>) -> (Settings, Vec<String>) {
        let mut reader = Reader::new(env);
        let r = &mut reader;
        let default = Settings::default();
        let sdk_disabled = r.read(&typed::OTEL_SDK_DISABLED).or(None, false);
        let enabled = enabled(r, block) && !sdk_disabled;

        let span_groups = match r.read(&typed::NEMO_GYM_OTEL_SPAN_GROUPS) {
            Read::Unset => {
                block.and_then(|b| field(r, &typed::NEMO_GYM_OTEL_SPAN_GROUPS, "telemetry.span_groups", &b.span_groups))
            }
            read => read.set(),
        };
        let gym_exporter = match r.read(&typed::NEMO_GYM_OTEL_EXPORTER) {
            Read::Unset => {
                block.and_then(|b| field(r, &typed::NEMO_GYM_OTEL_EXPORTER, "telemetry.exporter", &b.exporter))
            }
            read => read.set(),
        };
        let gym_exporter = gym_exporter.unwrap_or(ExporterChoice::Otlp);
        let traces_enabled = r.read(&typed::NEMO_GYM_OTEL_TRACES_ENABLED).or(block.map(|b| b.traces_enabled), true);
        let metrics_enabled = r.read(&typed::NEMO_GYM_OTEL_METRICS_ENABLED).or(block.map(|b| b.metrics_enabled), true);
        let logs_enabled = r.read(&typed::NEMO_GYM_OTEL_LOGS_ENABLED).or(block.map(|b| b.logs_enabled), false);
        let mut exporter = |on: bool, own: &Variable<ExporterChoice>| {
            let chosen = r.read(own).or(None, gym_exporter);
            if on { chosen } else { ExporterChoice::Off }
        };
        let traces = exporter(traces_enabled, &typed::OTEL_TRACES_EXPORTER);
        let metrics = exporter(metrics_enabled, &typed::OTEL_METRICS_EXPORTER);
        let logs = exporter(logs_enabled, &typed::OTEL_LOGS_EXPORTER);

        let mut sampler = r.read(&typed::OTEL_TRACES_SAMPLER).or(None, default.sampler);
        if let RootSampler::TraceIdRatio(ratio) = &mut sampler.root {
            *ratio = r.read(&typed::OTEL_TRACES_SAMPLER_ARG).or(None, 1.0);
        }

        let service_name = block.map(|b| parse::strip(&b.service_name).to_owned()).filter(|name| !name.is_empty());
        let memory = super::flags::memory_profiling(r, block.map(|b| &b.memory_profiling));
        let [otlp_traces, otlp_metrics, otlp_logs] = super::otlp::resolve(r, block, &default.otlp_traces);
        let settings = Settings {
            enabled,
            sdk_disabled,
            span_groups: span_groups.unwrap_or(default.span_groups),
            traces,
            metrics,
            logs,
            run_id: run_id(r, block).into_text(),
            service_name: r.read(&typed::OTEL_SERVICE_NAME).or(service_name, default.service_name),
            service_name_per_server: r
                .read(&typed::NEMO_GYM_OTEL_SERVICE_NAME_PER_SERVER)
                .or(block.map(|b| b.service_name_per_server), true),
            sampler,
            propagators: r.read(&typed::OTEL_PROPAGATORS).or(None, default.propagators),
            limits: limits(r, default.limits),
            span_batch: batch(r, &SPAN_BATCH, default.span_batch),
            log_batch: batch(r, &LOG_BATCH, default.log_batch),
            metric_interval: r.read(&typed::OTEL_METRIC_EXPORT_INTERVAL).or(None, default.metric_interval),
            metric_timeout: r.read(&typed::OTEL_METRIC_EXPORT_TIMEOUT).or(None, default.metric_timeout),
            temporality: r
                .read(&typed::OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE)
                .or(None, default.temporality),
            otlp_traces,
            otlp_metrics,
            otlp_logs,
            memory_profiling_enabled: memory.enabled,
            memory_profiling_interval: memory.interval(),
            event_loop_sample_interval: r.read(&typed::NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS).or(
                block.map(|b| parse::interval_of(b.event_loop_sample_interval_seconds)),
                default.event_loop_sample_interval,
            ),
            event_loop_stuck_threshold: r
                .read(&typed::NEMO_GYM_OTEL_EVENT_LOOP_STUCK_THRESHOLD_MS)
                .or(None, default.event_loop_stuck_threshold),
        };
        (settings, reader.warnings)
    }
}

/// The switch. The block stands between the two variables: it beats `NEMO_LENS_ENABLED`, and
/// `NEMO_GYM_OTEL_ENABLED` beats both.
pub(crate) fn enabled(r: &mut Reader<'_>, block: Option<&TelemetryConfig>) -> bool {
    let decided = r.is_set(super::variables::NEMO_GYM_OTEL_ENABLED);
    let in_environment = r.read(&typed::NEMO_GYM_OTEL_ENABLED).or(None, false);
    in_environment || (!decided && block.is_some_and(|b| b.enabled))
}

/// Reads a text of the block as the variable would be read; blank is unset.
fn field<T>(r: &mut Reader<'_>, variable: &Variable<T>, label: &str, text: &str) -> Option<T> {
    match parse::strip(text) {
        "" => None,
        text => r.parse(variable, label, text).set(),
    }
}

/// Where a run id comes from.
#[derive(Debug, PartialEq)]
pub(crate) enum RunId {
    /// A variable that every server of the run reads by itself.
    Environment(String),
    /// The block, `SLURM_JOB_ID` or a generator: to be handed to the servers.
    Own(String),
}

impl RunId {
    pub(crate) fn into_text(self) -> String {
        match self {
            RunId::Environment(id) | RunId::Own(id) => id,
        }
    }
}

/// The run's id: the environment's, else the block's, else Slurm's job id, else 12 generated hex digits.
pub(crate) fn run_id(r: &mut Reader<'_>, block: Option<&TelemetryConfig>) -> RunId {
    if let Some(id) = r.read(&typed::NEMO_GYM_OTEL_RUN_ID).set() {
        return RunId::Environment(id);
    }
    let from_block = block.and_then(|b| b.run_id.as_deref()).map(parse::strip).filter(|id| !id.is_empty());
    RunId::Own(match from_block {
        Some(id) => id.to_owned(),
        None => r.read(&typed::SLURM_JOB_ID).set().unwrap_or_else(|| format!("{:012x}", rand::random::<u64>() >> 16)),
    })
}

fn limits(r: &mut Reader<'_>, default: SpanLimitSettings) -> SpanLimitSettings {
    let general_count = r.read(&typed::OTEL_ATTRIBUTE_COUNT_LIMIT).or(None, default.attributes_per_span);
    let general_length = r.read(&typed::OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT).set();
    SpanLimitSettings {
        attributes_per_span: r.read(&typed::OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT).or(None, general_count),
        events_per_span: r.read(&typed::OTEL_SPAN_EVENT_COUNT_LIMIT).or(None, default.events_per_span),
        links_per_span: r.read(&typed::OTEL_SPAN_LINK_COUNT_LIMIT).or(None, default.links_per_span),
        attributes_per_event: r.read(&typed::OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT).or(None, default.attributes_per_event),
        attributes_per_link: r.read(&typed::OTEL_LINK_ATTRIBUTE_COUNT_LIMIT).or(None, default.attributes_per_link),
        attribute_value_length: r.read(&typed::OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT).set().or(general_length),
    }
}

/// The variables of one batch processor.
struct BatchVariables {
    delay: &'static Variable<Duration>,
    timeout: &'static Variable<Duration>,
    queue: &'static Variable<usize>,
    batch: &'static Variable<usize>,
}

static SPAN_BATCH: BatchVariables = BatchVariables {
    delay: &typed::OTEL_BSP_SCHEDULE_DELAY,
    timeout: &typed::OTEL_BSP_EXPORT_TIMEOUT,
    queue: &typed::OTEL_BSP_MAX_QUEUE_SIZE,
    batch: &typed::OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
};

static LOG_BATCH: BatchVariables = BatchVariables {
    delay: &typed::OTEL_BLRP_SCHEDULE_DELAY,
    timeout: &typed::OTEL_BLRP_EXPORT_TIMEOUT,
    queue: &typed::OTEL_BLRP_MAX_QUEUE_SIZE,
    batch: &typed::OTEL_BLRP_MAX_EXPORT_BATCH_SIZE,
};

fn batch(r: &mut Reader<'_>, variables: &BatchVariables, default: BatchSettings) -> BatchSettings {
    let max_queue_size = r.read(variables.queue).or(None, default.max_queue_size);
    let chosen = r.read(variables.batch).set();
    if chosen.is_some_and(|size| size > max_queue_size) {
        let (batch, queue) = (variables.batch.info.name, variables.queue.info.name);
        r.warnings.push(format!("{batch} is greater than {queue}; {max_queue_size} is used"));
    }
    BatchSettings {
        max_queue_size,
        max_export_batch_size: chosen.unwrap_or(default.max_export_batch_size).min(max_queue_size),
        scheduled_delay: r.read(variables.delay).or(None, default.scheduled_delay),
        export_timeout: r.read(variables.timeout).or(None, default.export_timeout),
    }
}
