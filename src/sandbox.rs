//! Sandboxes: the spans `gym.sandbox.start`, `.exec` and `.stop`, and the `gym.sandbox.*` metrics (span group
//! `sandbox`).
//!
//! How a sandbox is made, used and removed stays the caller's: these wrappers take futures, run them inside the span
//! and see them end, fail or be dropped.
//!
//! ```
//! use nemo_gym_telemetry::sandbox::SandboxProvider;
//! # struct Container { id: String }
//! # impl Container {
//! #     async fn create() -> Result<Self, std::io::Error> { Ok(Self { id: "c1".into() }) }
//! #     async fn run(&self, _command: &str) -> Result<i32, std::io::Error> { Ok(0) }
//! #     async fn remove(self) -> Result<(), std::io::Error> { Ok(()) }
//! # }
//! # async fn check(telemetry: nemo_gym_telemetry::Telemetry) -> Result<(), std::io::Error> {
//!
//! let docker = SandboxProvider::new(&telemetry, "docker");
//! let sandbox = docker.start(Container::create(), |container| Some(container.id.clone())).await?;
//! let status = sandbox.exec(sandbox.get_ref().run("pytest -q"), |status| Some(i64::from(*status))).await?;
//! sandbox.stop(Container::remove).await?;
//! # let _ = status; Ok(())
//! # }
//! ```
//!
//! What is executed is never recorded, and neither is an error's text, which often quotes it: an error is told by the
//! name of its type, `cancelled` (the future was dropped) or `panic`. An exit code other than 0 is no error.
//!
//! `gym.sandbox.active` counts the sandboxes that exist: from a successful start until `stop` has ended, in whatever
//! way, or the [`Sandbox`] is dropped. Durations are recorded for every end, failed and cancelled ones too.

use std::borrow::Cow;
use std::future::Future;
use std::time::Instant;

use opentelemetry::context::FutureExt as _;
use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};

use crate::metrics::{catalog, ms};
use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Telemetry};

const PROVIDER: &str = "nemo.gym.sandbox.provider";
const ID: &str = "nemo.gym.sandbox.id";
const RETURN_CODE: &str = "nemo.gym.sandbox.return_code";
const ERROR_TYPE: &str = "nemo.gym.sandbox.error_type";

/// The sandbox instruments of a telemetry handle.
pub(crate) struct SandboxInstruments {
    active: UpDownCounter<i64>,
    startup: Histogram<f64>,
    exec: Histogram<f64>,
    create_retry: Counter<u64>,
}

impl SandboxInstruments {
    pub(crate) fn new(meter: &Meter) -> Self {
        Self {
            active: catalog::GYM_SANDBOX_ACTIVE.i64_up_down_counter(meter),
            startup: catalog::GYM_SANDBOX_STARTUP_DURATION.f64_histogram(meter),
            exec: catalog::GYM_SANDBOX_EXEC_DURATION.f64_histogram(meter),
            create_retry: catalog::GYM_SANDBOX_CREATE_RETRY.u64_counter(meter),
        }
    }
}

/// What sandboxes come from, such as `docker`. Its name is a metric attribute: one of a small fixed set.
#[derive(Clone, Debug)]
pub struct SandboxProvider {
    telemetry: Telemetry,
    name: Cow<'static, str>,
}

impl SandboxProvider {
    /// A provider whose sandboxes are recorded by `telemetry`.
    pub fn new(telemetry: &Telemetry, name: impl Into<Cow<'static, str>>) -> Self {
        Self { telemetry: telemetry.clone(), name: name.into() }
    }

    /// Runs `create` as `gym.sandbox.start`; `id` tells the id of what it made.
    ///
    /// # Errors
    /// Those of `create`, unchanged.
    pub async fn start<T, E>(
        &self,
        create: impl Future<Output = Result<T, E>>,
        id: impl FnOnce(&T) -> Option<String>,
    ) -> Result<Sandbox<T>, E> {
        let mut operation = Operation::begin(self, "gym.sandbox.start", Some(|metrics| &metrics.startup), None);
        let inner = operation.run(create).await?;
        let id = id(&inner);
        operation.set(id.as_ref().map(|id| KeyValue::new(ID, id.clone())));
        operation.end(None);
        Ok(Sandbox { inner, id, active: Active::one_more(self) })
    }

    /// Counts a repeated attempt to create a sandbox in `gym.sandbox.create_retry_total`.
    pub fn record_create_retry(&self) {
        if self.telemetry.switches().metrics_of(SpanGroup::Sandbox) {
            self.telemetry.instruments().sandbox().create_retry.add(1, &self.attributes());
        }
    }

    /// The provider's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn attributes(&self) -> [KeyValue; 1] {
        [KeyValue::new(PROVIDER, self.name.clone())]
    }
}

/// A sandbox that was started. Counts in `gym.sandbox.active` until it is stopped or dropped.
#[derive(Debug)]
#[must_use = "a sandbox that is dropped at once was started for nothing"]
pub struct Sandbox<T> {
    inner: T,
    id: Option<String>,
    active: Active,
}

impl<T> Sandbox<T> {
    /// Runs something in the sandbox, as `gym.sandbox.exec`; `return_code` tells its exit code, where it has one.
    ///
    /// # Errors
    /// Those of `execute`, unchanged.
    pub async fn exec<O, E>(
        &self,
        execute: impl Future<Output = Result<O, E>>,
        return_code: impl FnOnce(&O) -> Option<i64>,
    ) -> Result<O, E> {
        let provider = &self.active.provider;
        let mut operation =
            Operation::begin(provider, "gym.sandbox.exec", Some(|metrics| &metrics.exec), self.id.as_ref());
        let output = operation.run(execute).await?;
        operation.set(return_code(&output).map(|code| KeyValue::new(RETURN_CODE, code)));
        operation.end(None);
        Ok(output)
    }

    /// Removes the sandbox, as `gym.sandbox.stop`.
    ///
    /// # Errors
    /// Those of `stop`, unchanged.
    pub async fn stop<O, E, F>(self, stop: impl FnOnce(T) -> F) -> Result<O, E>
    where
        F: Future<Output = Result<O, E>>,
    {
        let Self { inner, id, active } = self;
        let mut operation = Operation::begin(&active.provider, "gym.sandbox.stop", None, id.as_ref());
        let output = operation.run(stop(inner)).await?;
        operation.end(None);
        Ok(output)
    }

    /// The sandbox's id, where the provider told one.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }
    /// What `create` made.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }
    /// What `create` made.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }
    /// What `create` made; the sandbox counts as active no longer.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

/// One in `gym.sandbox.active`.
#[derive(Debug)]
struct Active {
    provider: SandboxProvider,
    counted: bool,
}

impl Active {
    fn one_more(provider: &SandboxProvider) -> Self {
        let counted = provider.telemetry.switches().metrics_of(SpanGroup::Sandbox);
        if counted {
            provider.telemetry.instruments().sandbox().active.add(1, &provider.attributes());
        }
        Self { provider: provider.clone(), counted }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        // What was added is taken away, whatever has been switched off meanwhile.
        if self.counted {
            self.provider.telemetry.instruments().sandbox().active.add(-1, &self.provider.attributes());
        }
    }
}

/// A span and a duration that end exactly once: with the operation, or with its being dropped.
struct Operation<'a> {
    provider: &'a SandboxProvider,
    context: Option<Context>,
    duration: Option<&'a Histogram<f64>>,
    began: Instant,
    is_exec: bool,
    ended: bool,
}

impl<'a> Operation<'a> {
    fn begin(
        provider: &'a SandboxProvider,
        name: &'static str,
        duration: Option<fn(&SandboxInstruments) -> &Histogram<f64>>,
        id: Option<&String>,
    ) -> Self {
        let telemetry = &provider.telemetry;
        let switches = telemetry.switches();
        let context = switches.spans(SpanGroup::Sandbox).then(|| {
            let mut attributes = provider.attributes().to_vec();
            attributes.extend(id.map(|id| KeyValue::new(ID, id.clone())));
            let tracer = telemetry.tracer(Scope::Helpers);
            let builder = tracer.span_builder(name).with_kind(SpanKind::Internal).with_attributes(attributes);
            let parent = Context::current();
            parent.with_span(builder.start_with_context(tracer, &parent))
        });
        let duration = duration
            .filter(|_| switches.metrics_of(SpanGroup::Sandbox))
            .map(|of| of(telemetry.instruments().sandbox()));
        let is_exec = name == "gym.sandbox.exec";
        Self { provider, context, duration, began: Instant::now(), is_exec, ended: false }
    }

    /// Runs the future inside the span; an error ends the operation.
    async fn run<O, E>(&mut self, future: impl Future<Output = Result<O, E>>) -> Result<O, E> {
        let result = match &self.context {
            Some(context) => future.with_context(context.clone()).await,
            None => future.await,
        };
        if result.is_err() {
            self.end(Some(type_of::<E>()));
        }
        result
    }

    fn set(&self, attribute: Option<KeyValue>) {
        if let (Some(context), Some(attribute)) = (&self.context, attribute) {
            context.span().set_attribute(attribute);
        }
    }

    fn end(&mut self, error: Option<&'static str>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(duration) = self.duration {
            duration.record(ms(self.began.elapsed()), &self.provider.attributes());
        }
        if let Some(context) = &self.context {
            let span = context.span();
            if let Some(error) = error {
                span.set_attribute(KeyValue::new("error.type", error));
                if self.is_exec {
                    span.set_attribute(KeyValue::new(ERROR_TYPE, error));
                }
                span.set_status(Status::error(""));
            }
            span.end();
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.end(Some(if std::thread::panicking() { "panic" } else { "cancelled" }));
    }
}

/// The name of an error's type without its path and parameters.
fn type_of<E>() -> &'static str {
    let name = std::any::type_name::<E>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::type_of;

    #[test]
    fn an_error_is_told_by_the_last_name_of_its_type() {
        assert_eq!(type_of::<std::io::Error>(), "Error");
        assert_eq!(type_of::<Box<dyn std::error::Error + Send>>(), "Box");
        assert_eq!(type_of::<String>(), "String");
        assert_eq!(type_of::<()>(), "()");
    }
}
