//! What an agent takes from the fleet's configuration, which a supervisor hands its servers in `NEMO_GYM_CONFIG_DICT`.

use nemo_gym_telemetry::rollout::RolloutId;
use serde_json::Value;

/// Whom the agent calls, and which calls carry the rollout's id in their path.
#[derive(Clone, Debug)]
pub struct Config {
    /// The names of the servers it calls.
    pub model: String,
    pub resources: String,
    observability: bool,
    token_capture: bool,
}

impl Config {
    /// The configuration of the agent of this name.
    pub fn from_process(agent: &str) -> Self {
        let text = std::env::var("NEMO_GYM_CONFIG_DICT").unwrap_or_default();
        let all: Value = serde_norway::from_str(&text).unwrap_or_default();
        let implementations = all[agent]["responses_api_agents"].as_object();
        let own = implementations.and_then(|agents| agents.values().next()).unwrap_or(&Value::Null);
        let name = |reference: &str, default: &str| own[reference]["name"].as_str().unwrap_or(default).to_owned();
        let capture = &all["token_id_capture"];
        Self {
            model: name("model_server", "policy_model"),
            resources: name("resources_server", "example_single_tool_call"),
            observability: all["observability_enabled"] == true,
            token_capture: capture["enabled"] == true && capture["all_agents"] == true,
        }
    }

    /// Whether any call carries an id, so that an ill-formed one must not be passed over.
    pub fn needs_rollout_id(&self) -> bool {
        self.observability || self.token_capture
    }

    /// The prefix of `/seed_session` and `/verify`.
    pub fn resources_prefix(&self, id: Option<&RolloutId>) -> String {
        id.filter(|_| self.observability).map(|id| format!("/ng-rollout/{id}")).unwrap_or_default()
    }

    /// The prefix of `/v1/responses`.
    pub fn responses_prefix(&self, id: Option<&RolloutId>) -> String {
        match id {
            Some(id) if self.token_capture => format!("/ng-rollout/{id}/training-token-capture"),
            id => self.resources_prefix(id),
        }
    }

    /// The rollout id of a call whose conversation is recorded: one that came under a prefix, with observability on.
    pub fn recorded_rollout<'a>(&self, prefix: &'a str) -> Option<&'a str> {
        let id = prefix.strip_prefix("/ng-rollout/").filter(|_| self.observability)?;
        Some(id.strip_suffix("/training-token-capture").unwrap_or(id))
    }
}
