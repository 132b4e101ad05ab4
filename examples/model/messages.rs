//! The Anthropic Messages API over the Responses API.

use serde_json::{Map, Value, json};

/// The request to `/v1/responses` that a request to `/v1/messages` means. Fields that have no counterpart are dropped.
///
/// # Errors
/// A text when a message has no role or a tool no name.
pub fn to_responses_request(request: &Value) -> Result<Value, String> {
    let mut input = Vec::new();
    for message in request["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().ok_or("a message has no role")?;
        match &message["content"] {
            Value::Array(blocks) => blocks.iter().for_each(|block| push_block(&mut input, role, block)),
            text => input.push(json!({"type": "message", "role": role, "content": text})),
        }
    }
    let mut out = Map::new();
    out.insert("input".into(), input.into());
    match &request["system"] {
        Value::Null => {}
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            out.insert("instructions".into(), texts.join("\n").into());
        }
        text => drop(out.insert("instructions".into(), text.clone())),
    }
    for (theirs, ours) in [("max_tokens", "max_output_tokens"), ("temperature", "temperature"), ("top_p", "top_p")] {
        if let Some(value) = request.get(theirs).filter(|value| !value.is_null()) {
            out.insert(ours.into(), value.clone());
        }
    }
    if let Some(tools) = request["tools"].as_array() {
        out.insert("tools".into(), tools.iter().map(function_tool).collect::<Result<Vec<_>, _>>()?.into());
    }
    Ok(out.into())
}

fn push_block(input: &mut Vec<Value>, role: &str, block: &Value) {
    match block["type"].as_str() {
        Some("tool_use") => input.push(json!({
            "type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": block["input"].to_string(),
        })),
        Some("tool_result") => input.push(json!({
            "type": "function_call_output", "call_id": block["tool_use_id"], "output": block_text(&block["content"]),
        })),
        _ => {
            let kind = if role == "assistant" { "output_text" } else { "input_text" };
            let part = json!({"type": kind, "text": block_text(block)});
            input.push(json!({"type": "message", "role": role, "content": [part]}));
        }
    }
}

/// The text of a block, of a list of blocks, or of a plain text.
fn block_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(block_text).collect(),
        block => block["text"].as_str().unwrap_or_default().to_owned(),
    }
}

fn function_tool(tool: &Value) -> Result<Value, String> {
    let name = tool["name"].as_str().ok_or("a tool has no name")?;
    let mut function = json!({"type": "function", "name": name, "parameters": tool["input_schema"], "strict": false});
    if let Some(description) = tool.get("description") {
        function["description"] = description.clone();
    }
    Ok(function)
}

/// The message that a reply of `/v1/responses` is, under the model name that the caller knows.
pub fn from_response(response: &Value, model: &str) -> Value {
    let mut content = Vec::new();
    for item in response["output"].as_array().into_iter().flatten() {
        if item["type"] == "function_call" {
            let arguments = item["arguments"].as_str().unwrap_or_default();
            let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
            content.push(json!({"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": input}));
        }
        for part in item["content"].as_array().into_iter().flatten().filter(|part| part["type"] == "output_text") {
            content.push(json!({"type": "text", "text": part["text"]}));
        }
    }
    let cut = response["incomplete_details"]["reason"] == "max_output_tokens";
    let stop_reason = match content.iter().any(|block| block["type"] == "tool_use") {
        true => "tool_use",
        false if cut => "max_tokens",
        false => "end_turn",
    };
    let tokens = |field: &str| response["usage"][field].as_u64().unwrap_or(0);
    json!({
        "id": response["id"], "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": stop_reason,
        "usage": {"input_tokens": tokens("input_tokens"), "output_tokens": tokens("output_tokens")},
    })
}
