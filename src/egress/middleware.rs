//! The middleware: decides what a request gets, and watches it.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::{Instant, SystemTime};

use http::Extensions;
use opentelemetry::trace::{Link, Span as _, SpanKind, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::Span;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};

use super::attempt::{Attempts, Earlier, Inside, LogicalCall, Mark};
use super::builder::TracePropagationBuilder;
use super::call::{Call, End, Handle};
use super::choices::{Choices, Destination};
use super::error_type::Failure;
use super::request_choices::TraceOptOut;
use super::target::Target;
use super::{body, headers};
use crate::ingress::{Method, Text};
use crate::rollout::{ROLLOUT_ID, RolloutId, rollout_id_in};
use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Telemetry};

pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A `reqwest-middleware` that gives every request a CLIENT span and carries the trace on in its headers.
///
/// See the [module](crate::egress) for what it records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracePropagation;

impl TracePropagation {
    /// Choices other than the defaults.
    pub fn builder() -> TracePropagationBuilder {
        TracePropagationBuilder::default()
    }
}

impl Middleware for TracePropagation {
    fn handle<'a, 'b, 'c, 'd>(
        &'a self,
        request: Request,
        extensions: &'b mut Extensions,
        next: Next<'c>,
    ) -> BoxFuture<'d, Result<Response>>
    where
        'a: 'd,
        'b: 'd,
        'c: 'd,
        Self: 'd,
    {
        handle(Choices::DEFAULT, request, extensions, next)
    }
}

/// Written without the trait's macro: with nothing to watch, the next future is returned as it is.
#[inline]
pub(super) fn handle<'d>(
    choices: &'d Choices,
    mut request: Request,
    extensions: &'d mut Extensions,
    next: Next<'d>,
) -> BoxFuture<'d, Result<Response>> {
    let telemetry = choices.telemetry.as_ref().unwrap_or_else(|| Telemetry::process());
    let switches = telemetry.switches();
    // After shutdown nothing is measured, and what a request brought still goes on.
    if switches.is_off() && !switches.has_ended() {
        return next.run(request, extensions);
    }
    if let Some(logical) = LogicalCall::of(&request, extensions) {
        return attempt(telemetry, logical.mark, request, extensions, next);
    }
    match begin(choices, telemetry, &mut request, extensions) {
        None => next.run(request, extensions),
        Some(call) => watch(call, choices.end_at_headers, request, extensions, next),
    }
}

/// Waits for the response's head; `call` then goes on in its body.
fn watch<'d>(
    mut call: Call,
    end_at_headers: bool,
    request: Request,
    extensions: &'d mut Extensions,
    next: Next<'d>,
) -> BoxFuture<'d, Result<Response>> {
    Box::pin(async move {
        let mut future = next.run(request, extensions);
        let result = poll_fn(|cx| call.logical.poll(&mut future, cx)).await;
        drop(future);
        if Attempts::may_repeat(&result) {
            let mut earlier = extensions.remove::<Earlier>().unwrap_or_default();
            earlier.0.end(&result);
            extensions.insert(earlier);
        } else {
            extensions.remove::<Earlier>();
        }
        match result {
            Ok(response) => {
                call.head(&response);
                if end_at_headers || call.span.is_none() {
                    call.end = End::Complete;
                    drop(call);
                    Ok(response)
                } else {
                    Ok(body::watch(response, call))
                }
            }
            Err(error) => {
                call.end = End::Failed(Failure::of(&error));
                drop(call);
                Err(error)
            }
        }
    })
}

/// One of the attempts of a call that is watched further out: it keeps that call's headers and makes no span.
#[cold]
fn attempt<'d>(
    telemetry: &'d Telemetry,
    mark: Mark,
    request: Request,
    extensions: &'d mut Extensions,
    next: Next<'d>,
) -> BoxFuture<'d, Result<Response>> {
    /// Says what became of the attempt when nobody else does.
    struct Attempt(Mark);
    impl Drop for Attempt {
        fn drop(&mut self) {
            LogicalCall::update(self.0, Attempts::dropped);
        }
    }
    Box::pin(async move {
        LogicalCall::update(mark, |attempts| count_retry(telemetry, attempts));
        let attempt = Attempt(mark);
        let result = next.run(request, extensions).await;
        std::mem::forget(attempt);
        LogicalCall::update(mark, |attempts| attempts.end(&result));
        result
    })
}

fn count_retry(telemetry: &Telemetry, attempts: &mut Attempts) {
    if let Some(reason) = attempts.start()
        && telemetry.switches().metrics_of(SpanGroup::HttpClient)
    {
        telemetry.instruments().http_client().retry(reason.as_str());
    }
}

/// Writes the request's headers; `Some` when there is something to watch.
fn begin(choices: &Choices, telemetry: &Telemetry, request: &mut Request, extensions: &mut Extensions) -> Option<Call> {
    let opt_out = extensions.get::<TraceOptOut>().copied();
    if opt_out == Some(TraceOptOut::All) {
        return None;
    }
    let cx = Context::current();
    let rollout = rollout_id_in(&cx);
    let destination = choices.destination(request, extensions);
    let silent = opt_out == Some(TraceOptOut::Span) || cx.is_telemetry_suppressed();
    let switches = telemetry.switches();
    let metrics = !silent && switches.metrics_of(SpanGroup::HttpClient);
    let wants_span = !silent && switches.spans(SpanGroup::HttpClient) && {
        let parent = cx.span();
        let parent = parent.span_context();
        // A parent-based sampler would say no: nothing is built.
        !telemetry.parent_based() || !parent.is_valid() || parent.is_sampled()
    };
    let mut span = None;
    let mut observed = None;
    if wants_span || metrics {
        let now = (SystemTime::now(), Instant::now());
        let method = Method::of(request.method());
        let target = Target::of(method, request.url(), telemetry.instruments().http_client());
        if wants_span {
            let template = choices.template(request, extensions);
            span = Some(start(telemetry, request, &target, template, &destination, rollout.as_ref(), &cx, now.0));
        }
        observed = Some((target, now));
    }
    let mark = if opt_out == Some(TraceOptOut::Headers) {
        Mark::Extensions
    } else {
        headers::inject(telemetry, request, span.as_ref(), &cx, rollout.as_ref(), destination.internal)
    };
    let (target, (started_at, started)) = observed?;
    // In place: a span is too large to be moved about.
    if span.as_ref().is_some_and(|span| !span.is_recording()) {
        span = None;
    }
    if span.is_none() && !metrics {
        return None;
    }
    if mark == Mark::Extensions {
        extensions.insert(Inside);
    }
    let mut resent = 0;
    if let Some(Earlier(attempts)) = extensions.get_mut() {
        count_retry(telemetry, attempts);
        resent = attempts.resent;
    }
    Some(Call {
        telemetry: match &choices.telemetry {
            Some(telemetry) => Handle::Owned(telemetry.clone()),
            None => Handle::Process(Telemetry::process()),
        },
        span,
        target,
        metrics,
        internal: destination.internal,
        logical: LogicalCall::new(mark, destination.interned()),
        resent,
        started_at,
        started,
        status: 0,
        version: None,
        end: End::Dropped,
    })
}

/// The CLIENT span. It is put into no context: nothing below it looks for one.
#[expect(clippy::too_many_arguments, reason = "what is known of the call, each thing once")]
fn start(
    telemetry: &Telemetry,
    request: &Request,
    target: &Target,
    template: Option<Text>,
    destination: &Destination,
    rollout: Option<&RolloutId>,
    cx: &Context,
    started_at: SystemTime,
) -> Span {
    let mut attributes = Vec::with_capacity(12);
    attributes.push(KeyValue::new("http.request.method", target.method.as_attribute()));
    if target.method == Method::Other {
        attributes.push(KeyValue::new("http.request.method_original", request.method().to_string()));
    }
    attributes.push(KeyValue::new("url.full", Value::String(target.full.clone())));
    if !target.address.as_str().is_empty() {
        attributes.push(KeyValue::new("server.address", Value::String(target.address.clone())));
    }
    attributes.extend(target.port.map(|port| KeyValue::new("server.port", i64::from(port))));
    attributes.extend(rollout.map(|id| KeyValue::new(ROLLOUT_ID, id.to_value())));
    if let Some(server) = &destination.server {
        attributes.push(KeyValue::new("nemo.gym.http.destination.server.name", server.value()));
    }
    let name = match (&template, &target.template) {
        (Some(template), _) => {
            attributes.push(KeyValue::new("url.template", template.value()));
            format!("{} {}", target.method.as_name(), template.as_str()).into()
        }
        (None, Some(template)) => {
            attributes.push(KeyValue::new("url.template", template.value()));
            target.name.name()
        }
        (None, None) => target.name.name(),
    };
    let tracer = telemetry.tracer(Scope::Client);
    let mut builder = tracer.span_builder(name);
    builder.span_kind = Some(SpanKind::Client);
    builder.start_time = Some(started_at);
    builder.attributes = Some(attributes);
    if let Some(job) = crate::job::root_link(cx) {
        builder.links = Some(vec![Link::new(job, Vec::new(), 0)]);
    }
    builder.start_with_context(tracer, cx)
}
