//! The middleware: decides what a request gets, and watches it.

use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::{Instant, SystemTime};

use http::Extensions;
use opentelemetry::trace::{Link, Span as _, SpanContext, SpanKind, TraceContextExt as _, TraceFlags, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};

use super::body;
use super::builder::{Choices, TracePropagationBuilder};
use super::call::{Call, End};
use super::error_type::Failure;
use super::request_choices::{DestinationServer, TraceOptOut, UrlTemplate};
use super::target::Target;
use crate::propagation;
use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Telemetry};

pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A `reqwest-middleware` that gives every request a CLIENT span and carries the trace on in its headers.
///
/// See the [module](self) for what it records.
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
    if telemetry.switches().is_off() {
        return next.run(request, extensions);
    }
    match begin(telemetry, &mut request, extensions) {
        None => next.run(request, extensions),
        Some(call) => Box::pin(CallFuture {
            next: next.run(request, extensions),
            call: Some(call),
            end_at_headers: choices.end_at_headers,
        }),
    }
}

/// Writes the request's headers; `Some` when there is something to watch.
fn begin(telemetry: &Telemetry, request: &mut Request, extensions: &Extensions) -> Option<Call> {
    let opt_out = extensions.get::<TraceOptOut>().copied();
    if opt_out == Some(TraceOptOut::All) {
        return None;
    }
    let cx = Context::current();
    let span = if opt_out == Some(TraceOptOut::Span) { None } else { start(telemetry, request, extensions, &cx) };
    if opt_out != Some(TraceOptOut::Headers) {
        inject(telemetry, request, span.as_ref().map(|(_, span)| span), &cx);
    }
    let (started, span) = span?;
    span.is_recording().then(|| Call { span, started: started.1, started_at: started.0, status: 0, end: End::Dropped })
}

/// The CLIENT span. It is put into no context: nothing below it looks for one.
fn start(
    telemetry: &Telemetry,
    request: &Request,
    extensions: &Extensions,
    cx: &Context,
) -> Option<((SystemTime, Instant), Span)> {
    if cx.is_telemetry_suppressed() || !telemetry.switches().spans(SpanGroup::HttpClient) {
        return None;
    }
    let parent = cx.span();
    let parent = parent.span_context();
    // A parent-based sampler would say no: nothing is built.
    if telemetry.parent_based() && parent.is_valid() && !parent.is_sampled() {
        return None;
    }
    let now = (SystemTime::now(), Instant::now());
    let (method, original) = known_method(request.method());
    let target = Target::of(request.url());
    let mut attributes = Vec::with_capacity(12);
    attributes.push(KeyValue::new("http.request.method", method));
    attributes.extend(original.map(|method| KeyValue::new("http.request.method_original", method)));
    attributes.push(KeyValue::new("url.full", opentelemetry::Value::String(target.full)));
    attributes.push(KeyValue::new("server.address", opentelemetry::Value::String(target.address)));
    attributes.extend(target.port.map(|port| KeyValue::new("server.port", i64::from(port))));
    let mut name = std::borrow::Cow::Borrowed(if method == OTHER { "HTTP" } else { method });
    if let Some(UrlTemplate(template)) = extensions.get() {
        name = format!("{name} {template}").into();
        attributes.push(KeyValue::new("url.template", template.clone()));
    }
    if let Some(DestinationServer(server)) = extensions.get() {
        attributes.push(KeyValue::new("nemo.gym.http.destination.server.name", server.clone()));
    }
    let tracer = telemetry.tracer(Scope::Client);
    let mut builder =
        tracer.span_builder(name).with_kind(SpanKind::Client).with_start_time(now.0).with_attributes(attributes);
    if let Some(job) = crate::job::root_link(cx) {
        builder = builder.with_links(vec![Link::new(job, Vec::new(), 0)]);
    }
    Some((now, builder.start_with_context(tracer, cx)))
}

fn inject(telemetry: &Telemetry, request: &mut Request, span: Option<&Span>, cx: &Context) {
    let choice = telemetry.propagators();
    let parent = cx.span();
    let parent = parent.span_context();
    match span.map(|span| span.span_context()).filter(|own| own.is_valid()) {
        Some(own) if parent.is_valid() || !telemetry.random_ids() => {
            propagation::inject(own, cx, request.headers_mut(), choice);
        }
        Some(root) => {
            let flags = root.trace_flags() | RANDOM;
            let root = SpanContext::new(root.trace_id(), root.span_id(), flags, false, root.trace_state().clone());
            propagation::inject(&root, cx, request.headers_mut(), choice);
        }
        // No span shows this call: in a sampled trace the callee hangs under the caller's span, in an unsampled one
        // it sees a parent id of its own.
        None if parent.is_valid() && !parent.is_sampled() => {
            let own = SpanContext::new(
                parent.trace_id(),
                propagation::fresh_span_id(),
                parent.trace_flags(),
                false,
                parent.trace_state().clone(),
            );
            propagation::inject(&own, cx, request.headers_mut(), choice);
        }
        None if parent.is_valid() => propagation::inject(parent, cx, request.headers_mut(), choice),
        None => propagation::inject(&SpanContext::NONE, cx, request.headers_mut(), choice),
    }
}

/// W3C Trace Context Level 2: the right-most seven bytes of the trace id are random.
const RANDOM: TraceFlags = TraceFlags::new(0x02);
const OTHER: &str = "_OTHER";

/// `http.request.method`, and `http.request.method_original` where that is not the same.
fn known_method(method: &http::Method) -> (&'static str, Option<String>) {
    const KNOWN: [&str; 10] = ["POST", "GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "QUERY"];
    match KNOWN.iter().find(|known| **known == method.as_str()) {
        Some(known) => (known, None),
        None => (OTHER, Some(method.as_str().to_owned())),
    }
}

/// Watches a call to the response's head, or to the end of its body.
struct CallFuture<'a> {
    /// Goes first when this is dropped.
    next: BoxFuture<'a, Result<Response>>,
    call: Option<Call>,
    end_at_headers: bool,
}

impl Future for CallFuture<'_> {
    type Output = Result<Response>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.next.as_mut().poll(cx));
        let Some(mut call) = self.call.take() else { return Poll::Ready(result) };
        Poll::Ready(match result {
            Ok(response) => {
                call.head(&response);
                if self.end_at_headers {
                    call.end = End::Complete;
                    Ok(response)
                } else {
                    Ok(body::watch(response, call))
                }
            }
            Err(error) => {
                call.end = End::Failed(Failure::of(&error));
                Err(error)
            }
        })
    }
}
