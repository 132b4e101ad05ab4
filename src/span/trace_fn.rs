//! Functions whose every call is a span.

use std::borrow::Cow;
use std::fmt;

use opentelemetry::trace::SpanKind;

use super::active::ErrorStyle;
use super::future::SpanFuture;
use super::managed::ManagedSpan;
use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Telemetry};

/// Wraps functions so that every call is a span. Made by [`trace_fn`].
///
/// Whether the group is on is asked at each call, so functions may be wrapped before telemetry is initialised.
#[derive(Clone, Debug)]
pub struct TraceFn {
    /// `None`: the process-wide handle, whichever it is at the call.
    telemetry: Option<Telemetry>,
    group: SpanGroup,
    name: Cow<'static, str>,
}

/// Spans around the calls of a function: of this group and name, scope `nemo.lens`. Failures are described as
/// `Type: message`.
///
/// ```
/// use nemo_gym_telemetry::SpanGroup;
/// use nemo_gym_telemetry::span::trace_fn;
///
/// let double = trace_fn(SpanGroup::Verify, "double").wrap(|n: u32| n * 2);
/// assert_eq!(double(2), 4);
///
/// let fetch = trace_fn(SpanGroup::Agent, "fetch").wrap_async(|id: u32| async move { id + 1 });
/// # let _ = fetch;
/// ```
pub fn trace_fn(group: SpanGroup, name: impl Into<Cow<'static, str>>) -> TraceFn {
    TraceFn { telemetry: None, group, name: name.into() }
}

impl Telemetry {
    /// [`trace_fn`] of this handle.
    pub fn trace_fn(&self, group: SpanGroup, name: impl Into<Cow<'static, str>>) -> TraceFn {
        TraceFn { telemetry: Some(self.clone()), group, name: name.into() }
    }
}

impl TraceFn {
    /// A function of one argument (a tuple for more).
    pub fn wrap<A, R>(self, f: impl Fn(A) -> R) -> impl Fn(A) -> R {
        move |argument| self.span().in_scope(|_| f(argument))
    }

    /// A function whose `Err` is recorded.
    pub fn wrap_try<A, R, E: fmt::Display>(self, f: impl Fn(A) -> Result<R, E>) -> impl Fn(A) -> Result<R, E> {
        move |argument| self.span().try_in_scope(|_| f(argument))
    }

    /// A function that returns a future. The span lasts until the future is done; it covers the call itself, too.
    pub fn wrap_async<A, F: Future>(self, f: impl Fn(A) -> F) -> impl Fn(A) -> SpanFuture<F> {
        move |argument| self.span().run_call(|| f(argument))
    }

    /// A function that returns a future whose `Err` is recorded.
    pub fn wrap_try_async<A, F, R, E>(self, f: impl Fn(A) -> F) -> impl Fn(A) -> SpanFuture<F>
    where
        F: Future<Output = Result<R, E>>,
        E: fmt::Display,
    {
        move |argument| self.span().try_run_call(|| f(argument))
    }

    fn span(&self) -> ManagedSpan<'_> {
        let telemetry = self.telemetry.as_ref().unwrap_or_else(|| Telemetry::process());
        let on = telemetry.switches().spans(self.group);
        let errors = ErrorStyle { with_type: true, with_event: true };
        ManagedSpan::plan(telemetry, on, Scope::Startup, || self.name.clone(), SpanKind::Internal, errors)
    }
}
