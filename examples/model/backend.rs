//! Where a model server gets its replies from: a script, or an OpenAI-compatible server.

use std::time::Duration;

use nemo_gym_telemetry::egress::TracePropagation;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::policies::ExponentialBackoff;
use reqwest_retry::{Jitter, RetryTransientMiddleware};
use serde_json::{Value, json};

const TOOL_ARGUMENTS: &str = r#"{"city": "sf"}"#;
const ANSWER: &str = "It is cold in sf today, so take a warm coat, a scarf and gloves.";
/// A failed request is tried again this long after, twice.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// A source of replies.
#[derive(Debug)]
pub enum Backend {
    /// Calls the first tool it is offered once, then answers.
    Script { model: String },
    /// Forwards, with its own model name and credentials.
    Upstream { client: ClientWithMiddleware, base: String, model: String, api_key: Option<String> },
}

impl Backend {
    /// The scripted model.
    pub fn script(model: String) -> Self {
        Backend::Script { model }
    }

    /// An OpenAI-compatible server, named with or without its `/v1`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn upstream(url: String, model: String, api_key: Option<String>) -> std::io::Result<Self> {
        let base = format!("{}/v1", url.strip_suffix("/v1").unwrap_or(&url));
        let policy = ExponentialBackoff::builder().retry_bounds(RETRY_PAUSE, RETRY_PAUSE).jitter(Jitter::None);
        let retry = RetryTransientMiddleware::new_with_policy(policy.build_with_max_retries(2));
        // Outside the retries: one CLIENT span per logical call.
        let client = reqwest::Client::builder().build().map_err(std::io::Error::other)?;
        let client = ClientBuilder::new(client).with(TracePropagation).with(retry).build();
        Ok(Backend::Upstream { client, base, model, api_key })
    }

    /// The name of the model that answers.
    pub fn model_name(&self) -> &str {
        match self {
            Backend::Script { model } | Backend::Upstream { model, .. } => model,
        }
    }

    /// Asks an endpoint (`responses` or `chat/completions`) without streaming.
    ///
    /// # Errors
    /// A text that says what failed, without the upstream's address.
    pub async fn ask(&self, endpoint: &str, mut request: Value) -> Result<Value, String> {
        let (client, base, model, api_key) = match self {
            Backend::Script { model } if endpoint == "responses" => return Ok(script_response(&request, model)),
            Backend::Script { model } => return Ok(script_chat_completion(&request, model)),
            Backend::Upstream { client, base, model, api_key } => (client, base, model, api_key),
        };
        request["model"] = model.as_str().into();
        let mut call = client.post(format!("{base}/{endpoint}")).json(&request);
        if let Some(api_key) = api_key {
            call = call.bearer_auth(api_key);
        }
        let reply = call.send().await.map_err(|error| format!("upstream: {}", error.without_url()))?;
        let status = reply.status();
        if !status.is_success() {
            return Err(format!("upstream answered {status}"));
        }
        match reply.json().await {
            Ok(reply @ Value::Object(_)) => Ok(reply),
            Ok(_) => Err("upstream's reply is not a JSON object".to_owned()),
            Err(error) => Err(format!("upstream: {}", error.without_url())),
        }
    }
}

/// The tool to call: the first one offered, unless a result is there already.
fn wanted_tool(request: &Value, answered: bool) -> Option<&Value> {
    request["tools"].as_array().and_then(|tools| tools.first()).filter(|_| !answered)
}

fn any(request: &Value, field: &str, is: impl Fn(&Value) -> bool) -> bool {
    request[field].as_array().is_some_and(|items| items.iter().any(is))
}

fn id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn script_response(request: &Value, model: &str) -> Value {
    let answered = any(request, "input", |item| item["type"] == "function_call_output");
    let item = match wanted_tool(request, answered) {
        Some(tool) => json!({
            "type": "function_call", "id": id("fc_"), "call_id": id("call_"), "name": tool["name"],
            "arguments": TOOL_ARGUMENTS, "status": "completed",
        }),
        None => json!({
            "type": "message", "id": id("msg_"), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
        }),
    };
    json!({
        "id": id("resp_"), "object": "response", "created_at": now().floor(), "model": model, "status": "completed",
        "output": [item], "parallel_tool_calls": true, "tool_choice": "auto",
        "tools": request["tools"].as_array().map_or(&[][..], Vec::as_slice),
        "usage": {
            "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
        },
    })
}

fn script_chat_completion(request: &Value, model: &str) -> Value {
    let answered = any(request, "messages", |message| message["role"] == "tool");
    let (message, finish_reason) = match wanted_tool(request, answered) {
        Some(tool) => {
            let function = json!({"name": tool["function"]["name"], "arguments": TOOL_ARGUMENTS});
            let call = json!({"id": id("call_"), "type": "function", "function": function});
            (json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls")
        }
        None => (json!({"role": "assistant", "content": ANSWER}), "stop"),
    };
    json!({
        "id": id("chatcmpl-"), "object": "chat.completion", "created": now() as u64, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": null}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    })
}
