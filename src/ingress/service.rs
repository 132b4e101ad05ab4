//! The service: decides what a request's telemetry is, and starts it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context as TaskContext, Poll};
use std::time::{Instant, SystemTime};

use axum::extract::MatchedPath;
use http::{Request, Response};
use http_body::Body;
use opentelemetry::trace::{Link, Span as _, SpanContext, SpanKind, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;
use tower_service::Service;

use super::attributes::{self, Head};
use super::body::ResponseBody;
use super::builder::InboundContext;
use super::future::ResponseFuture;
use super::http::{Method, Scheme, Version};
use super::layer::LayerState;
use super::request::{End, RequestState, Spans};
use super::route::{Route, Semantic};
use crate::propagation;
use crate::rollout::{PrefixForm, ROLLOUT_ID, RolloutId, RolloutScope, StrippedPrefix, rollout_id_in, split_prefix};
use crate::span_group::SpanGroup;
use crate::telemetry::{Scope, Switches};

/// Service of [`GymTelemetryLayer`](super::GymTelemetryLayer).
#[derive(Clone)]
pub struct GymTelemetryService<S> {
    inner: S,
    layer: Arc<LayerState>,
}

/// In a request's extensions: a layer of ours further out has this request.
#[derive(Clone, Copy, Debug)]
struct Instrumented;

/// How many services were made by layers, in this process. Marking a request costs a tenth of what a request costs,
/// and one layer around a router needs no mark.
static SERVICES: AtomicUsize = AtomicUsize::new(0);

impl<S> GymTelemetryService<S> {
    pub(super) fn new(inner: S, layer: Arc<LayerState>) -> Self {
        SERVICES.fetch_add(1, Relaxed);
        Self { inner, layer }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for GymTelemetryService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let switches = self.layer.telemetry.switches();
        // After shutdown a request still belongs to its caller's trace, and so do the calls it makes.
        if switches.is_off() && !switches.has_ended() {
            return ResponseFuture::off(self.inner.call(request));
        }
        call_on(&mut self.inner, &self.layer, switches, request)
    }
}

// Out of line, so that the path of a server without telemetry stays short.
#[inline(never)]
fn call_on<S, B>(
    inner: &mut S,
    layer: &Arc<LayerState>,
    switches: Switches,
    mut request: Request<B>,
) -> ResponseFuture<S::Future>
where
    S: Service<Request<B>>,
{
    // Where only one service of ours exists, none can be further in.
    if SERVICES.load(Relaxed) > 1 && request.extensions_mut().insert(Instrumented).is_some() {
        let route = request.extensions().get::<MatchedPath>().cloned();
        return ResponseFuture::reporting(inner.call(request), route);
    }
    crate::runtime::ensure_started(&layer.telemetry);
    let mut state = start(layer, switches, &request);
    state.end = End::Panicked;
    let future = {
        let _current = state.cx.clone().attach();
        inner.call(request)
    };
    state.end = End::Cancelled;
    ResponseFuture::on(future, state)
}

/// What the path says beside the route: the rollout.
struct Target<'a> {
    form: Option<PrefixForm>,
    rollout: Option<&'a str>,
    /// The path as the client sent it.
    path: &'a str,
}

fn target<'a, B>(layer: &LayerState, request: &'a Request<B>) -> (Arc<Route>, Target<'a>) {
    let uri = request.uri();
    let path = uri.path();
    let stripped = request.extensions().get::<StrippedPrefix>();
    let (rollout, form, rest) = match stripped {
        Some(prefix) => (Some(prefix.id.as_str()), Some(prefix.form), path),
        None => match split_prefix(path) {
            Some((id, form, rest)) => (Some(id), Some(form), rest),
            None => (None, None, path),
        },
    };
    let route = match request.extensions().get::<MatchedPath>() {
        // A router behind the prefix has matched the rest; one in front of it, all of it.
        Some(matched) => layer.routes.by_template(form.filter(|_| stripped.is_some()), matched.as_str()),
        None => layer.routes.by_path(form, rest).clone(),
    };
    let path = stripped.map_or(path, |prefix| prefix.original.path());
    (route, Target { form, rollout, path })
}

fn start<B>(layer: &Arc<LayerState>, switches: Switches, request: &Request<B>) -> RequestState {
    let started = Instant::now();
    let method = Method::of(request.method());
    let scheme = match request.uri().scheme_str() {
        Some("https") => Scheme::Https,
        Some(_) => Scheme::Http,
        None if layer.https => Scheme::Https,
        None => Scheme::Http,
    };
    let head = Head::scan(request.headers());
    let (route, target) = target(layer, request);
    let excluded = is_excluded(layer, method, target.path);
    let on = |group| !excluded && switches.spans(group);
    let measured = |group| !excluded && switches.metrics_of(group);
    let semantic = route.semantic(method);

    let telemetry = &layer.telemetry;
    let retaining = !telemetry.parent_based() || !switches.traces();
    let mut received = head.trace.context(request.headers(), telemetry.propagators(), retaining);
    let mut link = None;
    if layer.inbound == InboundContext::Never {
        link = Some(received.span().span_context().clone()).filter(SpanContext::is_valid);
        received = Context::new();
    }
    let parent = with_rollout(received, &target, head.trace.has_baggage(), semantic);

    let mut state = RequestState {
        layer: layer.clone(),
        route,
        spans: None,
        semantic: semantic.filter(|semantic| measured(semantic.group())),
        active: measured(SpanGroup::Server).then(|| layer.telemetry.instruments().http_server.begin(method, scheme)),
        started,
        method,
        scheme,
        version: Version::of(request.version()),
        status: 0,
        end: End::Cancelled,
        first_byte: false,
        sent: 0,
        semantic_span: false,
        route_known: false,
        cx: Context::new(),
    };
    let server = on(SpanGroup::Server);
    let semantic = semantic.filter(|semantic| on(semantic.group()));
    if (!server && semantic.is_none()) || decided_unsampled(layer, &parent) {
        state.cx = parent;
        return state;
    }
    spans(&mut state, server, semantic, parent, link, &head, &target, request);
    state
}

/// Whether a parent-based sampler would drop what is under this parent, before anything is built for it.
#[inline]
fn decided_unsampled(layer: &LayerState, parent: &Context) -> bool {
    layer.telemetry.parent_based() && parent.has_active_span() && !parent.span().span_context().is_sampled()
}

#[inline]
fn is_excluded(layer: &LayerState, method: Method, path: &str) -> bool {
    matches!(method, Method::Get | Method::Head) && layer.excluded.iter().any(|excluded| excluded == path)
}

/// The context of the caller, with a place for the request's rollout id where there is one or may come one.
#[inline]
fn with_rollout(parent: Context, target: &Target<'_>, baggage: bool, semantic: Option<Semantic>) -> Context {
    let id = match target.rollout {
        Some(id) => RolloutId::new(id).ok(),
        None if baggage => rollout_id_in(&parent),
        None => None,
    };
    if id.is_none() && semantic != Some(Semantic::Rollout) {
        return parent;
    }
    parent.with_value(RolloutScope::new(id, target.form))
}

#[expect(clippy::too_many_arguments, reason = "all of one request, at the one place where its spans start")]
fn spans<B>(
    state: &mut RequestState,
    server: bool,
    semantic: Option<Semantic>,
    parent: Context,
    link: Option<SpanContext>,
    head: &Head<'_>,
    target: &Target<'_>,
    request: &Request<B>,
) {
    let telemetry = &state.layer.telemetry;
    let scope = parent.get::<Arc<RolloutScope>>().cloned();
    let rollout = scope.as_ref().and_then(|scope| scope.id()).map(|id| KeyValue::new(ROLLOUT_ID, id.to_value()));
    let is_root = !parent.has_active_span();
    let started_at = SystemTime::now();
    let mut cx = parent;
    let mut spans = Spans { started_at, server: None };
    if server {
        state.route_known = !state.route.assumed && state.route.template.is_some();
        let mut attributes = server_attributes(state, head, target, request);
        attributes.extend(rollout.clone());
        let tracer = telemetry.tracer(Scope::Server);
        let mut builder = tracer
            .span_builder(state.route.method(state.method).name.name())
            .with_kind(SpanKind::Server)
            .with_start_time(started_at)
            .with_attributes(attributes);
        if let Some(link) = link {
            builder = builder.with_links(vec![Link::with_context(link)]);
        }
        cx = start_span(builder, tracer, cx, is_root && telemetry.random_ids());
        spans.server = Some(cx.clone());
    }
    if let Some(semantic) = semantic.filter(|_| !server || !decided_unsampled(&state.layer, &cx)) {
        // Server name, rollout id, and what the end may add.
        let mut attributes = Vec::with_capacity(3);
        attributes
            .extend(state.layer.server_name.as_ref().map(|name| KeyValue::new("nemo.gym.server.name", name.value())));
        attributes.extend(rollout);
        let tracer = telemetry.tracer(Scope::Helpers);
        let builder = tracer
            .span_builder(semantic.span_name())
            .with_kind(SpanKind::Internal)
            .with_start_time(started_at)
            .with_attributes(attributes);
        cx = start_span(builder, tracer, cx, is_root && !server && telemetry.random_ids());
        state.semantic_span = true;
    }
    if let Some(scope) = scope {
        scope.open(spans.server.iter().cloned().chain(state.semantic_span.then(|| cx.clone())));
    }
    state.spans = Some(spans);
    state.cx = cx;
}

#[inline]
fn start_span(
    builder: opentelemetry::trace::SpanBuilder,
    tracer: &SdkTracer,
    parent: Context,
    new_root: bool,
) -> Context {
    let span = tracer.build_with_context(builder, &parent);
    if !span.span_context().is_valid() {
        // Its provider is shut down: the caller's context goes on as it came.
        return parent;
    }
    let cx = parent.with_span(span);
    if new_root {
        let trace_id = cx.span().span_context().trace_id();
        return propagation::mark_new_root(cx, trace_id);
    }
    cx
}

fn server_attributes<B>(
    state: &RequestState,
    head: &Head<'_>,
    target: &Target<'_>,
    request: &Request<B>,
) -> Vec<KeyValue> {
    let layer = &state.layer;
    // Room for what every request has, and for the route, status and error of its end.
    let mut attributes = Vec::with_capacity(12);
    attributes.push(KeyValue::new("http.request.method", state.method.as_attribute()));
    attributes.push(KeyValue::new("url.scheme", state.scheme.as_str()));
    attributes.push(match &state.route.template {
        Some(template) if template.as_str() == target.path => KeyValue::new("url.path", template.value()),
        _ => KeyValue::new("url.path", target.path.to_owned()),
    });
    attributes.push(KeyValue::new("network.protocol.version", state.version.as_str()));
    if let Some(template) = state.route.template.as_ref().filter(|_| state.route_known) {
        attributes.push(KeyValue::new("http.route", template.value()));
    }
    head.push(&mut attributes, request.uri(), state.scheme);
    attributes::push_client(&mut attributes, request.extensions());
    if state.method == Method::Other {
        attributes::push_unusual(&mut attributes, state.method, request.method());
    }
    // The prefix is stripped from the path alone: the query is the client's.
    if let Some(query) = request.uri().query().filter(|query| layer.record_query && !query.is_empty()) {
        attributes.push(KeyValue::new("url.query", crate::egress::redacted_query(query)));
    }
    if !layer.request_headers.is_empty() {
        attributes::push_captured(&mut attributes, &layer.request_headers, request.headers());
    }
    attributes
}

impl<S: fmt::Debug> fmt::Debug for GymTelemetryService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GymTelemetryService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
