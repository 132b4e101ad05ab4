//! Choices for one request, in its [`http::Extensions`].

use std::borrow::Cow;

/// The Gym server that a request goes to, by its name in the Gym configuration:
/// `nemo.gym.http.destination.server.name` on the CLIENT span. Such a destination counts as internal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationServer(pub Cow<'static, str>);

/// The template of the request's path, such as `/items/{item_id}`: `url.template`, and part of the span's name.
/// Use a template of few values, never a path with ids in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlTemplate(pub Cow<'static, str>);

/// Keeps one request out of telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceOptOut {
    /// No CLIENT span and no metrics; the caller's context still goes out.
    Span,
    /// No propagation headers, for destinations that must not see trace ids; the CLIENT span stays.
    Headers,
    /// Neither: the request passes as if the middleware were not there.
    All,
}

impl DestinationServer {
    /// The server of this name.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self(name.into())
    }
}

impl UrlTemplate {
    /// This template.
    pub fn new(template: impl Into<Cow<'static, str>>) -> Self {
        Self(template.into())
    }
}
