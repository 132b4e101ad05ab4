//! A resources server: one tool, `get_weather`, and a verifier that rewards its use.
//!
//! `cargo run --example resources_server -- --port 8001`
//!
//! What makes it part of a fleet's telemetry stands in `main` and in the last lines of `router`.

mod common;

use axum::Json;
use axum::body::Bytes;
use axum::routing::{Router, any, post};
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::rollout::with_rollout_prefix;
use nemo_gym_telemetry::{ServerIdentity, ServerType, Telemetry, serve};
use serde_json::{Value, json};

use crate::common::args::Args;
use crate::common::http::{ApiError, Invalid, Object, missing, not_found, object, valid, with_common_routes};
use crate::common::responses_api::{full_request, full_response, is_type, list, response_faults};
use crate::common::session::with_session;

const NAME: &str = "example_single_tool_call";

#[tokio::main]
async fn main() -> std::io::Result<()> {
    run(&Args::from_process("usage: resources_server [--port PORT]", &["port"], &[])).await
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: &Args) -> std::io::Result<()> {
    // Off unless the environment turns it on; the environment also knows the server's name better than we do.
    let identity = ServerIdentity::new(NAME, ServerType::ResourcesServers);
    let telemetry = Telemetry::builder().with_default_identity(identity).init();
    let listener = common::bind(args.get_or("port", 0)).await?;
    let app = router(&telemetry);
    let address = listener.local_addr()?;
    // SIGTERM and SIGINT are heard from here on: a process that says it is ready can be told to end.
    let server = serve(listener, app, &telemetry).into_future();
    common::announce(address);
    server.await
}

fn router(telemetry: &Telemetry) -> Router {
    let routes = Router::new()
        .route("/seed_session", post(seed_session))
        .route("/get_weather", post(get_weather))
        .route("/verify", post(verify));
    // Upstream's resources servers know the rollout prefix in its plain form only.
    let token_capture = Router::new().route("/ng-rollout/{rollout_id}/training-token-capture/{*path}", any(not_found));
    let routes = with_rollout_prefix(with_common_routes(routes)).merge(token_capture);
    let name = telemetry.identity().name().unwrap_or(NAME);
    with_session(routes, "SimpleWeatherResourcesServer", name).layer(GymTelemetryLayer::new(telemetry))
}

/// Begins a rollout. This environment has no state to set up.
async fn seed_session(body: Bytes) -> Result<Json<Object>, ApiError> {
    object(&body, &["ResourcesSeedSessionRequest", "BaseSeedSessionRequest"])?;
    Ok(Json(Object::new()))
}

/// The tool.
async fn get_weather(body: Bytes) -> Result<Json<Value>, ApiError> {
    let body = Value::Object(object(&body, &[])?);
    valid(missing(&body, &[], &["city"]))?;
    match &body["city"] {
        Value::String(city) => Ok(Json(json!({"city": city, "weather_description": format!("cold in {city}")}))),
        other => Err(Invalid::new("string_type", "Input should be a valid string", &["city"], other.clone()).into()),
    }
}

/// Scores a rollout: 1 when the tool was called.
async fn verify(body: Bytes) -> Result<Json<Value>, ApiError> {
    let mut body = Value::Object(object(&body, &[])?);
    let mut faults = missing(&body, &[], &["responses_create_params", "response"]);
    if faults.is_empty() {
        faults.extend(missing(&body["responses_create_params"], &["responses_create_params"], &["input"]));
        faults.extend(response_faults(&body["response"], &["response"]));
    }
    valid(faults)?;
    let is_call = |item: &Value| is_type(item, "function_call") && item["name"] == "get_weather";
    let reward = if list(&body["response"], "output").any(is_call) { 1.0 } else { 0.0 };
    Ok(Json(json!({
        "responses_create_params": full_request(body["responses_create_params"].take()),
        "response": full_response(body["response"].take()),
        "reward": reward,
        "mask_sample": false,
        "failure_kind": null,
        "failure_reason": null,
    })))
}
