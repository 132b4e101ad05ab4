//! The `/ng-rollout/{rollout_id}/…` path prefix.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use http::Uri;
use tower_service::Service;

use super::RolloutId;

const PREFIX: &str = "/ng-rollout/";
const CAPTURE: &str = "training-token-capture";

/// Which of the prefix's two forms a path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefixForm {
    /// `/ng-rollout/{rollout_id}`
    Plain,
    /// `/ng-rollout/{rollout_id}/training-token-capture`
    TokenCapture,
}

impl PrefixForm {
    pub(crate) const fn template(self) -> &'static str {
        match self {
            PrefixForm::Plain => "/ng-rollout/{rollout_id}",
            PrefixForm::TokenCapture => "/ng-rollout/{rollout_id}/training-token-capture",
        }
    }
}

/// Splits a path into the rollout id, the prefix's form and the rest, which starts with `/`.
/// `None` when the path has no prefix, the id is malformed or nothing follows it.
#[inline]
pub(crate) fn split_prefix(path: &str) -> Option<(&str, PrefixForm, &str)> {
    let rest = path.strip_prefix(PREFIX)?;
    let (id, rest) = rest.split_at(rest.find('/')?);
    if !RolloutId::is_valid(id) {
        return None;
    }
    match rest[1..].strip_prefix(CAPTURE) {
        Some(inner) if inner.starts_with('/') => Some((id, PrefixForm::TokenCapture, inner)),
        _ => Some((id, PrefixForm::Plain, rest)),
    }
}

/// Left in a request's extensions where the prefix was stripped, for a layer further in.
#[derive(Clone, Debug)]
pub(crate) struct StrippedPrefix {
    pub(crate) id: RolloutId,
    pub(crate) form: PrefixForm,
    pub(crate) original: Uri,
}

/// A service that answers under the rollout prefix as well: it strips the prefix and calls the inner service.
/// Paths with a malformed id are passed on as they are, for the inner service to answer 404.
#[derive(Clone, Debug)]
pub struct RolloutPrefix<S> {
    inner: S,
}

impl<S> RolloutPrefix<S> {
    /// Wraps a service.
    pub fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, B> Service<http::Request<B>> for RolloutPrefix<S>
where
    S: Service<http::Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        if let Some((stripped, uri)) = strip(request.uri()) {
            *request.uri_mut() = uri;
            request.extensions_mut().insert(stripped);
        }
        self.inner.call(request)
    }
}

fn strip(uri: &Uri) -> Option<(StrippedPrefix, Uri)> {
    let (id, form, rest) = split_prefix(uri.path())?;
    let mut parts = uri.clone().into_parts();
    let path_and_query = match uri.query() {
        Some(query) => format!("{rest}?{query}").parse(),
        None => rest.parse(),
    };
    parts.path_and_query = Some(path_and_query.ok()?);
    let id = RolloutId::new(id).ok()?;
    Some((StrippedPrefix { id, form, original: uri.clone() }, Uri::from_parts(parts).ok()?))
}

/// Makes every route of a router answer under `/ng-rollout/{rollout_id}/…` and
/// `/ng-rollout/{rollout_id}/training-token-capture/…` too. Handlers see the path without the prefix, and no
/// extra path parameter.
///
/// Put the [`GymTelemetryLayer`](crate::ingress::GymTelemetryLayer) on either side; routes are named right in both.
pub fn with_rollout_prefix(router: Router) -> Router {
    let inner = router.layer(crate::ingress::ReportRouteLayer);
    Router::new().fallback_service(RolloutPrefix::<Router>::new(inner))
}

const _: fn() = || {
    fn is_service<S: Service<Request, Error = Infallible>>() {}
    is_service::<RolloutPrefix<Router>>();
};

/// Prefixes the path of `url` with the rollout's: what a caller that speaks for a rollout calls instead of
/// `url`. The query stays; a path that has a rollout prefix already is left as it is.
pub fn apply_rollout_prefix(url: &url::Url, id: &RolloutId) -> url::Url {
    let mut prefixed = url.clone();
    if split_prefix(url.path()).is_none() {
        prefixed.set_path(&format!("{PREFIX}{id}{}", url.path()));
    }
    prefixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_split() {
        assert_eq!(split_prefix("/ng-rollout/3-0/verify"), Some(("3-0", PrefixForm::Plain, "/verify")));
        assert_eq!(split_prefix("/ng-rollout/3-0/"), Some(("3-0", PrefixForm::Plain, "/")));
        let capture = split_prefix("/ng-rollout/abc.1/training-token-capture/v1/responses");
        assert_eq!(capture, Some(("abc.1", PrefixForm::TokenCapture, "/v1/responses")));
        let not_capture = split_prefix("/ng-rollout/a/training-token-captured/x");
        assert_eq!(not_capture, Some(("a", PrefixForm::Plain, "/training-token-captured/x")));
        let route_of_that_name = split_prefix("/ng-rollout/a/training-token-capture");
        assert_eq!(route_of_that_name, Some(("a", PrefixForm::Plain, "/training-token-capture")));
        for none in [
            "/verify",
            "/ng-rollout",
            "/ng-rollout/",
            "/ng-rollout/3-0",
            "/ng-rollout//verify",
            "/ng-rollout/-x/verify",
            "/ng-rollout/%33/verify",
            "/x/ng-rollout/3-0/verify",
        ] {
            assert_eq!(split_prefix(none), None, "{none}");
        }
    }

    #[test]
    fn the_prefix_is_applied_before_the_path() {
        let id = RolloutId::new("3-0").unwrap();
        let url = |text: &str| apply_rollout_prefix(&text.parse().unwrap(), &id).to_string();
        assert_eq!(url("http://h:1/v1/responses?a=b"), "http://h:1/ng-rollout/3-0/v1/responses?a=b");
        assert_eq!(url("http://h:1"), "http://h:1/ng-rollout/3-0/");
        assert_eq!(url("http://h:1/ng-rollout/other/verify"), "http://h:1/ng-rollout/other/verify");
    }

    #[test]
    fn stripping_keeps_the_query() {
        let (stripped, uri) = strip(&"/ng-rollout/3-0/verify?x=1".parse().unwrap()).unwrap();
        assert_eq!((uri.to_string().as_str(), stripped.id.as_str()), ("/verify?x=1", "3-0"));
        let (_, absolute) = strip(&"http://h:1/ng-rollout/3-0/verify".parse().unwrap()).unwrap();
        assert_eq!(absolute.to_string(), "http://h:1/verify");
    }
}
