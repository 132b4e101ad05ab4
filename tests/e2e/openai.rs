//! A stand-in for an OpenAI-compatible server: the scripted one behind the recorded model servers.

use serde_json::{Value, json};

use super::stand_in::{Answer, Asked, StandIn};

/// Starts it.
pub async fn start() -> StandIn {
    StandIn::start(answer).await
}

fn answer(asked: &Asked) -> Answer {
    let request = asked.json();
    let text = request.to_string();
    for (mark, status, kind, message) in [
        ("FAIL400", 400, "invalid_request_error", "bad"),
        ("FAIL401", 401, "auth", "no"),
        ("FAIL500", 500, "server_error", "down"),
    ] {
        if text.contains(mark) {
            return Answer::json(status, &json!({"error": {"message": message, "type": kind, "code": message}}));
        }
    }
    match asked.path.as_str() {
        "/v1/responses" => Answer::json(200, &response(&request, &text)),
        "/v1/chat/completions" => Answer::json(200, &chat_completion(&request)),
        _ => Answer::json(404, &json!({"error": "no such endpoint"})),
    }
}

fn response(request: &Value, text: &str) -> Value {
    let answered = text.contains("function_call_output");
    let item = match request["tools"].get(0).filter(|_| !answered) {
        Some(tool) => json!({
            "type": "function_call", "id": "fc1", "call_id": "c1", "name": tool["name"],
            "arguments": "{\"city\": \"sf\"}", "status": "completed",
        }),
        None => json!({
            "type": "message", "id": "m1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "cold", "annotations": []}],
        }),
    };
    let usage = json!({
        "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
    });
    json!({
        "id": "resp_1", "object": "response", "created_at": 1_700_000_000.0, "model": "fake", "output": [item],
        "parallel_tool_calls": true, "tool_choice": "auto", "tools": request.get("tools").unwrap_or(&json!([])),
        "status": "completed", "usage": usage,
    })
}

fn chat_completion(request: &Value) -> Value {
    let (message, reason) = match request["tools"].get(0) {
        Some(tool) => {
            let function = json!({"name": tool["function"]["name"], "arguments": "{\"city\": \"sf\"}"});
            let call = json!({"id": "c1", "type": "function", "function": function});
            (json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls")
        }
        None => (json!({"role": "assistant", "content": "cold"}), "stop"),
    };
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": null}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    })
}
