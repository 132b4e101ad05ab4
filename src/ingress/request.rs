//! The state of one request: it owns the spans, the duration and the active count, and ends them once, when it is
//! dropped, wherever that is.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};

use super::http::{Method, Scheme, Version, status_text};
use super::layer::LayerState;
use super::report::MatchedRoute;
use super::route::{Route, Semantic};
use crate::metrics::{ActiveRequest, ms};
use crate::rollout::RolloutScope;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nobody said otherwise: the connection dropped it.
    Cancelled,
    /// The response body reached its end.
    Complete,
    /// The inner service answered with an error instead of a response.
    ServiceError,
    /// The response body failed.
    BodyError,
    /// A handler or body unwound.
    Panicked,
}

impl End {
    /// `error.type`, a closed set.
    const fn error_type(self) -> Option<&'static str> {
        match self {
            End::Complete => None,
            End::Cancelled => Some("cancelled"),
            End::ServiceError => Some("service_error"),
            End::BodyError => Some("body_error"),
            End::Panicked => Some("panic"),
        }
    }
}

/// The open spans of a request.
pub(super) struct Spans {
    pub(super) started_at: SystemTime,
    /// The context of the SERVER span.
    pub(super) server: Option<Context>,
}

pub(super) struct RequestState {
    pub(super) layer: Arc<LayerState>,
    pub(super) route: Arc<Route>,
    /// Current while handler and body run: the innermost span, or what was received.
    pub(super) cx: Context,
    pub(super) spans: Option<Spans>,
    /// The Gym route, with a span or without.
    pub(super) semantic: Option<Semantic>,
    // The next two are of the spans; inside of `spans` they would make every request larger.
    /// Whether `cx` holds the semantic span.
    pub(super) semantic_span: bool,
    /// `http.route` is on the SERVER span.
    pub(super) route_known: bool,
    /// Counted in, so `http.server.*` are recorded.
    pub(super) active: Option<ActiveRequest>,
    pub(super) started: Instant,
    pub(super) method: Method,
    pub(super) scheme: Scheme,
    pub(super) version: Version,
    /// 0 until there is a response.
    pub(super) status: u16,
    pub(super) end: End,
    pub(super) first_byte: bool,
    /// Bytes of the response body that were handed on.
    pub(super) sent: u64,
}

impl RequestState {
    /// Takes the response's head into account.
    #[inline]
    pub(super) fn head<B>(&mut self, response: &mut http::Response<B>) {
        self.status = response.status().as_u16();
        if self.route.assumed || self.route.template.is_none() {
            if let Some(MatchedRoute(path)) = response.extensions_mut().remove() {
                let form = self.cx.get::<Arc<RolloutScope>>().and_then(|scope| scope.form());
                self.route = self.layer.routes.by_template(form, path.as_str());
                self.rename();
            } else if self.status == 404 && self.route.assumed && is_fallback(response) {
                self.route = self.layer.routes.unmatched().clone();
                self.rename();
            }
        }
        if let Some(server) = self.server()
            && !self.layer.response_headers.is_empty()
        {
            let mut attributes = Vec::new();
            super::attributes::push_captured(&mut attributes, &self.layer.response_headers, response.headers());
            server.span().set_attributes(attributes);
        }
    }

    fn server(&self) -> Option<&Context> {
        self.spans.as_ref().and_then(|spans| spans.server.as_ref())
    }

    fn rename(&self) {
        if let Some(server) = self.server() {
            server.span().update_name(self.route.method(self.method).name.name());
        }
    }

    /// The body's bytes went on; the first of a model route's tell how long its caller waited.
    #[inline]
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        if !self.first_byte && bytes > 0 {
            self.first_byte = true;
            if let Some(Semantic::Model(dialect)) = self.semantic {
                let waited = self.started.elapsed();
                self.layer.telemetry.instruments().gym.record_model_first_byte(dialect, waited);
                if self.semantic_span {
                    self.cx.span().set_attribute(KeyValue::new("nemo.gym.model.time_to_first_byte_ms", ms(waited)));
                }
            }
        }
    }

    fn end_spans(&self, elapsed: Duration, error: Option<&std::borrow::Cow<'static, str>>) {
        let Some(spans) = &self.spans else { return };
        let at = spans.started_at + elapsed;
        let fail = |span: &opentelemetry::trace::SpanRef<'_>| {
            if let Some(error) = error {
                span.set_attribute(KeyValue::new("error.type", error.clone()));
                span.set_status(Status::error(""));
            }
        };
        if self.semantic_span {
            let span = self.cx.span();
            fail(&span);
            span.end_with_timestamp(at);
        }
        if let Some(server) = &spans.server {
            let span = server.span();
            if let Some(template) = self.route.template.as_ref().filter(|_| !self.route_known) {
                span.set_attribute(KeyValue::new("http.route", template.value()));
            }
            if self.status != 0 {
                span.set_attribute(KeyValue::new("http.response.status_code", i64::from(self.status)));
            }
            fail(&span);
            span.end_with_timestamp(at);
        }
    }

    fn record(&mut self, elapsed: Duration, error: Option<&std::borrow::Cow<'static, str>>) {
        let instruments = self.layer.telemetry.instruments();
        let failed = error.is_some() || self.status >= 400;
        match self.semantic {
            Some(Semantic::Rollout) => instruments.gym.record_rollout(elapsed, !failed),
            Some(Semantic::Verify) => instruments.gym.record_verify(elapsed, !failed),
            Some(Semantic::Model(dialect)) => instruments.gym.record_model_call(dialect, elapsed),
            Some(Semantic::AgentResponses) | None => {}
        }
        let Some(active) = self.active.take() else { return };
        instruments.http_server.end(active);
        let seconds = elapsed.as_secs_f64();
        if self.status == 200
            && error.is_none()
            && self.scheme == Scheme::Http
            && !self.layer.body_sizes
            && let Some(ok) = self.route.method(self.method).ok(self.version)
        {
            return ok.record(seconds);
        }
        self.record_unusual(seconds, error);
    }

    #[cold]
    fn record_unusual(&self, seconds: f64, error: Option<&std::borrow::Cow<'static, str>>) {
        let mut attributes = self.route.duration_attributes(self.method, self.scheme, self.version);
        if self.status != 0 {
            attributes.push(KeyValue::new("http.response.status_code", i64::from(self.status)));
        }
        attributes.extend(error.map(|error| KeyValue::new("error.type", error.clone())));
        let http_server = &self.layer.telemetry.instruments().http_server;
        http_server.duration.record(seconds, &attributes);
        if self.layer.body_sizes {
            http_server.response_size.record(self.sent, &attributes);
        }
    }
}

/// Whether a 404 looks like a router's own: no body and no content type. A handler's 404 says something.
fn is_fallback<B>(response: &http::Response<B>) -> bool {
    !response.headers().contains_key(http::header::CONTENT_TYPE)
}

impl Drop for RequestState {
    fn drop(&mut self) {
        let elapsed = self.started.elapsed();
        let error = match self.end.error_type() {
            Some(error) => Some(error.into()),
            None => (self.status >= 500).then(|| status_text(self.status)),
        };
        self.end_spans(elapsed, error.as_ref());
        self.record(elapsed, error.as_ref());
        if let Some(scope) = self.cx.get::<Arc<RolloutScope>>() {
            scope.close();
        }
    }
}
