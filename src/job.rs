//! The driver's half: `gym.job`, and rollouts that are traces of their own.
//!
//! A run of thousands of rollouts as one trace is too large for any viewer. So each rollout's call is a new root
//! that carries a link to `gym.job` instead of being its descendant.
//!
//! ```
//! # async fn post_run() {}
//! # async fn drive(telemetry: nemo_gym_telemetry::Telemetry) {
//! use nemo_gym_telemetry::job::Job;
//!
//! let job = Job::start(&telemetry);
//! for _ in 0..3 {
//!     // The CLIENT span of the call that is made inside is a root, linked to gym.job.
//!     tokio::spawn(job.rollout(post_run()));
//! }
//! # }
//! ```

use std::borrow::Cow;
use std::future::Future;

use opentelemetry::baggage::BaggageExt as _;
use opentelemetry::context::FutureExt as _;
use opentelemetry::trace::{SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};

use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Telemetry};

/// Travels in a [`Context`] that has no span: the span that a root made there links to.
#[derive(Clone, Debug)]
struct RootLink(SpanContext);

/// The span that a new root made in `context` must link to; `None` where a span is active, because what is made there
/// is a child and no root.
pub(crate) fn root_link(context: &Context) -> Option<SpanContext> {
    if context.span().span_context().is_valid() {
        return None;
    }
    context.get::<RootLink>().map(|link| link.0.clone())
}

/// A driver's whole run: the span `gym.job` (span group `job`), which ends when this is dropped.
///
/// With the group off there is no span and no link; rollouts are roots all the same.
#[derive(Debug)]
pub struct Job {
    context: Context,
    /// `gym.job` itself; `None` with the group off.
    span: Option<SpanContext>,
    active: bool,
}

impl Job {
    /// Starts `gym.job` as a child of the current span, if there is one.
    pub fn start(telemetry: &Telemetry) -> Self {
        let current = Context::current();
        let switches = telemetry.switches();
        if !switches.spans(SpanGroup::Job) {
            return Self { context: current, span: None, active: !switches.is_off() };
        }
        let tracer = telemetry.tracer(Scope::Helpers);
        let span = tracer.span_builder("gym.job").with_kind(SpanKind::Internal).start_with_context(tracer, &current);
        let is_root = !current.span().span_context().is_valid();
        let mut context = current.with_span(span);
        if is_root && telemetry.random_ids() {
            let trace_id = context.span().span_context().trace_id();
            context = crate::propagation::mark_new_root(context, trace_id);
        }
        Self { span: Some(context.span().span_context().clone()), context, active: true }
    }

    /// The context in which `gym.job` is the active span, for the driver's other work.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Runs a rollout's calls outside `gym.job`'s trace: a span made in `future` without a parent is a new root, linked
    /// to `gym.job`. Baggage stays. The future borrows nothing of the job and may be spawned.
    ///
    /// With telemetry off the future runs in the current context, untouched.
    pub fn rollout<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        future.with_context(self.rollout_context())
    }

    /// The context that [`rollout`](Self::rollout) runs in, for code that is not a future.
    pub fn rollout_context(&self) -> Context {
        let current = Context::current();
        if !self.active {
            return current;
        }
        let baggage = current.baggage().iter().map(|(key, (value, metadata))| {
            opentelemetry::baggage::KeyValueMetadata::new(key.clone(), value.clone(), metadata.clone())
        });
        let fresh = Context::new().with_baggage(baggage);
        match &self.span {
            Some(job) => fresh.with_value(RootLink(job.clone())),
            None => fresh,
        }
    }

    /// Marks the run as failed: status ERROR and `error.type`, a word from a small fixed set.
    pub fn fail(&self, error_type: impl Into<Cow<'static, str>>) {
        if self.span.is_some() {
            let span = self.context.span();
            span.set_attribute(KeyValue::new("error.type", error_type.into()));
            span.set_status(Status::error(""));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.span.is_some() {
            self.context.span().end();
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceContextExt as _;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};

    use super::*;
    use crate::config::Environment;

    fn telemetry(groups: &str) -> (Telemetry, InMemorySpanExporter) {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let environment =
            Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1"), ("NEMO_GYM_OTEL_SPAN_GROUPS", groups)]);
        (Telemetry::builder().with_environment(environment).with_tracer_provider(provider).build(), exporter)
    }

    #[test]
    fn a_rollout_runs_outside_the_jobs_trace_and_links_to_it() {
        let (telemetry, exporter) = telemetry("job");
        let job = Job::start(&telemetry);
        let job_span = job.context().span().span_context().clone();
        let _active = job.context().clone().attach();
        let context = job.rollout_context();
        assert!(!context.span().span_context().is_valid());
        assert_eq!(root_link(&context), Some(job_span.clone()));
        // Once a root has been made there, what comes below it is a child and carries no link.
        let tracer = telemetry.tracer(Scope::Client);
        let inner = context.with_span(tracer.build_with_context(tracer.span_builder("root"), &context));
        assert_eq!(root_link(&inner), None);
        assert_ne!(inner.span().span_context().trace_id(), job_span.trace_id());
        drop(job);
        let names: Vec<_> = exporter.get_finished_spans().unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["gym.job"]);
    }

    #[test]
    fn with_the_group_off_rollouts_are_roots_without_a_link_and_no_foreign_span_is_ended() {
        let (telemetry, exporter) = telemetry("server");
        let tracer = telemetry.tracer(Scope::Client);
        let outer = Context::new().with_span(tracer.start_with_context("outer", &Context::new()));
        let _active = outer.clone().attach();
        let job = Job::start(&telemetry);
        let context = job.rollout_context();
        assert!(!context.span().span_context().is_valid());
        assert_eq!(root_link(&context), None);
        job.fail("timeout");
        drop(job);
        assert!(exporter.get_finished_spans().unwrap().is_empty());
    }

    #[test]
    fn baggage_stays_and_a_disabled_handle_changes_nothing() {
        let (telemetry, _) = telemetry("job");
        let _active = Context::new().with_baggage([KeyValue::new("user", "a")]).attach();
        let job = Job::start(&telemetry);
        assert_eq!(job.rollout_context().baggage().get("user").map(ToString::to_string), Some("a".to_owned()));

        let remote = SpanContext::new(
            opentelemetry::trace::TraceId::from(7),
            opentelemetry::trace::SpanId::from(8),
            opentelemetry::TraceFlags::SAMPLED,
            true,
            Default::default(),
        );
        let _inner = Context::new().with_remote_span_context(remote.clone()).attach();
        let off = Job::start(&Telemetry::disabled());
        assert_eq!(off.rollout_context().span().span_context(), &remote);
    }

    #[test]
    fn a_failed_job_is_an_error() {
        let (telemetry, exporter) = telemetry("job");
        let job = Job::start(&telemetry);
        job.fail("server_exited");
        drop(job);
        let spans = exporter.get_finished_spans().unwrap();
        assert_eq!(spans[0].status, Status::error(""));
        assert!(spans[0].attributes.contains(&KeyValue::new("error.type", "server_exited")));
    }
}
