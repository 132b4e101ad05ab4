//! `error.type` of outgoing calls: a closed set, never an error's own text, which may hold the URL.

use std::error::Error as StdError;
use std::io;

/// Why a call failed where there is no error status to tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A time limit of the client ran out.
    Timeout,
    /// No connection came about.
    Connect,
    /// The connection went away before the answer was complete.
    Disconnected,
    /// The request could not be built or sent.
    Request,
    /// A redirect was refused, or there were too many.
    Redirect,
    /// The body of the request or of the response broke.
    Body,
    /// The caller dropped the call or the rest of the response.
    Cancelled,
    /// Something inside panicked.
    Panicked,
    /// Anything else, such as another middleware's error.
    Other,
}

impl Failure {
    /// The value of `error.type`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Connect => "connect",
            Failure::Disconnected => "disconnected",
            Failure::Request => "request",
            Failure::Redirect => "redirect",
            Failure::Body => "body",
            Failure::Cancelled => "cancelled",
            Failure::Panicked => "panic",
            Failure::Other => "_OTHER",
        }
    }

    /// The kind of a failed call's error. A retry middleware wraps the error of its last attempt: the
    /// first `reqwest` error in the chain decides.
    pub(super) fn of(error: &reqwest_middleware::Error) -> Self {
        match error {
            reqwest_middleware::Error::Reqwest(error) => Self::of_reqwest(error),
            reqwest_middleware::Error::Middleware(error) => error
                .chain()
                .find_map(|cause| match cause.downcast_ref::<reqwest_middleware::Error>() {
                    Some(reqwest_middleware::Error::Reqwest(error)) => Some(error),
                    _ => cause.downcast_ref::<reqwest::Error>(),
                })
                .map_or(Failure::Other, Self::of_reqwest),
        }
    }

    /// The kind of a failure while a response's body was read.
    pub(super) fn of_body(error: &reqwest::Error) -> Self {
        match Self::of_reqwest(error) {
            kind @ (Failure::Timeout | Failure::Disconnected) => kind,
            _ => Failure::Body,
        }
    }

    fn of_reqwest(error: &reqwest::Error) -> Self {
        if error.is_timeout() {
            Failure::Timeout
        } else if error.is_connect() {
            Failure::Connect
        } else if error.is_redirect() {
            Failure::Redirect
        } else if was_disconnected(error) {
            Failure::Disconnected
        } else if error.is_body() || error.is_decode() {
            Failure::Body
        } else if error.is_request() || error.is_builder() || error.is_upgrade() {
            Failure::Request
        } else {
            Failure::Other
        }
    }
}

fn was_disconnected(error: &reqwest::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<hyper::Error>()
            && (error.is_incomplete_message() || error.is_closed() || error.is_canceled())
        {
            return true;
        }
        if let Some(error) = cause.downcast_ref::<io::Error>()
            && matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
        {
            return true;
        }
        source = cause.source();
    }
    false
}
