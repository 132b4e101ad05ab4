//! The supervisor's half of a start-up.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{Status, TraceContextExt as _};
use opentelemetry::{Context, KeyValue};

use super::ActiveServer;
use crate::config::variables::{
    NEMO_GYM_STARTUP_SERVE_NS, NEMO_GYM_STARTUP_SETUP_DONE_NS, NEMO_GYM_STARTUP_SPAWN_NS, NEMO_GYM_STARTUP_TRACEPARENT,
};
use crate::config::{ChildCommand, ServerIdentity};
use crate::metrics::ms;
use crate::propagation::GymPropagator;
use crate::span_group::SpanGroup;
use crate::startup::{self, Stamp, Timeline};
use crate::telemetry::{Scope, Telemetry};

/// A supervisor's start-up: the span `gym.startup`, a child per stage, and `gym.startup.server` for each server from
/// its spawn to its first healthy probe.
///
/// Three calls: [`begin`](Self::begin) first thing in `main`, [`server`](Self::server) before each spawn and
/// [`StartingServer::healthy`] after the first good probe.
///
/// ```no_run
/// use nemo_gym_telemetry::supervisor::SupervisorStartup;
/// # use nemo_gym_telemetry::{ServerIdentity, ServerType, init_telemetry};
/// # fn wait_until_it_answers(_: &std::process::Child) {}
/// # fn main() -> std::io::Result<()> {
///
/// let mut startup = SupervisorStartup::begin();
/// let telemetry = init_telemetry(ServerIdentity::new("supervisor", ServerType::Supervisor));
///
/// let model = ServerIdentity::new("policy_model", ServerType::ResponsesApiModels);
/// let mut command = std::process::Command::new("model_server");
/// let starting = startup.server(&telemetry, &model, &mut command);
/// let child = command.spawn()?;
/// wait_until_it_answers(&child);
/// let active = starting.healthy(); // counts in gym.servers.active until it is dropped
/// drop(startup);
/// # drop(active); Ok(()) }
/// ```
///
/// `gym.startup` is made when it is dropped or finished; it ends with the last thing that happened, not at that
/// moment. Stages that [`mark`](Self::mark) does not name are `load_config` (until telemetry begins to initialise),
/// `init_telemetry`, `spawn_servers` (until the last spawn) and `wait_for_servers` (until the last healthy probe).
#[derive(Debug)]
#[must_use = "the start-up ends when this is dropped"]
pub struct SupervisorStartup {
    state: Arc<Mutex<State>>,
    attached: Option<Attached>,
}

#[derive(Debug)]
struct State {
    timeline: Timeline,
    /// Since the last mark.
    last_spawn: Option<Stamp>,
    last_verdict: Option<Stamp>,
}

#[derive(Debug)]
struct Attached {
    telemetry: Telemetry,
    /// `gym.startup`; `None` with the span group off.
    span: Option<Context>,
}

impl SupervisorStartup {
    /// The supervisor begins now. Telemetry need not exist yet.
    pub fn begin() -> Self {
        let timeline = Timeline::new(Stamp::now());
        Self { state: Arc::new(Mutex::new(State { timeline, last_spawn: None, last_verdict: None })), attached: None }
    }

    /// Ends the stage that began at the previous mark, and names it. The name becomes part of a span's name.
    pub fn mark(&mut self, stage: &'static str) {
        let mut state = lock(&self.state);
        state.timeline.mark(stage, Stamp::now());
        (state.last_spawn, state.last_verdict) = (None, None);
    }

    /// A server is about to be spawned by `command`: begins its `gym.startup.server` and writes what the server needs to report its own start-up under it into the command's
    /// environment. The first call decides which telemetry `gym.startup` belongs to.
    ///
    /// With telemetry off the command is left alone.
    pub fn server<C: ChildCommand>(
        &mut self,
        telemetry: &Telemetry,
        identity: &ServerIdentity,
        command: &mut C,
    ) -> StartingServer {
        let spawned = Stamp::now();
        let parent = self.attach(telemetry).cloned();
        let timeline = {
            let mut state = lock(&self.state);
            state.last_spawn = Some(spawned);
            state.timeline.branch(spawned)
        };
        let attributes = startup::identity_attributes(identity);
        let span = parent.map(|parent| {
            startup::start_span(telemetry, "gym.startup.server", timeline.began(), attributes.clone(), &parent)
        });
        if telemetry.is_enabled() {
            let command = command.std_command();
            // Whatever this process was told about its own start is not the child's.
            for name in [NEMO_GYM_STARTUP_SETUP_DONE_NS, NEMO_GYM_STARTUP_SERVE_NS, NEMO_GYM_STARTUP_TRACEPARENT] {
                command.env_remove(name);
            }
            command.env(NEMO_GYM_STARTUP_SPAWN_NS, startup::nanoseconds(timeline.began()));
            if let Some(traceparent) = span.as_ref().and_then(traceparent) {
                command.env(NEMO_GYM_STARTUP_TRACEPARENT, traceparent);
            }
        }
        StartingServer {
            telemetry: telemetry.clone(),
            startup: self.state.clone(),
            attributes,
            spawned: timeline,
            span,
            ended: false,
        }
    }

    /// Ends `gym.startup`, as dropping does.
    pub fn finish(self) {}

    fn attach(&mut self, telemetry: &Telemetry) -> Option<&Context> {
        let attached = self.attached.get_or_insert_with(|| {
            let began = lock(&self.state).timeline.began();
            let on = telemetry.switches().spans(SpanGroup::Startup);
            let span = on.then(|| startup::start_span(telemetry, "gym.startup", began, Vec::new(), &Context::new()));
            Attached { telemetry: telemetry.clone(), span }
        });
        attached.span.as_ref()
    }
}

impl Drop for SupervisorStartup {
    fn drop(&mut self) {
        let Some(Attached { telemetry, span: Some(span) }) = &self.attached else { return };
        let mut state = lock(&self.state);
        let State { timeline, last_spawn, last_verdict } = &mut *state;
        if let Some((began, ended)) =
            telemetry.startup().times().filter(|(at, _)| timeline.wall(*at) >= timeline.ended())
        {
            timeline.mark("load_config", began);
            timeline.mark("init_telemetry", ended);
        }
        if let Some(at) = *last_spawn {
            timeline.mark("spawn_servers", at);
        }
        if let Some(at) = *last_verdict {
            timeline.mark("wait_for_servers", at);
        }
        startup::emit_stages(telemetry.tracer(Scope::Startup), "gym.startup", timeline.stages(), &[], span);
        span.span().end_with_timestamp(timeline.ended());
    }
}

/// A server that was spawned and has not answered yet: the span `gym.startup.server`.
///
/// Dropped without a verdict (the supervisor gave up), the span is an error, `cancelled`.
#[derive(Debug)]
#[must_use = "say `healthy` or `failed`"]
pub struct StartingServer {
    telemetry: Telemetry,
    startup: Arc<Mutex<State>>,
    attributes: Vec<KeyValue>,
    /// Begins at the spawn.
    spawned: Timeline,
    span: Option<Context>,
    ended: bool,
}

impl StartingServer {
    /// The server has answered its first health probe: ends the span and records `gym.server.startup_duration_ms`.
    pub fn healthy(mut self) -> ActiveServer {
        let now = Stamp::now();
        lock(&self.startup).last_verdict = Some(now);
        let ended = self.spawned.wall(now);
        if self.telemetry.switches().metrics() {
            let duration = ended.duration_since(self.spawned.began()).unwrap_or_default();
            self.telemetry.instruments().startup().record(ms(duration), &self.attributes);
        }
        if let Some(span) = &self.span {
            span.span().end_with_timestamp(ended);
        }
        self.ended = true;
        ActiveServer::new(&self.telemetry)
    }

    /// The server did not come up. `error_type` is a word from a small fixed set, such as `exited` or `timeout`.
    pub fn failed(mut self, error_type: impl Into<Cow<'static, str>>) {
        self.fail(error_type.into());
    }

    /// How long ago the server was spawned.
    pub fn elapsed(&self) -> std::time::Duration {
        self.spawned.wall(Stamp::now()).duration_since(self.spawned.began()).unwrap_or_default()
    }

    fn fail(&mut self, error_type: Cow<'static, str>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let now = Stamp::now();
        lock(&self.startup).last_verdict = Some(now);
        if let Some(span) = &self.span {
            let span = span.span();
            span.set_attribute(KeyValue::new("error.type", error_type));
            span.set_status(Status::error(""));
            span.end_with_timestamp(self.spawned.wall(now));
        }
    }
}

impl Drop for StartingServer {
    fn drop(&mut self) {
        self.fail(Cow::Borrowed("cancelled"));
    }
}

fn traceparent(span: &Context) -> Option<String> {
    let mut carrier = HashMap::new();
    GymPropagator::new().inject_context(span, &mut carrier);
    carrier.remove("traceparent")
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
