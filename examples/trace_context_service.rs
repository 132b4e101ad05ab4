//! The service that the W3C Trace Context validation suite talks to.
//!
//! `cargo run --example trace_context_service -- --port 5000`
//!
//! `POST /test` takes a JSON list of `{"url": …, "arguments": …}` and POSTs each `arguments` to its `url`, one after the
//! other; the suite looks at the trace headers of those calls. The answer is the list of their statuses, `null` for a call
//! that failed. Telemetry is on here unless the environment turns it off; no collector is needed.

mod common;

use std::io;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{Router, post};
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{ServerIdentity, ServerType, Telemetry, TelemetryConfig, serve};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde::Deserialize;
use serde_json::Value;

use crate::common::args::Args;

/// Longer than any answer of the suite takes.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A call to make.
#[derive(Debug, Deserialize)]
struct Call {
    url: String,
    #[serde(default)]
    arguments: Value,
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let args = Args::from_process("usage: trace_context_service [--port PORT]", &["port"], &[]);
    let mut config = TelemetryConfig::default();
    config.enabled = true;
    let identity = ServerIdentity::new("trace_context_service", ServerType::Other("example".to_owned()));
    let telemetry = Telemetry::builder().with_config(config).with_default_identity(identity).init();

    // The suite listens on this machine: no proxy is to get in between.
    let client = reqwest::Client::builder().no_proxy().timeout(CALL_TIMEOUT).build().map_err(io::Error::other)?;
    let client = ClientBuilder::new(client).with(TracePropagation).build();
    let app = Router::new().route("/test", post(test)).with_state(client).layer(GymTelemetryLayer::new(&telemetry));

    let listener = common::bind(args.get_or("port", 0)).await?;
    let address = listener.local_addr()?;
    let server = serve(listener, app, &telemetry).into_future();
    common::announce(address);
    server.await
}

/// Makes the calls that the request lists.
async fn test(State(client): State<ClientWithMiddleware>, body: Bytes) -> Result<Json<Vec<Option<u16>>>, StatusCode> {
    let calls: Vec<Call> = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let mut statuses = Vec::with_capacity(calls.len());
    for Call { url, arguments } in calls {
        statuses.push(match client.post(url).json(&arguments).send().await {
            Ok(mut response) => {
                // The span ends with the response: read it, whatever it says.
                while let Ok(Some(_)) = response.chunk().await {}
                Some(response.status().as_u16())
            }
            Err(_) => None,
        });
    }
    Ok(Json(statuses))
}
