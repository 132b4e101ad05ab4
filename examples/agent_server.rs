//! An agent server: runs a rollout, asking the model and calling the tools it wants.
//!
//! `cargo run --example agent_server -- --port 8003 --model-url http://127.0.0.1:8002 --resources-url http://127.0.0.1:8001`
//!
//! What makes it part of a fleet's telemetry stands in `run`, in the last lines of `router`, in `Neighbours`' client, and
//! where `/run` gives the rollout's id to its spans.

mod common;
#[path = "agent/config.rs"]
mod config;
#[path = "agent/neighbours.rs"]
mod neighbours;
#[path = "agent/trajectory.rs"]
mod trajectory;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{OriginalUri, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{Router, post};
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::rollout::{rollout_id_from_run_body, set_rollout_id, with_rollout_prefix};
use nemo_gym_telemetry::{ServerIdentity, ServerType, Telemetry, serve};
use serde_json::{Value, json};

use crate::common::args::Args;
use crate::common::http::{ApiError, missing, object, valid, with_common_routes, with_limits};
use crate::common::responses_api::{full_request, full_response, is_type, list, response_faults, set_default};
use crate::common::session::{cookies, with_session};
use config::Config;
use neighbours::{Neighbour, Neighbours, Reply};
use trajectory::Trajectory;

const NAME: &str = "example_agent";
const USAGE: &str = "usage: agent_server --model-url URL --resources-url URL [--port PORT]";
/// A model that never comes to an answer is stopped after this many calls.
const MAX_STEPS: usize = 256;

#[derive(Debug)]
struct Agent {
    neighbours: Neighbours,
    config: Config,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    run(&Args::from_process(USAGE, &["port", "model-url", "resources-url"], &[])).await
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: &Args) -> std::io::Result<()> {
    let identity = ServerIdentity::new(NAME, ServerType::ResponsesApiAgents);
    let telemetry = Telemetry::builder().with_default_identity(identity).init();
    let listener = common::bind(args.get_or("port", 0)).await?;
    let name = telemetry.identity().name().unwrap_or(NAME).to_owned();
    let config = Config::from_process(&name);
    let neighbour = |name: &str, url: String| Neighbour { name: name.to_owned(), url };
    let neighbours = Neighbours::new(
        neighbour(&config.model, args.base_url("model-url")),
        neighbour(&config.resources, args.base_url("resources-url")),
        neighbour(&name, format!("http://{}", listener.local_addr()?)),
    )?;
    let agent = Agent { neighbours, config };
    let app = router(agent, &telemetry);
    let address = listener.local_addr()?;
    // SIGTERM and SIGINT are heard from here on: a process that says it is ready can be told to end.
    let server = serve(listener, app, &telemetry).into_future();
    common::announce(address);
    server.await
}

fn router(agent: Agent, telemetry: &Telemetry) -> Router {
    let agent = Arc::new(agent);
    let responses = Router::new().route("/v1/responses", post(responses)).with_state(agent.clone());
    let run = Router::new().route("/run", post(run_rollout)).with_state(agent);
    // `/run` begins a rollout, so it alone has no form under a rollout's prefix.
    let routes = with_limits(run).merge(with_rollout_prefix(with_common_routes(responses)));
    let name = telemetry.identity().name().unwrap_or(NAME);
    with_session(routes, "SimpleAgent", name).layer(GymTelemetryLayer::new(telemetry))
}

/// One rollout: begin it at the resources server, answer it with `/v1/responses` of our own, have it scored.
async fn run_rollout(State(agent): State<Arc<Agent>>, headers: HeaderMap, body: Bytes) -> Result<Response, ApiError> {
    let mut body = Value::Object(object(&body, &[])?);
    valid(missing(&body, &[], &["responses_create_params"]))?;
    valid(missing(&body["responses_create_params"], &["responses_create_params"], &["input"]))?;
    let id = match rollout_id_from_run_body(&body) {
        Err(error) if agent.config.needs_rollout_id() => return Err(ApiError::Failed(error.to_string())),
        id => id.ok().flatten(),
    };
    if let Some(id) = &id {
        set_rollout_id(id);
    }
    let question = body["responses_create_params"].take();
    body["responses_create_params"] = full_request(question.clone());
    if let Some(body) = body.as_object_mut() {
        body.remove("_ng_rollout_id");
    }

    let Agent { neighbours, config } = &*agent;
    let prefix = config.resources_prefix(id.as_ref());
    let caller = cookies(&headers).into_iter().collect();
    let seeded = neighbours.resources(&prefix, "seed_session", &body, &caller).await?.success()?;

    let answered =
        neighbours.own(&config.responses_prefix(id.as_ref()), &question, &seeded.cookies).await?.success()?;
    let cookies = answered.cookies.clone();
    let mut answer = answered.json()?;
    let trajectory = answer.as_object_mut().and_then(|answer| answer.remove("_ng_trajectory"));

    body["response"] = answer;
    let verified = neighbours.resources(&prefix, "verify", &body, &cookies).await?.success()?;
    let mut scored = verified.json()?;
    if ["responses_create_params", "response", "reward"].iter().any(|field| scored.get(field).is_none()) {
        return Err(ApiError::Failed("the resources server's reply to /verify has no reward".to_owned()));
    }
    for (field, default) in
        [("mask_sample", json!(false)), ("failure_kind", Value::Null), ("failure_reason", Value::Null)]
    {
        set_default(&mut scored, field, default);
    }
    if let (Some(trajectory), Some(id)) = (trajectory, &id) {
        scored["ng_trajectory"] = trajectory::of_rollout(trajectory, &body, id);
    }
    Ok(Json(scored).into_response())
}

/// Asks the model until it answers, calling the tools it asks for.
async fn responses(
    State(agent): State<Arc<Agent>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut request = Value::Object(object(&body, &[])?);
    valid(missing(&request, &[], &["input"]))?;
    // Model calls carry the rollout prefix that this call came with; tool calls have none.
    let prefix = uri.path().strip_suffix("/v1/responses").unwrap_or_default();
    let mut conversation = match request["input"].take() {
        Value::Array(items) => items,
        text => vec![json!({"role": "user", "content": text})],
    };
    let mut trajectory = agent.config.recorded_rollout(prefix).map(|id| Trajectory::new(id, &agent.config.model));
    let question = conversation.len();
    let mut tool_cookies: BTreeMap<String, String> = cookies(&headers).into_iter().collect();
    let mut model_cookies = BTreeMap::new();
    let mut usage = Value::Null;

    let mut steps = 0;
    let mut last = loop {
        request["input"] = conversation.clone().into();
        let reply = agent.neighbours.model(prefix, &request, &model_cookies).await?.success()?;
        model_cookies.extend(reply.cookies.clone());
        let mut reply = reply.json()?;
        if !response_faults(&reply, &[]).is_empty() {
            return Err(ApiError::Failed("the model server's reply is not a response".to_owned()));
        }
        add_usage(&mut usage, reply["usage"].take());
        let output: Vec<Value> = list(&reply, "output").cloned().collect();
        if let Some(trajectory) = &mut trajectory {
            trajectory.turn(&reply, &conversation, &output);
        }
        conversation.extend(output.iter().cloned());
        steps += 1;
        let calls: Vec<&Value> = output.iter().filter(|item| is_type(item, "function_call")).collect();
        let cut = reply["incomplete_details"]["reason"] == "max_output_tokens";
        if calls.is_empty() && !cut && !output.iter().any(|item| is_type(item, "message")) {
            terminate(&mut reply, "empty_output", "the model's reply holds neither a message nor a tool call");
        }
        if calls.is_empty() || cut || steps == MAX_STEPS {
            break reply;
        }
        for call in calls {
            let started = trajectory::now();
            let output = call_tool(&agent.neighbours, call, &mut tool_cookies).await?;
            if let Some(trajectory) = &mut trajectory {
                trajectory.tool_call(call, &output, started);
            }
            conversation.push(json!({"type": "function_call_output", "call_id": call["call_id"], "output": output}));
        }
    };
    last["output"] = conversation.split_off(question).into();
    last["usage"] = usage;
    let mut last = full_response(last);
    if let Some(trajectory) = trajectory {
        conversation.extend(list(&last, "output").cloned());
        last["_ng_trajectory"] = trajectory.finish(conversation);
    }
    let mut response = Json(last).into_response();
    // What the servers behind us set goes on to the caller, who sends it back when the rollout is scored.
    let tool_cookies = tool_cookies.iter().map(|(name, value)| format!("{name}={value}; Path=/; SameSite=lax"));
    let model_cookies = model_cookies
        .iter()
        .map(|(name, value)| format!("{name}={value}; HttpOnly; Max-Age=1209600; Path=/; SameSite=lax"));
    for cookie in tool_cookies.chain(model_cookies).filter_map(|cookie| HeaderValue::try_from(cookie).ok()) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Calls a tool. Whatever it answers, an error too, is for the model to read.
async fn call_tool(
    neighbours: &Neighbours,
    call: &Value,
    cookies: &mut BTreeMap<String, String>,
) -> Result<String, ApiError> {
    let arguments: Value = match serde_json::from_str(call["arguments"].as_str().unwrap_or_default()) {
        Ok(arguments) => arguments,
        Err(error) => return Ok(json!({"error": format!("the arguments are not JSON: {error}")}).to_string()),
    };
    let Reply { cookies: set, body, .. } =
        neighbours.resources("", call["name"].as_str().unwrap_or_default(), &arguments, cookies).await?;
    cookies.extend(set);
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Adds up token counts over the model calls of one answer.
fn add_usage(total: &mut Value, usage: Value) {
    match (total, usage) {
        (total @ Value::Null, usage) => *total = usage,
        (Value::Object(total), Value::Object(usage)) => {
            for (field, count) in usage {
                add_usage(total.entry(field).or_insert(Value::Null), count);
            }
        }
        (Value::Number(total), Value::Number(count)) => {
            *total = (total.as_u64().unwrap_or(0).saturating_add(count.as_u64().unwrap_or(0))).into();
        }
        _ => {}
    }
}

/// Marks a reply as ended before its time.
fn terminate(reply: &mut Value, reason: &str, message: &str) {
    reply["status"] = "incomplete".into();
    if !reply["metadata"].is_object() {
        reply["metadata"] = json!({});
    }
    reply["metadata"]["ng_termination_reason"] = reason.into();
    reply["metadata"]["ng_termination_message"] = message.into();
}
