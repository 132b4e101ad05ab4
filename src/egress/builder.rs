//! Choices for the middleware.

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};

use super::middleware::{self, BoxFuture};
use crate::telemetry::Telemetry;

/// Choices for a [`TracePropagation`](super::TracePropagation) other than the defaults.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TracePropagationBuilder {
    choices: Choices,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    /// `None`: the process-wide handle.
    pub(super) telemetry: Option<Telemetry>,
    pub(super) end_at_headers: bool,
}

impl Choices {
    pub(super) const DEFAULT: &Self = &Self { telemetry: None, end_at_headers: false };
}

impl TracePropagationBuilder {
    /// Uses this handle instead of the process-wide one.
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Self {
        self.choices.telemetry = Some(telemetry);
        self
    }

    /// Ends the CLIENT span when the response's headers are there instead of with its body. Cheaper, and the
    /// response is not wrapped; a body that fails or takes its time does not show.
    pub fn with_end_at_headers(mut self, end_at_headers: bool) -> Self {
        self.choices.end_at_headers = end_at_headers;
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
