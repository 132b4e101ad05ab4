//! Spans around a piece of code.

use std::borrow::Cow;
use std::fmt;

use opentelemetry::trace::{Link, Span as _, SpanBuilder, SpanKind, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use super::active::{ActiveSpan, End, EnteredSpan, ErrorStyle, SpanHandle};
use super::future::SpanFuture;
use super::redaction::redacted;
use crate::propagation::mark_new_root;
use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Telemetry};

/// A span that has not been started yet; `off` when its group is.
///
/// Starting it makes it a child of the current span and the parent of everything inside.
#[must_use = "a span does nothing until it is run or entered"]
pub struct ManagedSpan<'a>(Option<Plan<'a>>);

struct Plan<'a> {
    telemetry: &'a Telemetry,
    tracer: &'a SdkTracer,
    span: SpanBuilder,
    errors: ErrorStyle,
}

/// A span of a group, scope `nemo.lens.helpers`, kind INTERNAL. With the group off nothing is made and nothing evaluated.
///
/// ```
/// use nemo_gym_telemetry::opentelemetry::KeyValue;
/// use nemo_gym_telemetry::span::managed_span;
/// use nemo_gym_telemetry::SpanGroup;
///
/// # fn score() -> Result<f64, std::fmt::Error> { Ok(1.0) }
/// let reward = managed_span(SpanGroup::Verify, "my.score")
///     .with_attributes(|| [KeyValue::new("attempt", 1)])
///     .try_in_scope(|_| score());
/// # assert_eq!(reward, Ok(1.0));
/// ```
pub fn managed_span(group: SpanGroup, name: impl Into<Cow<'static, str>>) -> ManagedSpan<'static> {
    Telemetry::process().managed_span(group, name)
}

/// A span of no group: it is there whenever traces are. Failures are described as `Type: message`.
pub fn span_cm(name: impl Into<Cow<'static, str>>) -> ManagedSpan<'static> {
    Telemetry::process().span_cm(name)
}

/// A span of kind CLIENT, scope `nemo.gym`, group `http_client`, for calls that
/// [`TracePropagation`](crate::egress::TracePropagation) does not see.
pub fn client_span(name: impl Into<Cow<'static, str>>) -> ManagedSpan<'static> {
    Telemetry::process().client_span(name)
}

impl Telemetry {
    /// [`managed_span`] of this handle.
    pub fn managed_span(&self, group: SpanGroup, name: impl Into<Cow<'static, str>>) -> ManagedSpan<'_> {
        let errors = ErrorStyle { with_type: false, with_event: true };
        ManagedSpan::plan(
            self,
            self.switches().spans(group),
            Scope::Helpers,
            || name.into(),
            SpanKind::Internal,
            errors,
        )
    }

    /// [`span_cm`] of this handle.
    pub fn span_cm(&self, name: impl Into<Cow<'static, str>>) -> ManagedSpan<'_> {
        let errors = ErrorStyle { with_type: true, with_event: true };
        ManagedSpan::plan(self, self.switches().traces(), Scope::Helpers, || name.into(), SpanKind::Internal, errors)
    }

    /// [`client_span`] of this handle.
    pub fn client_span(&self, name: impl Into<Cow<'static, str>>) -> ManagedSpan<'_> {
        let errors = ErrorStyle { with_type: false, with_event: true };
        let on = self.switches().spans(SpanGroup::HttpClient);
        ManagedSpan::plan(self, on, Scope::Client, || name.into(), SpanKind::Client, errors)
    }
}

impl<'a> ManagedSpan<'a> {
    #[inline]
    pub(super) fn plan(
        telemetry: &'a Telemetry,
        on: bool,
        scope: Scope,
        name: impl FnOnce() -> Cow<'static, str>,
        kind: SpanKind,
        errors: ErrorStyle,
    ) -> Self {
        Self(on.then(|| {
            let tracer = telemetry.tracer(scope);
            Plan { telemetry, tracer, span: tracer.span_builder(name()).with_kind(kind), errors }
        }))
    }

    /// Adds attributes; text under a key that names content or a credential is withheld (see the
    /// [module](crate::span)). The closure is only called when the span's group is on.
    pub fn with_attributes<I: IntoIterator<Item = KeyValue>>(mut self, attributes: impl FnOnce() -> I) -> Self {
        if let Some(plan) = &mut self.0 {
            plan.span.attributes.get_or_insert_default().extend(attributes().into_iter().filter_map(redacted));
        }
        self
    }

    /// Makes the span with this tracer, and so in its scope and by its provider.
    pub fn with_tracer(mut self, tracer: &'a SdkTracer) -> Self {
        if let Some(plan) = &mut self.0 {
            plan.tracer = tracer;
        }
        self
    }

    /// Whether an `Err` is recorded as an `exception` event (the default). Its status is ERROR either way.
    pub fn with_record_error(mut self, record_error: bool) -> Self {
        if let Some(plan) = &mut self.0 {
            plan.errors.with_event = record_error;
        }
        self
    }

    /// Runs a closure inside the span. A panic gives it status ERROR and `error.type` `panic`, and goes on.
    pub fn in_scope<T>(self, f: impl FnOnce(&SpanHandle) -> T) -> T {
        match self.0 {
            None => f(&SpanHandle::default()),
            Some(plan) => {
                let span = EnteredSpan::new(plan.start());
                f(span.handle())
            }
        }
    }

    /// The same, and an `Err` gives the span status ERROR and an `exception` event.
    ///
    /// # Errors
    /// Those of the closure, as they are.
    pub fn try_in_scope<T, E: fmt::Display>(self, f: impl FnOnce(&SpanHandle) -> Result<T, E>) -> Result<T, E> {
        match self.0 {
            None => f(&SpanHandle::default()),
            Some(plan) => {
                let span = EnteredSpan::new(plan.start());
                f(span.handle()).inspect_err(|error| span.fail(error))
            }
        }
    }

    /// Starts the span and makes it current on this thread until the result is dropped.
    pub fn enter(self) -> EnteredSpan {
        EnteredSpan::new(self.start())
    }

    /// Runs a future inside the span. The span starts now, as a child of the span that is current now, so the
    /// future may be spawned; it ends when the future is done. A panic gives it status ERROR and `error.type` `panic`;
    /// dropping the future early, `cancelled`.
    pub fn run<F: Future>(self, future: F) -> SpanFuture<F> {
        self.run_call(|| future)
    }

    /// The same, and an `Err` gives the span status ERROR and an `exception` event.
    pub fn try_run<F, T, E>(self, future: F) -> SpanFuture<F>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        self.try_run_call(|| future)
    }

    /// Runs what a function returns, and the function itself.
    pub(super) fn run_call<F: Future>(self, f: impl FnOnce() -> F) -> SpanFuture<F> {
        let (span, future) = self.call(f);
        SpanFuture::new(span, future)
    }

    pub(super) fn try_run_call<F, T, E>(self, f: impl FnOnce() -> F) -> SpanFuture<F>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let (span, future) = self.call(f);
        SpanFuture::recording_errors(span, future)
    }

    fn call<F>(self, f: impl FnOnce() -> F) -> (Option<ActiveSpan>, F) {
        let mut span = self.0.map(Plan::start);
        let Some(active) = &mut span else { return (None, f()) };
        active.end = End::Panicked;
        let future = {
            let _attached = active.context().map(|cx| cx.clone().attach());
            f()
        };
        active.end = End::Cancelled;
        (span, future)
    }

    fn start(self) -> ActiveSpan {
        match self.0 {
            Some(plan) => plan.start(),
            None => ActiveSpan {
                handle: SpanHandle::default(),
                errors: ErrorStyle { with_type: false, with_event: false },
                end: End::Complete,
            },
        }
    }
}

impl Plan<'_> {
    fn start(self) -> ActiveSpan {
        let errors = self.errors;
        let cx = Context::current();
        let parent = cx.span().span_context().clone();
        let unsampled = parent.is_valid() && !parent.is_sampled();
        // A parent-based sampler would say no, and what is inside then hangs under the parent as it is.
        let cx = if cx.is_telemetry_suppressed() || unsampled && self.telemetry.parent_based() {
            None
        } else {
            Some(self.start_in(cx, !parent.is_valid()))
        };
        ActiveSpan { handle: SpanHandle { cx }, errors, end: End::Complete }
    }

    fn start_in(mut self, cx: Context, is_root: bool) -> Context {
        if is_root && let Some(job) = crate::job::root_link(&cx) {
            self.span.links.get_or_insert_default().push(Link::new(job, Vec::new(), 0));
        }
        let span = self.span.start_with_context(self.tracer, &cx);
        let trace_id = span.span_context().trace_id();
        let cx = cx.with_span(span);
        // Outgoing calls then send the flag that says so.
        if is_root && self.telemetry.random_ids() { mark_new_root(cx, trace_id) } else { cx }
    }
}

impl fmt::Debug for ManagedSpan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(plan) => f.debug_tuple("ManagedSpan").field(&plan.span.name).finish(),
            None => f.write_str("ManagedSpan(off)"),
        }
    }
}
