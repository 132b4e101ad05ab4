//! Serves an app until the process is told to end, and ends telemetry with it.
//!
//! `axum::serve` with a graceful shutdown waits for open streams without a bound, and leaves it to each
//! server to flush afterwards, to end streams that take too long, and to listen for the impatient second
//! signal. [`serve`] does all of it, in the order in which nothing is lost:
//!
//! 1. SIGTERM or SIGINT: the listener closes; idle connections close; requests under way go on.
//! 2. After the grace, what still runs is dropped, so that its spans end with `error.type` `cancelled`.
//! 3. Telemetry is shut down within its timeout; where several servers share it, by the last of them.
//! 4. [`serve`] returns; `main` returns, with exit status 0.
//!
//! A second signal at any moment ends the process at once with status 130 (SIGINT) or 143 (SIGTERM), even
//! when handlers block every thread of the runtime.
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use nemo_gym_telemetry::{Telemetry, serve};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let telemetry = Telemetry::builder().init();
//!     let app = Router::new().route("/health", get(|| async { "ok" }));
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//!     serve(listener, app, &telemetry).await
//! }
//! ```

mod connection;
mod signals;

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use tokio::net::TcpListener;
use tower_service::Service;

use super::handle::Telemetry;
use super::shutdown::DEFAULT_SHUTDOWN_TIMEOUT;
use crate::diagnostics;
use connection::{Connections, Phase};
use signals::Signals;

/// How long requests under way may go on after the signal unless [`Serve::with_grace`] says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// A dropped task's destructors run within a poll; only a task that blocks its thread takes longer.
const DROP_TIME: Duration = Duration::from_secs(1);

/// Completes when serving ends.
type Trigger = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves `app` on `listener` until SIGTERM or SIGINT, then shuts `telemetry` down. See the
/// [module](self) for the order of things.
///
/// `app` is a [`Router`](axum::Router) or any service around one that takes `Request<axum::body::Body>`,
/// such as a router inside `GymTelemetryLayer`. HTTP/1.1 and HTTP/2 (prior knowledge) are served, with
/// upgrades; `TCP_NODELAY` is set; handlers find the peer in
/// [`ConnectInfo<SocketAddr>`](axum::extract::ConnectInfo).
///
/// An upgraded connection (WebSocket) belongs to the task that the handler started for it: it counts as
/// ended with its upgrade, and is not waited for.
pub fn serve<S>(listener: TcpListener, app: S, telemetry: &Telemetry) -> Serve<S> {
    Serve {
        listener,
        app,
        telemetry: telemetry.clone(),
        grace: DEFAULT_GRACE,
        shutdown_timeout: DEFAULT_SHUTDOWN_TIMEOUT,
        trigger: None,
    }
}

/// A server about to run: await it. Made by [`serve`].
///
/// # Errors
///
/// None of today's: what goes wrong with one connection ends that connection.
#[must_use = "a server does nothing unless it is awaited"]
pub struct Serve<S> {
    listener: TcpListener,
    app: S,
    telemetry: Telemetry,
    grace: Duration,
    shutdown_timeout: Duration,
    trigger: Option<Trigger>,
}

impl<S> Serve<S> {
    /// How long requests under way, streams above all, may go on after the signal. Default: 5 s.
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long telemetry may take to send what is pending. Default: 5 s.
    pub fn with_shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// Ends serving when `trigger` completes, instead of at a signal. Signals are then left alone.
    pub fn with_graceful_shutdown(mut self, trigger: impl Future<Output = ()> + Send + 'static) -> Self {
        self.trigger = Some(Box::pin(trigger));
        self
    }
}

impl<S> fmt::Debug for Serve<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("listener", &self.listener)
            .field("grace", &self.grace)
            .field("shutdown_timeout", &self.shutdown_timeout)
            .finish_non_exhaustive()
    }
}

impl<S, B> IntoFuture for Serve<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    /// Reports the start-up ([`server_ready`](Telemetry::server_ready)), unless that has been done.
    ///
    /// Signals are heard from this call on, so that a program which says it is ready after it can be told to
    /// end at once.
    fn into_future(mut self) -> Self::IntoFuture {
        self.telemetry.server_ready();
        let trigger = self.trigger.take().unwrap_or_else(|| match Signals::listen() {
            Ok(signals) => Box::pin(signals.first()),
            Err(error) => {
                diagnostics::warn(&format!("signals cannot be handled ({error}); telemetry is lost at the end"));
                Box::pin(std::future::pending())
            }
        });
        let running = Running::new(&self.telemetry);
        Box::pin(run(self, trigger, running))
    }
}

async fn run<S, B>(server: Serve<S>, trigger: Trigger, running: Running) -> io::Result<()>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Serve { listener, app, telemetry, grace, shutdown_timeout, trigger: _ } = server;
    let mut connections = Connections::new();
    connections.accept_until(trigger, listener, app).await;
    connections.enter(Phase::Draining);
    if tokio::time::timeout(grace, connections.ended()).await.is_err() {
        connections.enter(Phase::Cut);
        let _ = tokio::time::timeout(DROP_TIME, connections.ended()).await;
    }
    if running.end() {
        telemetry.shutdown_with_timeout(shutdown_timeout).await;
    }
    Ok(())
}

/// One of the servers that share a telemetry handle.
struct Running {
    telemetry: Telemetry,
    ended: bool,
}

impl Running {
    fn new(telemetry: &Telemetry) -> Self {
        telemetry.servers().fetch_add(1, Relaxed);
        Self { telemetry: telemetry.clone(), ended: false }
    }

    /// Whether this was the last one.
    fn end(mut self) -> bool {
        self.ended = true;
        self.telemetry.servers().fetch_sub(1, AcqRel) == 1
    }
}

impl Drop for Running {
    /// A server that was dropped in the middle is none that telemetry waits for.
    fn drop(&mut self) {
        if !self.ended {
            self.telemetry.servers().fetch_sub(1, AcqRel);
        }
    }
}
