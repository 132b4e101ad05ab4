//! The server's half.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry::{Context, KeyValue};

use super::variables::Variables;
use super::{STAGE, Stamp, Timeline, WORKER, emit_stages, identity_attributes, start_span};
use crate::config::Environment;
use crate::metrics::ms;
use crate::propagation::GymPropagator;
use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Telemetry};

/// A server's start-up with stages of its own names.
///
/// ```no_run
/// use nemo_gym_telemetry::startup::ServerStartup;
/// # use nemo_gym_telemetry::{ServerIdentity, ServerType, init_telemetry};
///
/// let mut startup = ServerStartup::begin(); // first thing in main
/// // … read the configuration …
/// startup.mark("load_config");
/// let telemetry = init_telemetry(ServerIdentity::new("policy_model", ServerType::ResponsesApiModels));
/// startup.mark("init_telemetry");
/// // … load the weights …
/// startup.mark("load_weights");
/// // … bind the listener …
/// startup.ready(&telemetry); // the rest is `setup_webserver`
/// ```
#[derive(Debug)]
#[must_use = "nothing is reported before `ready`"]
pub struct ServerStartup {
    timeline: Timeline,
    variables: Variables,
}

impl ServerStartup {
    /// The program's own code begins now.
    pub fn begin() -> Self {
        Self::begin_in(&Environment::from_process())
    }

    /// Like [`begin`](Self::begin), with the environment as a value.
    pub fn begin_in(environment: &Environment) -> Self {
        Self { timeline: Timeline::new(Stamp::now()), variables: Variables::read(environment) }
    }

    /// Ends the stage that began at the previous mark, and names it. The name becomes part of a span's name and a metric
    /// attribute.
    pub fn mark(&mut self, stage: &'static str) {
        self.timeline.mark(stage, Stamp::now());
    }

    /// Reports the start-up, once per telemetry handle; call it when the server is about to serve.
    pub fn ready(self, telemetry: &Telemetry) {
        telemetry.startup().report(telemetry, Some(self));
    }
}

impl Telemetry {
    /// Reports this server's start-up, once; call it when the server is about to serve. See
    /// [`startup`](crate::startup).
    pub fn server_ready(&self) {
        self.startup().report(self, None);
    }
}

/// What a telemetry handle knows of the start-up that it is part of.
#[derive(Debug, Default)]
pub(crate) struct HandleStartup {
    initialised: OnceLock<Initialised>,
    reported: AtomicBool,
}

#[derive(Debug)]
struct Initialised {
    began: Stamp,
    ended: Stamp,
    variables: Variables,
}

impl HandleStartup {
    /// Telemetry began to initialise at `began` and is ready now.
    pub(crate) fn initialised(&self, began: Stamp, environment: &Environment) {
        let variables = Variables::read(environment);
        let _ = self.initialised.set(Initialised { began, ended: Stamp::now(), variables });
    }

    /// When telemetry began to initialise and when it was ready.
    #[cfg(feature = "supervisor")]
    pub(crate) fn times(&self) -> Option<(Stamp, Stamp)> {
        self.initialised.get().map(|times| (times.began, times.ended))
    }

    fn report(&self, telemetry: &Telemetry, startup: Option<ServerStartup>) {
        let switches = telemetry.switches();
        if switches.is_off() || self.reported.swap(true, Relaxed) {
            return;
        }
        let now = Stamp::now();
        let Some(ServerStartup { mut timeline, variables }) = startup.or_else(|| {
            let initialised = self.initialised.get()?;
            Some(ServerStartup { timeline: Timeline::new(initialised.began), variables: initialised.variables.clone() })
        }) else {
            return;
        };
        if let Some(init) = self.initialised.get().filter(|init| timeline.wall(init.began) >= timeline.ended()) {
            timeline.mark("load_config", init.began);
            timeline.mark("init_telemetry", init.ended);
        }
        timeline.mark("setup_webserver", now);
        let before = variables.before(timeline.anchor());
        if variables.worker {
            timeline.prepend("worker_start", before.serve);
        } else {
            timeline.prepend("interpreter_start", before.setup_done.or(before.spawn));
            timeline.prepend("venv_setup", before.spawn);
        }
        emit(telemetry, &timeline, &variables);
    }
}

fn emit(telemetry: &Telemetry, timeline: &Timeline, variables: &Variables) {
    let switches = telemetry.switches();
    let mut attributes = identity_attributes(telemetry.identity());
    attributes.push(KeyValue::new(WORKER, variables.worker));
    if switches.metrics() {
        let histogram = telemetry.instruments().startup_stage();
        for stage in timeline.stages() {
            let mut attributes = attributes.clone();
            attributes.push(KeyValue::new(STAGE, stage.name));
            histogram.record(ms(stage.duration()), &attributes);
        }
    }
    if !switches.spans(SpanGroup::Startup) {
        return;
    }
    attributes.push(KeyValue::new("process.pid", i64::from(std::process::id())));
    let parent = match &variables.traceparent {
        Some(traceparent) => {
            let carrier = HashMap::from([("traceparent".to_owned(), traceparent.clone())]);
            GymPropagator::new().extract_with_context(&Context::new(), &carrier)
        }
        None => Context::new(),
    };
    let name = if variables.worker { "gym.server.startup.worker" } else { "gym.server.startup" };
    let whole = start_span(telemetry, name, timeline.began(), attributes.clone(), &parent);
    emit_stages(telemetry.tracer(Scope::Startup), name, timeline.stages(), &attributes, &whole);
    whole.span().end_with_timestamp(timeline.ended());
}
