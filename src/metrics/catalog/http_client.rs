//! Outgoing calls: `http.client.*` (HTTP semantic conventions) and `gym.http.*` (upstream's names).

use super::{HTTP_DURATION_S, Metric, counter, histogram};

/// Duration of a call: to the end of the response's body where a span records it, else to the response's head.
pub const HTTP_CLIENT_REQUEST_DURATION: Metric = histogram(
    "http.client.request.duration",
    "s",
    HTTP_DURATION_S,
    &[
        "http.request.method",
        "server.address",
        "server.port",
        "http.response.status_code",
        "error.type",
        "network.protocol.version",
    ],
    "Duration of HTTP client requests.",
);
/// Calls that ran into a time limit of their client.
pub const GYM_HTTP_TIMEOUT: Metric = counter(
    "gym.http.timeout_total",
    "1",
    &["nemo.gym.http.internal"],
    "Outgoing calls that ran into a time limit of their client.",
);
/// Requests that were sent again, by what became of the attempt before.
pub const GYM_HTTP_RETRY: Metric = counter(
    "gym.http.retry_total",
    "1",
    &["nemo.gym.http.retry_reason"],
    "Requests sent again, by reason (server_disconnected, client_os_error, timeout, other).",
);
/// Attempts to open a connection.
pub const GYM_HTTP_CONNECT: Metric = counter(
    "gym.http.connection_pool.connect_total",
    "{connection}",
    &[DESTINATION],
    "Attempts to open a connection, those that fail or are abandoned included.",
);
/// Not upstream's.
pub const GYM_HTTP_CONNECT_DURATION: Metric = histogram(
    "gym.http.connection_pool.connect_duration_ms",
    "ms",
    CONNECT_MS,
    &[DESTINATION, "nemo.gym.http.connection_pool.connect_outcome"],
    "Time to open a connection, by outcome (ok, failed, abandoned).",
);
const DESTINATION: &str = "nemo.gym.http.destination.server.name";
/// Those of upstream's wait for a pool slot.
const CONNECT_MS: &[f64] =
    &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30_000.0];

pub(super) const METRICS: &[Metric] =
    &[HTTP_CLIENT_REQUEST_DURATION, GYM_HTTP_TIMEOUT, GYM_HTTP_RETRY, GYM_HTTP_CONNECT, GYM_HTTP_CONNECT_DURATION];
