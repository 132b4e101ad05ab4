//! The state of one call: it owns the CLIENT span and ends it once, when it is dropped, wherever that is.

use std::time::{Instant, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, Status};
use opentelemetry_sdk::trace::Span;

use super::error_type::Failure;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nobody said otherwise: the caller dropped the call or the rest of the response.
    Dropped,
    /// The response was read, as far as it is watched.
    Complete,
    /// The call or the response's body failed.
    Failed(Failure),
}

pub(super) struct Call {
    pub(super) span: Span,
    pub(super) started: Instant,
    pub(super) started_at: SystemTime,
    /// 0 until there is a response.
    pub(super) status: u16,
    pub(super) end: End,
}

impl Call {
    /// Takes the response's head into account.
    pub(super) fn head(&mut self, response: &reqwest::Response) {
        self.status = response.status().as_u16();
        let waited = self.started.elapsed().as_secs_f64() * 1e3;
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(self.status)));
        self.span.set_attribute(KeyValue::new("network.protocol.version", protocol_version(response.version())));
        self.span.set_attribute(KeyValue::new("nemo.gym.http.time_to_headers_ms", waited));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let failure = match self.end {
            // The status came first, and dropping an error response unread is what callers do.
            _ if self.status >= 400 => Some(self.status.to_string().into()),
            End::Complete => None,
            End::Dropped => Some(Failure::Cancelled.as_str().into()),
            End::Failed(failure) => Some(std::borrow::Cow::Borrowed(failure.as_str())),
        };
        if let Some(failure) = failure {
            self.span.set_attribute(KeyValue::new("error.type", failure));
            self.span.set_status(Status::error(""));
        }
        self.span.end_with_timestamp(self.started_at + self.started.elapsed());
    }
}

fn protocol_version(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_09 => "0.9",
        http::Version::HTTP_10 => "1.0",
        http::Version::HTTP_2 => "2",
        http::Version::HTTP_3 => "3",
        _ => "1.1",
    }
}
