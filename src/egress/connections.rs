//! A layer for `reqwest`'s connector: counts and times new connections.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use opentelemetry::StringValue;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::telemetry::Telemetry;

/// Counts and times the connections that a client opens: `gym.http.connection_pool.connect_total` and
/// `gym.http.connection_pool.connect_duration_ms`. A request on a pooled connection opens none.
///
/// Goes into [`reqwest::ClientBuilder::connector_layer`]. The connector does not show where it connects to; the server's
/// name is that of the [`DestinationServer`](super::DestinationServer) whose request needed the connection, else the
/// layer's own, else `external`.
///
/// ```
/// use nemo_gym_telemetry::egress::ConnectionMetricsLayer;
///
/// let client = reqwest::Client::builder().connector_layer(ConnectionMetricsLayer::new()).build();
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectionMetricsLayer {
    telemetry: Option<Telemetry>,
    server: Option<StringValue>,
}

impl ConnectionMetricsLayer {
    /// A layer that records through the process-wide handle; it may be made before that is initialised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records through this handle.
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: &Telemetry) -> Self {
        self.telemetry = Some(telemetry.clone());
        self
    }

    /// The name of the one Gym server that this client talks to.
    #[must_use]
    pub fn with_destination_server(mut self, name: impl Into<String>) -> Self {
        self.server = Some(std::sync::Arc::<str>::from(name.into()).into());
        self
    }

    fn telemetry(&self) -> &Telemetry {
        self.telemetry.as_ref().unwrap_or_else(|| Telemetry::process())
    }
}

impl<S> Layer<S> for ConnectionMetricsLayer {
    type Service = ConnectionMetrics<S>;

    fn layer(&self, inner: S) -> ConnectionMetrics<S> {
        ConnectionMetrics { inner, layer: self.clone() }
    }
}

/// The connector under a [`ConnectionMetricsLayer`].
#[derive(Clone, Debug)]
pub struct ConnectionMetrics<S> {
    inner: S,
    layer: ConnectionMetricsLayer,
}

impl<S, R> Service<R> for ConnectionMetrics<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Connecting<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, destination: R) -> Self::Future {
        let connection = Connection::begin(&self.layer);
        Connecting { inner: self.inner.call(destination), connection }
    }
}

pin_project! {
    /// The future of [`ConnectionMetrics`].
    pub struct Connecting<F> {
        #[pin]
        inner: F,
        connection: Option<Connection>,
    }
}

impl<F> std::fmt::Debug for Connecting<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}

impl<F, T, E> Future for Connecting<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        if let Some(mut connection) = this.connection.take() {
            connection.outcome = if result.is_ok() { "ok" } else { "failed" };
        }
        Poll::Ready(result)
    }
}

/// A connection that is being opened; recorded when it is dropped.
struct Connection {
    telemetry: Telemetry,
    server: StringValue,
    started: Instant,
    /// `nemo.gym.http.connection_pool.connect_outcome`
    outcome: &'static str,
}

impl Connection {
    fn begin(layer: &ConnectionMetricsLayer) -> Option<Self> {
        let telemetry = layer.telemetry();
        let switches = telemetry.switches();
        let suppressed = opentelemetry::Context::is_current_telemetry_suppressed();
        if suppressed || !switches.metrics_of(crate::span_group::SpanGroup::HttpClient) {
            return None;
        }
        let named = super::attempt::LogicalCall::current_server().map(StringValue::from);
        let server = named.or_else(|| layer.server.clone()).unwrap_or_else(|| "external".into());
        telemetry.instruments().http_client().connect(&server);
        Some(Self { telemetry: telemetry.clone(), server, started: Instant::now(), outcome: "abandoned" })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let instruments = self.telemetry.instruments();
        instruments.http_client().connected(&self.server, self.outcome, self.started.elapsed());
    }
}
