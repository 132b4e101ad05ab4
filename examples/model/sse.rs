//! Streamed replies, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::common::responses_api::set_default;

/// A frame, and the pause before it.
type Frame = (Duration, String);

/// An event with its name, which its data repeat as `type`.
fn event(data: Value) -> Frame {
    let name = data["type"].as_str().unwrap_or_default();
    (Duration::ZERO, format!("event: {name}\ndata: {data}\n\n"))
}

fn stream_of(frames: Vec<Frame>) -> Response {
    let frames = stream::iter(frames).then(|(pause, frame)| async move {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok::<_, Infallible>(frame)
    });
    let mut response = Response::new(Body::from_stream(frames));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response
}

/// Tells proxies on the way to pass each frame on at once.
fn unbuffered(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// `/v1/responses`: created, one event per finished item, completed.
pub fn responses(reply: &Value) -> Response {
    let mut created = reply.clone();
    created["status"] = "in_progress".into();
    created["output"] = json!([]);
    let mut frames = vec![event(json!({"type": "response.created", "response": created}))];
    for (index, item) in reply["output"].as_array().into_iter().flatten().enumerate() {
        frames.push(event(json!({"type": "response.output_item.done", "output_index": index, "item": item})));
    }
    frames.push(event(json!({"type": "response.completed", "response": reply})));
    unbuffered(stream_of(frames))
}

/// `/v1/responses` when the model could not be asked: created, failed.
pub fn failed_response(message: &str) -> Response {
    let id = format!("resp_{:032x}", rand::random::<u128>());
    let frame = |kind: &str, status: &str| {
        let error = json!({"code": "server_error", "message": message});
        let response = json!({"id": id, "object": "response", "status": status, "output": [], "error": error});
        event(json!({"type": kind, "response": response}))
    };
    stream_of(vec![frame("response.created", "in_progress"), frame("response.failed", "failed")])
}

/// `/v1/chat/completions`: the role, the text word by word with a pause between words, the tool calls, the end.
pub fn chat_completion(reply: &Value, with_usage: bool, pause: Duration) -> Response {
    let chunk = |choices: Value| {
        json!({
            "id": reply["id"], "object": "chat.completion.chunk", "created": reply["created"], "model": reply["model"],
            "choices": choices,
        })
    };
    let frame = |pause: Duration, data: Value| (pause, format!("data: {data}\n\n"));
    let mut frames = Vec::new();
    for choice in reply["choices"].as_array().into_iter().flatten() {
        let delta = |delta: Value, finish_reason: &Value| {
            chunk(json!([{"index": choice["index"], "delta": delta, "finish_reason": finish_reason}]))
        };
        let message = &choice["message"];
        frames.push(frame(Duration::ZERO, delta(json!({"role": "assistant"}), &Value::Null)));
        let text = message["content"].as_str().unwrap_or_default();
        for (index, word) in text.split_inclusive(' ').enumerate() {
            let pause = if index == 0 { Duration::ZERO } else { pause };
            frames.push(frame(pause, delta(json!({"content": word}), &Value::Null)));
        }
        for (index, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let mut call = call.clone();
            set_default(&mut call, "index", index.into());
            frames.push(frame(Duration::ZERO, delta(json!({"tool_calls": [call]}), &Value::Null)));
        }
        frames.push(frame(Duration::ZERO, delta(json!({}), &choice["finish_reason"])));
    }
    if with_usage {
        let mut usage = chunk(json!([]));
        usage["usage"] = reply["usage"].clone();
        frames.push(frame(Duration::ZERO, usage));
    }
    frames.push((Duration::ZERO, "data: [DONE]\n\n".to_owned()));
    unbuffered(stream_of(frames))
}

/// `/v1/messages`: the message's head, each block, the end. A tool's input is streamed as the model wrote it in `reply`.
pub fn message(message: &Value, reply: &Value) -> Response {
    let arguments = |id: &Value| {
        let call = reply["output"].as_array().and_then(|items| items.iter().find(|item| item["call_id"] == *id));
        call.map_or(Value::Null, |call| call["arguments"].clone())
    };
    let mut start = message.clone();
    start["content"] = json!([]);
    let mut frames = vec![event(json!({"type": "message_start", "message": start}))];
    for (index, block) in message["content"].as_array().into_iter().flatten().enumerate() {
        let (empty, delta) = match block["type"].as_str() {
            Some("tool_use") => (
                json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
                json!({"type": "input_json_delta", "partial_json": arguments(&block["id"])}),
            ),
            _ => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]})),
        };
        frames.push(event(json!({"type": "content_block_start", "index": index, "content_block": empty})));
        frames.push(event(json!({"type": "content_block_delta", "index": index, "delta": delta})));
        frames.push(event(json!({"type": "content_block_stop", "index": index})));
    }
    let end = json!({"stop_reason": message["stop_reason"], "stop_sequence": null});
    let usage = json!({"output_tokens": message["usage"]["output_tokens"]});
    frames.push(event(json!({"type": "message_delta", "delta": end, "usage": usage})));
    frames.push(event(json!({"type": "message_stop"})));
    unbuffered(stream_of(frames))
}
