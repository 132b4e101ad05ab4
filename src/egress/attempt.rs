//! Attempts of one logical call, when a retry middleware sends the request more than once.
//!
//! A middleware inside another one of ours makes no span: it tells the outer one, whose request it carries, what
//! became of each attempt. While the outer call is polled it stands in a thread-local, as a task-local would; a
//! request belongs to it when it still has the `traceparent` that the outer call gave it, or where none was given,
//! when its extensions say so.

use std::cell::Cell;
use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Extensions;
use opentelemetry::SpanId;
use reqwest::Request;

use super::error_type::Failure;

/// Why an attempt was followed by another: `nemo.gym.http.retry_reason`, upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryReason {
    /// The server closed the connection without an answer.
    ServerDisconnected,
    /// The operating system said no: refused, reset, unreachable.
    ClientOsError,
    Timeout,
    /// Anything else, such as an answer of 503.
    Other,
}

impl RetryReason {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ServerDisconnected => "server_disconnected",
            Self::ClientOsError => "client_os_error",
            Self::Timeout => "timeout",
            Self::Other => "other",
        }
    }

    fn of(error: &reqwest_middleware::Error) -> Self {
        match Failure::of(error) {
            Failure::Timeout => Self::Timeout,
            Failure::Connect => Self::ClientOsError,
            Failure::Disconnected if is_os_error(error) => Self::ClientOsError,
            Failure::Disconnected => Self::ServerDisconnected,
            _ => Self::Other,
        }
    }
}

fn is_os_error(error: &reqwest_middleware::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.downcast_ref::<io::Error>().is_some_and(|error| error.raw_os_error().is_some()) {
            return true;
        }
        source = cause.source();
    }
    false
}

/// What is known of a call's attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts {
    /// How often the request was sent again.
    pub(super) resent: u32,
    /// What became of the last attempt that has ended; `None` while there was none.
    last: Option<RetryReason>,
}

impl Attempts {
    /// Another attempt starts; `Some` when it is a repetition.
    pub(super) fn start(&mut self) -> Option<RetryReason> {
        let reason = self.last.take()?;
        self.resent = self.resent.saturating_add(1);
        Some(reason)
    }

    /// Whether an attempt that ended like this may be followed by another.
    pub(super) fn may_repeat(result: &reqwest_middleware::Result<reqwest::Response>) -> bool {
        result.as_ref().map_or(true, |response| response.status().as_u16() >= 400)
    }

    /// An attempt has ended, with what would be the reason for another.
    pub(super) fn end(&mut self, result: &reqwest_middleware::Result<reqwest::Response>) {
        self.last = Some(match result {
            Ok(_) => RetryReason::Other,
            Err(error) => RetryReason::of(error),
        });
    }

    /// An attempt was dropped by what runs it: between us and the retry middleware, that is a time limit.
    pub(super) fn dropped(&mut self) {
        self.last = Some(RetryReason::Timeout);
    }
}

/// The call whose future is being polled on this thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogicalCall {
    pub(super) mark: Mark,
    pub(super) attempts: Attempts,
    /// The Gym server that it goes to, as far as somebody said so.
    server: Option<&'static str>,
}

/// How a request shows that it belongs to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// By the parent id of its `traceparent`, which no other request has.
    ParentId(SpanId),
    /// By an [`Inside`] in its extensions.
    Extensions,
}

/// What an attempt leaves in the extensions for the next one, where no outer call keeps count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Earlier(pub(super) Attempts);

/// In the extensions of a request without a `traceparent` of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inside;

thread_local! {
    static CURRENT: Cell<Option<LogicalCall>> = const { Cell::new(None) };
}

impl LogicalCall {
    pub(super) fn new(mark: Mark, server: Option<&'static str>) -> Self {
        Self { mark, attempts: Attempts::default(), server }
    }

    /// The Gym server that the current call goes to.
    pub(super) fn current_server() -> Option<&'static str> {
        CURRENT.get().and_then(|call| call.server)
    }

    /// The current call, when this request is one of its attempts.
    pub(super) fn of(request: &Request, extensions: &Extensions) -> Option<Self> {
        let call = CURRENT.get()?;
        match call.mark {
            Mark::ParentId(id) => (parent_id(request) == Some(id)).then_some(call),
            Mark::Extensions => extensions.get::<Inside>().map(|Inside| call),
        }
    }

    /// Changes the current call's attempts, when it is the one of this mark.
    pub(super) fn update(mark: Mark, change: impl FnOnce(&mut Attempts)) {
        if let Some(mut call) = CURRENT.get().filter(|call| call.mark == mark) {
            change(&mut call.attempts);
            CURRENT.set(Some(call));
        }
    }

    /// Polls a future as a part of this call.
    pub(super) fn poll<F: Future + Unpin>(&mut self, future: &mut F, cx: &mut Context<'_>) -> Poll<F::Output> {
        let outer = CURRENT.replace(Some(*self));
        let entered = Entered { call: self, outer };
        let polled = Pin::new(future).poll(cx);
        drop(entered);
        polled
    }
}

/// Takes the call back as it has become, even from a poll that unwinds.
struct Entered<'a> {
    call: &'a mut LogicalCall,
    outer: Option<LogicalCall>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(call) = CURRENT.replace(self.outer) {
            *self.call = call;
        }
    }
}

fn parent_id(request: &Request) -> Option<SpanId> {
    let traceparent = request.headers().get("traceparent")?.to_str().ok()?;
    SpanId::from_hex(traceparent.get(36..52)?).ok()
}
