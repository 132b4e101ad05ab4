//! A model server: a scripted model that asks for the weather and then answers, or with `--upstream` an
//! OpenAI-compatible server behind it.
//!
//! `cargo run --example model_server -- --port 8002 [--upstream http://127.0.0.1:8000/v1]`
//!
//! What makes it part of a fleet's telemetry stands in `run`, in the last lines of `router`, and in `Backend`'s client.

#[path = "model/backend.rs"]
mod backend;
mod common;
#[path = "model/messages.rs"]
mod messages;
#[path = "model/sse.rs"]
mod sse;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{Router, post};
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::rollout::with_rollout_prefix;
use nemo_gym_telemetry::{ServerIdentity, ServerType, Telemetry, serve};
use serde_json::{Value, json};

use crate::common::args::Args;
use crate::common::http::{ApiError, Invalid, Object, missing, object, valid, with_common_routes};
use crate::common::responses_api::{full_response, is_request_field, list_mut, set_default};
use crate::common::session::with_session;
use backend::Backend;

const NAME: &str = "policy_model";
const USAGE: &str = "usage: model_server [--port PORT] [--chunk-ms MS] [--model NAME] [--upstream URL]
  --chunk-ms  pause between two text chunks of a streamed chat completion (30)
  --upstream  forward to this OpenAI-compatible server; OPENAI_API_KEY is sent as its bearer token
  --model     the model to ask there (fake)";

/// The fields a chat completion request may have.
const CHAT_FIELDS: [&str; 36] = [
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];

#[derive(Debug)]
struct Model {
    backend: Backend,
    chunk_pause: Duration,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    run(&Args::from_process(USAGE, &["port", "chunk-ms", "model", "upstream"], &[])).await
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: &Args) -> std::io::Result<()> {
    let identity = ServerIdentity::new(NAME, ServerType::ResponsesApiModels);
    let telemetry = Telemetry::builder().with_default_identity(identity).init();
    let model_name = args.get("model").unwrap_or("fake").to_owned();
    let backend = match args.get("upstream") {
        Some(_) => Backend::upstream(args.base_url("upstream"), model_name, std::env::var("OPENAI_API_KEY").ok())?,
        None => Backend::script(model_name),
    };
    let model = Model { backend, chunk_pause: Duration::from_millis(args.get_or("chunk-ms", 30)) };
    let listener = common::bind(args.get_or("port", 0)).await?;
    let app = router(model, &telemetry);
    let address = listener.local_addr()?;
    // SIGTERM and SIGINT are heard from here on: a process that says it is ready can be told to end.
    let server = serve(listener, app, &telemetry).into_future();
    common::announce(address);
    server.await
}

fn router(model: Model, telemetry: &Telemetry) -> Router {
    let routes = Router::new()
        .route("/v1/responses", post(responses))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/messages", post(anthropic_messages))
        .with_state(Arc::new(model));
    let name = telemetry.identity().name().unwrap_or(NAME);
    let routes = with_session(with_common_routes(routes), "SimpleModelServer", name);
    with_rollout_prefix(routes).layer(GymTelemetryLayer::new(telemetry))
}

async fn responses(State(model): State<Arc<Model>>, body: Bytes) -> Result<Response, ApiError> {
    let mut request = object(&body, &[])?;
    // Any value that Python takes for true streams.
    let stream = match request.remove("stream") {
        Some(Value::Bool(stream)) => stream,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        _ => false,
    };
    let mut faults = Vec::new();
    if stream {
        request.retain(|field, _| is_request_field(field) && field != "stream_options");
    } else {
        faults = unknown(&request, is_request_field);
    }
    let request = Value::Object(request);
    faults.extend(missing(&request, &[], &["input"]));
    valid(faults)?;
    match (model.backend.ask("responses", request).await, stream) {
        (Ok(reply), false) => Ok(Json(full_response(reply)).into_response()),
        (Ok(reply), true) => Ok(sse::responses(&full_response(reply))),
        (Err(error), false) => Err(ApiError::Failed(error)),
        // Upstream's head is sent before the model is asked, so a failure can only be told in the stream.
        (Err(error), true) => Ok(sse::failed_response(&error)),
    }
}

async fn chat_completions(State(model): State<Arc<Model>>, body: Bytes) -> Result<Response, ApiError> {
    let mut request = object(&body, &[])?;
    let mut faults = unknown(&request, |field| CHAT_FIELDS.contains(&field));
    let stream = match request.remove("stream") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(other) => {
            faults.push(Invalid::new("literal_error", "Input should be False", &["stream"], other));
            false
        }
    };
    let options = if stream { request.remove("stream_options") } else { None };
    let request = Value::Object(request);
    faults.extend(missing(&request, &[], &["messages"]));
    valid(faults)?;
    let reply = full_chat_completion(model.backend.ask("chat/completions", request).await.map_err(ApiError::Failed)?);
    if !stream {
        return Ok(Json(reply).into_response());
    }
    let with_usage = options.is_some_and(|options| options["include_usage"] == true);
    Ok(sse::chat_completion(&reply, with_usage, model.chunk_pause))
}

async fn anthropic_messages(State(model): State<Arc<Model>>, body: Bytes) -> Result<Response, ApiError> {
    let request = Value::Object(object(&body, &[])?);
    let question = messages::to_responses_request(&request).map_err(ApiError::Failed)?;
    let reply = model.backend.ask("responses", question).await.map_err(ApiError::Failed)?;
    let name = request["model"].as_str().unwrap_or(model.backend.model_name());
    let message = messages::from_response(&reply, name);
    if request["stream"] == true { Ok(sse::message(&message, &reply)) } else { Ok(Json(message).into_response()) }
}

/// The faults of a request that has fields it may not have.
fn unknown(request: &Object, known: impl Fn(&str) -> bool) -> Vec<Invalid> {
    let fault = |(field, value): (&String, &Value)| {
        Invalid::new("extra_forbidden", "Extra inputs are not permitted", &[field], value.clone())
    };
    request.iter().filter(|(field, _)| !known(field)).map(fault).collect()
}

/// A chat completion with every field, null where it is not set.
fn full_chat_completion(mut reply: Value) -> Value {
    let set_null = |object: &mut Value, fields: &[&str]| {
        fields.iter().for_each(|field| set_default(object, field, Value::Null));
    };
    set_null(&mut reply, &["moderation", "service_tier", "system_fingerprint"]);
    for choice in list_mut(&mut reply, "choices") {
        set_null(choice, &["logprobs"]);
        if let Some(message) = choice.get_mut("message") {
            set_null(message, &["content", "refusal", "annotations", "audio", "function_call", "tool_calls"]);
        }
    }
    match reply.get_mut("usage") {
        Some(usage) => set_null(usage, &["completion_tokens_details", "prompt_tokens_details"]),
        None => set_default(&mut reply, "usage", json!(null)),
    }
    reply
}
