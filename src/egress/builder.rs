//! Choices for the middleware.

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};

use super::choices::Choices;
use super::middleware::{self, BoxFuture};
use crate::telemetry::Telemetry;

/// Choices for a [`TracePropagation`](super::TracePropagation) other than the defaults.
///
/// ```
/// use nemo_gym_telemetry::egress::TracePropagation;
///
/// let middleware = TracePropagation::builder()
///     .with_server("policy_model", "127.0.0.1:8001")
///     .with_url_template("/tools/{tool}/call")
///     .build();
/// let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(middleware).build();
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TracePropagationBuilder {
    choices: Choices,
}

impl TracePropagationBuilder {
    /// Uses this handle instead of the process-wide one.
    pub fn with_telemetry(mut self, telemetry: &Telemetry) -> Self {
        self.choices.telemetry = Some(telemetry.clone());
        self
    }

    /// Ends the CLIENT span when the response's headers are there instead of with its body (default: false). Cheaper,
    /// and the response is not wrapped; a body that fails or takes its time does not show.
    pub fn with_end_at_headers(mut self, end_at_headers: bool) -> Self {
        self.choices.end_at_headers = end_at_headers;
        self
    }

    /// Marks a host (`host` or `host:port`) as one of the Gym run: the rollout id goes there as baggage, and
    /// `nemo.gym.http.internal` is true in metrics. What is neither is said once and left out.
    pub fn with_internal_host(mut self, host: impl AsRef<str>) -> Self {
        self.choices.add_host(host.as_ref(), None);
        self
    }

    /// The same, for the Gym server of this name: `nemo.gym.http.destination.server.name` on its spans.
    pub fn with_server(mut self, name: impl AsRef<str>, host: impl AsRef<str>) -> Self {
        self.choices.add_host(host.as_ref(), Some(name.as_ref()));
        self
    }

    /// Names a template for paths such as `/items/{item_id}` (`{*rest}` takes several segments): the span's
    /// `url.template` and part of its name. Gym's own routes are known. Two templates that mean the same paths, or a
    /// malformed one, are said once and left out.
    pub fn with_url_template(mut self, template: impl AsRef<str>) -> Self {
        self.choices.add_template(template.as_ref());
        self
    }

    /// The middleware.
    pub fn build(self) -> ConfiguredTracePropagation {
        ConfiguredTracePropagation { choices: self.choices }
    }
}

/// A [`TracePropagation`](super::TracePropagation) with choices of its own, made by
/// [`TracePropagation::builder`](super::TracePropagation::builder).
#[derive(Clone, Debug)]
pub struct ConfiguredTracePropagation {
    choices: Choices,
}

impl Middleware for ConfiguredTracePropagation {
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
        middleware::handle(&self.choices, request, extensions, next)
    }
}
