//! The shapes of the OpenAI Responses API as Gym servers write them: every field is there, null when it is not set.

use serde_json::{Value, json};

use super::http::{Invalid, missing};

/// The fields of a request that are null when not set.
const NULL_IN_REQUEST: [&str; 26] = [
    "background",
    "context_management",
    "conversation",
    "include",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "moderation",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

/// The fields of a reply that are null when not set.
const NULL_IN_RESPONSE: [&str; 25] = [
    "background",
    "completed_at",
    "conversation",
    "error",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "moderation",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "status",
    "temperature",
    "text",
    "top_logprobs",
    "top_p",
    "truncation",
    "usage",
    "user",
];

/// The fields that a reply must have.
const REQUIRED_IN_RESPONSE: [&str; 8] =
    ["id", "object", "created_at", "model", "output", "parallel_tool_calls", "tool_choice", "tools"];

/// Whether a request to `/v1/responses` may have this field.
pub fn is_request_field(name: &str) -> bool {
    ["input", "parallel_tool_calls", "tool_choice", "tools"].contains(&name) || NULL_IN_REQUEST.contains(&name)
}

/// Sets a field of an object unless it is there. Anything but an object stays as it is.
pub fn set_default(object: &mut Value, field: &str, value: Value) {
    if let Value::Object(object) = object {
        object.entry(field).or_insert(value);
    }
}

fn set_null(object: &mut Value, fields: &[&str]) {
    fields.iter().for_each(|field| set_default(object, field, Value::Null));
}

/// The elements of an object's list; none when it has no such list.
pub fn list_mut<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The elements of an object's list; none when it has no such list.
pub fn list<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Whether an item of a conversation is of this type.
pub fn is_type(item: &Value, kind: &str) -> bool {
    item.get("type").and_then(Value::as_str) == Some(kind)
}

/// A request with every field.
pub fn full_request(mut request: Value) -> Value {
    set_null(&mut request, &NULL_IN_REQUEST);
    set_default(&mut request, "parallel_tool_calls", true.into());
    set_default(&mut request, "tool_choice", "auto".into());
    set_default(&mut request, "tools", json!([]));
    list_mut(&mut request, "input").for_each(fill_item);
    request
}

/// A reply with every field.
pub fn full_response(mut response: Value) -> Value {
    set_null(&mut response, &NULL_IN_RESPONSE);
    list_mut(&mut response, "output").for_each(fill_item);
    list_mut(&mut response, "tools").for_each(|tool| set_null(tool, &["defer_loading", "description"]));
    response
}

/// An item of a conversation with every field.
pub fn full_item(mut item: Value) -> Value {
    fill_item(&mut item);
    item
}

fn fill_item(item: &mut Value) {
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => {
            set_default(item, "type", "message".into());
            set_null(item, &["phase"]);
            list_mut(item, "content")
                .filter(|part| is_type(part, "output_text"))
                .for_each(|part| set_null(part, &["logprobs"]));
        }
        Some("function_call") => set_null(item, &["id", "namespace", "status"]),
        Some("function_call_output") => set_null(item, &["id", "status"]),
        Some(_) => {}
    }
}

/// What a reply of a model lacks. `path` is where the reply stands in the request that carries it.
pub fn response_faults(response: &Value, path: &[&str]) -> Vec<Invalid> {
    let mut faults = missing(response, path, &REQUIRED_IN_RESPONSE);
    for (index, item) in list(response, "output").enumerate() {
        let index = index.to_string();
        let path = [path, &["output", &index]].concat();
        match item.get("type").and_then(Value::as_str) {
            None => faults.push(Invalid::missing(&[&path[..], &["type"]].concat(), item)),
            Some("function_call") => faults.extend(missing(item, &path, &["call_id", "name", "arguments"])),
            Some("message") => {
                faults.extend(missing(item, &path, &["id", "content"]));
                for part in list(item, "content") {
                    let fields: &[&str] =
                        if is_type(part, "output_text") { &["text", "annotations"] } else { &["type"] };
                    faults.extend(missing(part, &path, fields));
                }
            }
            Some(_) => {}
        }
    }
    if let Some(usage @ Value::Object(_)) = response.get("usage") {
        let path = [path, &["usage"]].concat();
        let fields = ["input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"];
        faults.extend(missing(usage, &path, &fields));
        for (details, field) in
            [("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")]
        {
            if let Some(object) = usage.get(details) {
                faults.extend(missing(object, &[&path[..], &[details]].concat(), &[field]));
            }
        }
    }
    faults
}
