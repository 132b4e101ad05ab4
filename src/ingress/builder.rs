//! Choices for a layer.

use http::HeaderName;

use super::layer::{CapturedHeader, GymTelemetryLayer, LayerState};
use super::route::Routes;
use super::text::Text;
use crate::diagnostics;
use crate::telemetry::Telemetry;

/// What to make of the trace context a request brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InboundContext {
    /// Continue the caller's trace: right inside a fleet, where callers are trusted.
    #[default]
    Always,
    /// Start a trace of our own, with a link to the caller's span: for servers that strangers call.
    /// Baggage is not taken over either.
    Never,
}

/// Choices for a [`GymTelemetryLayer`]; made by [`GymTelemetryLayer::builder`].
#[derive(Debug)]
#[must_use]
pub struct GymTelemetryLayerBuilder {
    telemetry: Option<Telemetry>,
    routes: Vec<String>,
    inbound: InboundContext,
    excluded: Vec<String>,
    https: bool,
    record_query: bool,
    body_sizes: bool,
    request_headers: Vec<HeaderName>,
    response_headers: Vec<HeaderName>,
}

/// Paths that supervisors and orchestrators poll.
const HEALTH_PATHS: [&str; 6] = ["/health", "/healthz", "/livez", "/readyz", "/ready", "/ping"];

/// Headers that hold credentials; never captured, whatever is asked.
const CREDENTIAL_HEADERS: [&str; 11] = [
    "authorization",
    "proxy-authorization",
    "authentication-info",
    "proxy-authenticate",
    "www-authenticate",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "x-amz-security-token",
    "x-csrf-token",
];

impl Default for GymTelemetryLayerBuilder {
    fn default() -> Self {
        Self {
            telemetry: None,
            routes: Vec::new(),
            inbound: InboundContext::default(),
            excluded: HEALTH_PATHS.map(str::to_owned).to_vec(),
            https: false,
            record_query: false,
            body_sizes: false,
            request_headers: Vec::new(),
            response_headers: Vec::new(),
        }
    }
}

impl GymTelemetryLayerBuilder {
    /// The telemetry to use; the process-wide one by default.
    pub fn with_telemetry(mut self, telemetry: &Telemetry) -> Self {
        self.telemetry = Some(telemetry.clone());
        self
    }

    /// A route of the server, for a layer around the whole router, which cannot see what the router matches:
    /// `/items/{id}`, `/files/{*path}`, or a plain path. Gym's own routes are known.
    pub fn with_route(mut self, template: impl Into<String>) -> Self {
        self.routes.push(template.into());
        self
    }

    /// What to make of received trace context. Default: [`InboundContext::Always`].
    pub fn with_inbound_context(mut self, inbound: InboundContext) -> Self {
        self.inbound = inbound;
        self
    }

    /// Makes neither spans nor samples for `GET` and `HEAD` requests of exactly this path, besides the default ones:
    /// `/health`, `/healthz`, `/livez`, `/readyz`, `/ready` and `/ping`. The request's context still passes.
    pub fn with_excluded_path(mut self, path: impl Into<String>) -> Self {
        self.excluded.push(path.into());
        self
    }

    /// Excludes no path, not even the default ones.
    pub fn without_excluded_paths(mut self) -> Self {
        self.excluded.clear();
        self
    }

    /// Says that the server is reached by https, where requests do not say so themselves: `url.scheme`. Default: http.
    pub fn with_https(mut self, https: bool) -> Self {
        self.https = https;
        self
    }

    /// Records `url.query`, with the values of credential-like parameters redacted. Default: not recorded.
    pub fn with_query(mut self, record: bool) -> Self {
        self.record_query = record;
        self
    }

    /// Records `http.server.response.body.size`. Default: off.
    pub fn with_body_sizes(mut self, record: bool) -> Self {
        self.body_sizes = record;
        self
    }

    /// Records this request header on SERVER spans as `http.request.header.<name>`. Headers that hold credentials are
    /// refused with a warning.
    pub fn with_captured_request_header(mut self, name: HeaderName) -> Self {
        self.request_headers.extend(may_capture(name));
        self
    }

    /// Records this response header on SERVER spans as `http.response.header.<name>`. Headers that hold credentials are
    /// refused with a warning.
    pub fn with_captured_response_header(mut self, name: HeaderName) -> Self {
        self.response_headers.extend(may_capture(name));
        self
    }

    /// Makes the layer; initialises the process-wide telemetry from the environment when none was given.
    pub fn build(self) -> GymTelemetryLayer {
        let telemetry = self.telemetry.unwrap_or_else(|| Telemetry::builder().init());
        let captured = |names: Vec<HeaderName>, prefix: &str| {
            names.into_iter().map(|name| CapturedHeader { key: format!("{prefix}.{name}").into(), name }).collect()
        };
        GymTelemetryLayer::from_state(LayerState {
            routes: Routes::new(
                telemetry.identity().server_type(),
                &telemetry.instruments().http_server.duration,
                &self.routes,
            ),
            server_name: telemetry.identity().name().map(Text::new),
            inbound: self.inbound,
            excluded: self.excluded,
            https: self.https,
            record_query: self.record_query,
            body_sizes: self.body_sizes,
            request_headers: captured(self.request_headers, "http.request.header"),
            response_headers: captured(self.response_headers, "http.response.header"),
            telemetry,
        })
    }
}

fn may_capture(name: HeaderName) -> Option<HeaderName> {
    let text = name.as_str();
    let credential = CREDENTIAL_HEADERS.contains(&text)
        || ["token", "secret", "password", "credential", "signature"].iter().any(|word| text.contains(word));
    if credential {
        diagnostics::warn_once(&format!(
            "header {text} may hold credentials and is not captured: take it off the list"
        ));
        return None;
    }
    Some(name)
}
