//! The accept loop, and every task that serves a connection or a stream of one.

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tower_service::Service;

use crate::diagnostics::{self, RateLimit};

/// How far serving has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Serving,
    /// No new requests; those under way go on.
    Draining,
    /// Everything is dropped.
    Cut,
}

/// All tasks of a server.
#[derive(Debug)]
pub(super) struct Connections {
    phase: watch::Sender<Phase>,
    /// Held by every task; dropped here at the end, so that `all_dropped` sees the last one go.
    alive: Option<mpsc::Sender<Infallible>>,
    all_dropped: mpsc::Receiver<Infallible>,
}

/// Starts tasks that end when everything is cut. HTTP/2 runs each stream in a task of its own.
#[derive(Clone, Debug)]
struct Spawner {
    phase: watch::Receiver<Phase>,
    alive: mpsc::Sender<Infallible>,
}

impl Connections {
    pub(super) fn new() -> Self {
        let (alive, all_dropped) = mpsc::channel(1);
        Self { phase: watch::Sender::new(Phase::Serving), alive: Some(alive), all_dropped }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Waits until the last task has ended.
    pub(super) async fn ended(&mut self) {
        drop(self.alive.take());
        let _: Option<Infallible> = self.all_dropped.recv().await;
    }

    /// Serves whoever connects until `stop` completes; then the listener is closed.
    pub(super) async fn accept_until<S, B>(&self, stop: impl Future<Output = ()>, listener: TcpListener, app: S)
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let Some(alive) = self.alive.clone() else { return };
        let spawner = Spawner { phase: self.phase.subscribe(), alive };
        let mut builder = Builder::new(spawner.clone());
        // WebSockets over HTTP/2.
        builder.http2().enable_connect_protocol();
        let mut stop = pin!(stop);
        let warned = RateLimit::new(Duration::from_secs(10));
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // Small responses, and the chunks of a stream, must not wait for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    let phase = spawner.phase.clone();
                    spawner.spawn(connection(builder.clone(), stream, peer, app.clone(), phase));
                }
                // The peer was gone before it was accepted.
                Err(error) if is_of_one_connection(&error) => {}
                // File descriptors or memory have run out: others must end first.
                Err(error) => {
                    if warned.allow() {
                        diagnostics::warn(&format!("connections cannot be accepted: {error}"));
                    }
                    tokio::select! {
                        () = &mut stop => return,
                        () = tokio::time::sleep(Duration::from_millis(100)) => {}
                    }
                }
            }
        }
    }
}

impl Spawner {
    fn spawn(&self, future: impl Future + Send + 'static) {
        let Spawner { mut phase, alive } = self.clone();
        tokio::spawn(async move {
            // Dropped last: when it is gone, so is all that the future held.
            let _alive = alive;
            let mut future = pin!(future);
            tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase == Phase::Cut) => {}
                _ = &mut future => {}
            }
        });
    }
}

impl<F: Future + Send + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, future: F) {
        self.spawn(future);
    }
}

async fn connection<S, B>(
    builder: Builder<Spawner>,
    stream: TcpStream,
    peer: SocketAddr,
    app: S,
    mut phase: watch::Receiver<Phase>,
) where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let mut app = app.clone();
        request.extensions_mut().insert(ConnectInfo(peer));
        async move {
            poll_fn(|cx| app.poll_ready(cx)).await?;
            app.call(request.map(Body::new)).await
        }
    });
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    // What goes wrong on a connection is its peer's doing and ends it.
    tokio::select! {
        _ = &mut connection => return,
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
