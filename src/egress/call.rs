//! The state of one call: it owns the CLIENT span and the measurements, and ends them once, when it is dropped,
//! wherever that is.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, Status};
use opentelemetry_sdk::trace::Span;

use super::attempt::LogicalCall;
use super::error_type::Failure;
use super::target::Target;
use crate::ingress::{Version, status_text};
use crate::telemetry::Telemetry;

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

/// The handle of a call: the process's own needs no counting.
pub(super) enum Handle {
    Process(&'static Telemetry),
    Owned(Telemetry),
}

impl Deref for Handle {
    type Target = Telemetry;

    fn deref(&self) -> &Telemetry {
        match self {
            Handle::Process(telemetry) => telemetry,
            Handle::Owned(telemetry) => telemetry,
        }
    }
}

pub(super) struct Call {
    pub(super) telemetry: Handle,
    /// `None` where only metrics are recorded.
    pub(super) span: Option<Span>,
    pub(super) target: Arc<Target>,
    /// Whether metrics are recorded.
    pub(super) metrics: bool,
    /// Whether it goes to a Gym server.
    pub(super) internal: bool,
    pub(super) logical: LogicalCall,
    /// How often the request had been sent before, by an earlier call of its retry middleware.
    pub(super) resent: u32,
    pub(super) started_at: SystemTime,
    pub(super) started: Instant,
    /// 0 until there is a response.
    pub(super) status: u16,
    pub(super) version: Option<Version>,
    pub(super) end: End,
}

impl Call {
    /// Takes the response's head into account.
    #[inline]
    pub(super) fn head(&mut self, response: &reqwest::Response) {
        let version = Version::of(response.version());
        self.status = response.status().as_u16();
        self.version = Some(version);
        if let Some(span) = &mut self.span {
            let waited = self.started.elapsed().as_secs_f64() * 1e3;
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(self.status)));
            span.set_attribute(KeyValue::new("network.protocol.version", version.as_str()));
            span.set_attribute(KeyValue::new("nemo.gym.http.time_to_headers_ms", waited));
        }
    }

    fn error_type(&self) -> Option<Cow<'static, str>> {
        match self.end {
            // The status came first, and to drop an error response unread is what callers do.
            _ if self.status >= 400 => Some(status_text(self.status)),
            End::Complete => None,
            End::Dropped if std::thread::panicking() => Some(Failure::Panicked.as_str().into()),
            End::Dropped => Some(Failure::Cancelled.as_str().into()),
            End::Failed(failure) => Some(failure.as_str().into()),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let elapsed = self.started.elapsed();
        let error = self.error_type();
        if let Some(span) = &mut self.span {
            let resent = self.resent.saturating_add(self.logical.attempts.resent);
            if resent > 0 {
                span.set_attribute(KeyValue::new("http.request.resend_count", i64::from(resent)));
            }
            if let Some(error) = &error {
                span.set_attribute(KeyValue::new("error.type", error.clone()));
                span.set_status(Status::error(""));
            }
            span.end_with_timestamp(self.started_at + elapsed);
        }
        if self.metrics {
            self.target.durations.record(self.status, self.version, error.as_ref(), elapsed.as_secs_f64());
            if self.end == End::Failed(Failure::Timeout) {
                self.telemetry.instruments().http_client().timeout(self.internal);
            }
        }
    }
}
