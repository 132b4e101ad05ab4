//! A server's own start-up, as the spans `gym.server.startup` and one child per stage.
//!
//! One call, when the server is about to serve:
//!
//! ```no_run
//! # use nemo_gym_telemetry::{ServerIdentity, ServerType, init_telemetry};
//! let telemetry = init_telemetry(ServerIdentity::new("policy_model", ServerType::ResponsesApiModels));
//! // … build the router, bind the listener …
//! telemetry.server_ready();
//! ```
//!
//! The spans are made at that moment, with the times at which things happened: most of a start-up is over before
//! telemetry exists. They hang under the supervisor's span for this server (`NEMO_GYM_STARTUP_TRACEPARENT`) and begin when it
//! spawned the process (`NEMO_GYM_STARTUP_SPAWN_NS`). Without a supervisor they are a trace of their own. Requests never
//! become part of it, and a `TRACEPARENT` in the environment is not read by anything.
//!
//! Stages are contiguous and sum up to the whole:
//!
//! | stage | until |
//! |---|---|
//! | `venv_setup` | `NEMO_GYM_STARTUP_SETUP_DONE_NS`, where the launcher prepared something first |
//! | `interpreter_start` | the program's own code runs (the name is the Python servers', so that dashboards show both) |
//! | `load_config` | telemetry begins to initialise |
//! | `init_telemetry` | it has |
//! | `setup_webserver` | [`server_ready`](Telemetry::server_ready) |
//!
//! [`ServerStartup`] names stages of one's own. A worker process of a server (one that has `NEMO_GYM_STARTUP_SERVE_NS`)
//! reports `gym.server.startup.worker`, whose first stage is `worker_start`.
//!
//! Every stage is also a sample of `gym.server.startup_stage_duration_ms`, whether or not the span group `startup` is
//! on. `gym.server.startup_duration_ms` is the supervisor's to record: it alone sees the first healthy probe.

mod server;
mod timeline;
mod variables;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanKind, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, trace::Span as _};
use opentelemetry_sdk::trace::SdkTracer;

use crate::config::ServerIdentity;
use crate::propagation;
use crate::telemetry::{Scope, Telemetry};
pub(crate) use server::HandleStartup;
pub use server::ServerStartup;
pub(crate) use timeline::{Stage, Stamp, Timeline};
pub use variables::announce_worker;

#[cfg(feature = "supervisor")]
pub(crate) use variables::nanoseconds;

/// `nemo.gym.server.name` and `.type`, as far as they are known.
pub(crate) fn identity_attributes(identity: &ServerIdentity) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(6);
    attributes.extend(identity.name().map(|name| KeyValue::new("nemo.gym.server.name", name.to_owned())));
    attributes.extend(identity.server_type().map(|t| KeyValue::new("nemo.gym.server.type", t.as_str().to_owned())));
    attributes
}

/// Starts a start-up span: never a child of whatever happens to be the current span.
pub(crate) fn start_span(
    telemetry: &Telemetry,
    name: &'static str,
    began: std::time::SystemTime,
    attributes: Vec<KeyValue>,
    parent: &Context,
) -> Context {
    let tracer = telemetry.tracer(Scope::Startup);
    let builder =
        tracer.span_builder(name).with_kind(SpanKind::Internal).with_start_time(began).with_attributes(attributes);
    let cx = parent.with_span(tracer.build_with_context(builder, parent));
    let trace_id = cx.span().span_context().trace_id();
    let is_root = !parent.span().span_context().is_valid();
    if is_root && telemetry.random_ids() { propagation::mark_new_root(cx, trace_id) } else { cx }
}

/// One finished span per stage, below `parent`.
pub(crate) fn emit_stages(
    tracer: &SdkTracer,
    prefix: &str,
    stages: &[Stage],
    attributes: &[KeyValue],
    parent: &Context,
) {
    for stage in stages {
        let mut attributes = attributes.to_vec();
        attributes.push(KeyValue::new(STAGE, stage.name));
        let builder = tracer
            .span_builder(format!("{prefix}.{}", stage.name))
            .with_kind(SpanKind::Internal)
            .with_start_time(stage.began)
            .with_attributes(attributes);
        tracer.build_with_context(builder, parent).end_with_timestamp(stage.ended);
    }
}

const STAGE: &str = "nemo.gym.startup.stage";
const WORKER: &str = "nemo.gym.server.worker";
