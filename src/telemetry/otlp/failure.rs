//! Why one attempt to export failed, in words that hold no secret.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkError;

/// One failed attempt.
#[derive(Debug)]
pub(super) struct Failure {
    /// What happened. Never a server's own words, a URL or a header: all may hold secrets.
    pub reason: Cow<'static, str>,
    pub outlook: Outlook,
    pub cause: Cause,
    /// What to change, where the failure looks like the wrong protocol on the wrong port.
    pub mix_up: Option<MixUp>,
}

/// Where the failure happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// There was no answer.
    Network,
    /// The time was up.
    Time,
    /// The collector answered, or nothing was sent.
    Other,
}

/// What the failure means for the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// The same request may succeed later.
    Transient,
    /// The collector asks for a pause.
    Throttled(Duration),
    /// The same request will never succeed.
    Permanent,
}

/// A client and a server that speak different protocols.
#[cfg_attr(not(all(feature = "otlp-grpc", feature = "otlp-http")), allow(dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MixUp {
    /// gRPC was asked, the peer speaks something else, most likely HTTP/1.
    NotGrpc,
    /// gRPC was asked, the peer hangs up without a word, as some HTTP/1 servers do, and proxies whose
    /// collector is down.
    PerhapsNotGrpc,
    /// HTTP/1 was asked in clear, the peer speaks HTTP/2 or TLS.
    NotHttp1,
    /// HTTP/1 was asked, the peer hangs up without a word, as some gRPC servers do.
    PerhapsNotHttp1,
    /// A connection in clear, the peer speaks TLS.
    NotClear,
    /// TLS was asked, the peer speaks something else.
    NotTls,
}

impl MixUp {
    fn fact(self) -> &'static str {
        match self {
            MixUp::NotGrpc => "it does not speak gRPC but, it seems, HTTP/1",
            MixUp::NotHttp1 => "it does not speak HTTP/1",
            MixUp::PerhapsNotGrpc | MixUp::PerhapsNotHttp1 => "it closes the connection without an answer",
            MixUp::NotClear => "it expects TLS",
            MixUp::NotTls => "it does not speak TLS",
        }
    }

    /// What to do.
    pub(super) fn hint(self) -> &'static str {
        match self {
            MixUp::NotGrpc => {
                "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or name the collector's gRPC port (usually 4317)"
            }
            MixUp::PerhapsNotGrpc => {
                "if it is an HTTP port (usually 4318), set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf; if it expects \
                 TLS, write https:// in the endpoint"
            }
            MixUp::NotHttp1 | MixUp::PerhapsNotHttp1 => {
                "if it is a gRPC port (usually 4317), set OTEL_EXPORTER_OTLP_PROTOCOL=grpc; if it expects TLS, write \
                 https:// in the endpoint"
            }
            MixUp::NotClear => "write https:// in the endpoint",
            MixUp::NotTls => "write http:// in the endpoint if a connection in clear is meant",
        }
    }

    /// A collector that is down can look the same.
    pub(super) fn is_suspicion(self) -> bool {
        matches!(self, MixUp::PerhapsNotGrpc | MixUp::PerhapsNotHttp1)
    }
}

impl Failure {
    fn new(reason: impl Into<Cow<'static, str>>, outlook: Outlook, cause: Cause) -> Self {
        Self { reason: reason.into(), outlook, cause, mix_up: None }
    }

    /// An answer that invites another attempt.
    pub(super) fn transient(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(reason, Outlook::Transient, Cause::Other)
    }

    pub(super) fn permanent(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(reason, Outlook::Permanent, Cause::Other)
    }

    pub(super) fn throttled(reason: impl Into<Cow<'static, str>>, pause: Duration) -> Self {
        Self::new(reason, Outlook::Throttled(pause), Cause::Other)
    }

    /// No answer, for a reason that may pass.
    pub(super) fn network(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(reason, Outlook::Transient, Cause::Network)
    }

    pub(super) fn time_is_up(reason: &'static str) -> Self {
        Self::new(reason, Outlook::Permanent, Cause::Time)
    }

    pub(super) fn mixed_up(mix_up: MixUp) -> Self {
        let outlook = if mix_up.is_suspicion() { Outlook::Transient } else { Outlook::Permanent };
        Self { mix_up: Some(mix_up), ..Self::new(mix_up.fact(), outlook, Cause::Network) }
    }

    /// The same as the SDK's error, from whose text the ledger takes its `error.type`.
    pub(super) fn into_sdk_error(self, timeout: Duration) -> OTelSdkError {
        match self.cause {
            Cause::Network => OTelSdkError::InternalFailure(format!("network error: {}", self.reason)),
            Cause::Time => OTelSdkError::Timeout(timeout),
            Cause::Other => OTelSdkError::InternalFailure(self.reason.into_owned()),
        }
    }

    /// A failure of the connection. Only the innermost cause is named: outer errors may hold the URL.
    pub(super) fn of_connection(error: &(dyn Error + 'static)) -> Self {
        if chain(error).any(|cause| cause.to_string().contains("InvalidContentType")) {
            return Self::mixed_up(MixUp::NotTls);
        }
        Self::network(innermost(error))
    }
}

/// The error and its sources, outermost first. Bounded, as nothing forbids a chain without end.
pub(super) fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    // An `io::Error` hides the error that it wraps from `source()`.
    std::iter::successors(Some(error), |&error| match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner as &(dyn Error + 'static)),
        None => error.source(),
    })
    .take(16)
}

/// What the innermost cause says: an operating system's error, a certificate's fault, a protocol error.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let causes: Vec<_> = chain(error).collect();
    let known = causes.iter().rev().find_map(|cause| kind_text(cause.downcast_ref::<io::Error>()?.kind()));
    match (known, causes.last()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(cause)) => cause.to_string(),
        (None, None) => "connection failed".to_owned(),
    }
}

fn kind_text(kind: io::ErrorKind) -> Option<&'static str> {
    Some(match kind {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::ConnectionAborted => "connection aborted",
        io::ErrorKind::BrokenPipe => "connection closed by the collector",
        io::ErrorKind::TimedOut => "timed out",
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        _ => return None,
    })
}
