//! The record of a rollout's turns, model calls and tool calls that an agent returns when observability is on.

use nemo_gym_telemetry::rollout::RolloutId;
use serde_json::{Value, json};

use crate::common::responses_api::full_item;

/// A record that grows with the conversation.
#[derive(Debug)]
pub struct Trajectory {
    rollout_id: String,
    model: String,
    turns: Vec<Value>,
    model_calls: Vec<Value>,
    tool_calls: Vec<Value>,
}

/// Seconds since 1970.
pub fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn full_items(items: &[Value]) -> Vec<Value> {
    items.iter().cloned().map(full_item).collect()
}

impl Trajectory {
    /// An empty record. The task is known to `/run` only.
    pub fn new(rollout_id: &str, model: &str) -> Self {
        let (rollout_id, model) = (rollout_id.to_owned(), model.to_owned());
        Self { rollout_id, model, turns: Vec::new(), model_calls: Vec::new(), tool_calls: Vec::new() }
    }

    /// A model was asked `question` and gave `answer`.
    pub fn turn(&mut self, reply: &Value, question: &[Value], answer: &[Value]) {
        let call = json!({
            "model_call_id": null,
            "model_ref": {"type": "responses_api_models", "name": self.model},
            "response_id": reply["id"],
        });
        self.turns.push(json!({
            "invocation_id": "root", "task_id": "unscoped", "rollout_id": self.rollout_id,
            "turn_no": self.turns.len() + 1, "timestamp": now(),
            "question": full_items(question), "answer": full_items(answer),
            "reasoning_content": null, "resolved": null, "step_count": 1, "model_calls": [call],
        }));
        self.model_calls.push(call);
    }

    /// A tool was called.
    pub fn tool_call(&mut self, call: &Value, output: &str, started: f64) {
        let completed = now();
        self.tool_calls.push(json!({
            "kind": "tool_call", "invocation_id": "root", "tool_call_id": call["call_id"], "sandbox_id": null,
            "tool_name": call["name"], "started_at": started, "completed_at": completed,
            "duration_ms": (completed - started) * 1000.0, "timing_source": "executor", "status": "completed",
            "error_type": null, "output": output,
        }));
    }

    /// The finished record.
    pub fn finish(self, conversation: Vec<Value>) -> Value {
        let invocation = json!({
            "kind": "agent_invocation", "invocation_id": "root", "parent_invocation_id": null,
            "spawned_by_tool_call_id": null, "status": "completed", "duration_ms": null, "error_type": null,
            "model_calls": self.model_calls, "conversation": full_items(&conversation),
        });
        json!({
            "schema_version": "1.0", "task_id": "unscoped", "rollout_id": self.rollout_id, "invocations": [invocation],
            "turns": self.turns, "model_calls": [], "tool_calls": self.tool_calls, "gaps": [],
        })
    }
}

/// The record as `/run` returns it: with its task, and with what is not known about it.
pub fn of_rollout(mut trajectory: Value, run: &Value, id: &RolloutId) -> Value {
    let task = match &run["_ng_task_index"] {
        Value::Null => "unscoped".to_owned(),
        index => index.to_string(),
    };
    let scope = |record: &mut Value| {
        if let Value::Object(record) = record {
            record.insert("task_id".into(), task.clone().into());
            record.insert("rollout_id".into(), id.as_str().into());
        }
    };
    scope(&mut trajectory);
    crate::common::responses_api::list_mut(&mut trajectory, "turns").for_each(scope);
    let gap = json!({"code": "resolution_unavailable", "invocation_id": "root", "detail": null});
    if let Value::Object(trajectory) = &mut trajectory {
        trajectory.insert("gaps".into(), json!([gap]));
    }
    trajectory
}
