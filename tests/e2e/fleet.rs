//! The three example servers with telemetry on.

use serde_json::{Value, json};

use super::process::{Server, example};

/// Variables for a server.
pub type Variables = Vec<(String, String)>;

/// The variables that send everything to a collector.
pub fn telemetry_to(endpoint: &str, protocol: &str, run_id: &str) -> Variables {
    let variables = [
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_SPAN_GROUPS", "all"),
        ("NEMO_GYM_OTEL_RUN_ID", run_id),
        ("OTEL_SERVICE_NAME", "nemo-gym"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// A running fleet.
#[derive(Debug)]
pub struct Fleet {
    pub resources: Server,
    pub model: Server,
    pub agent: Server,
    client: reqwest::Client,
}

impl Fleet {
    /// Starts the servers with these variables on each.
    pub async fn start(variables: &Variables) -> Self {
        let command = |name: &str| {
            let mut command = example(name);
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            command
        };
        let resources = Server::start(command("resources_server")).await;
        let model = Server::start(command("model_server")).await;
        let mut agent = command("agent_server");
        agent.args(["--model-url", &model.url, "--resources-url", &resources.url]);
        let agent = Server::start(agent).await;
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { resources, model, agent, client }
    }

    /// Runs a rollout; the reply must be a success.
    pub async fn rollout(&self, task: usize, headers: &[(&str, &str)]) -> Value {
        let tool = json!({
            "type": "function", "name": "get_weather", "strict": true,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        });
        let question = json!({"input": "weather in sf?", "tools": [tool]});
        let body = json!({"responses_create_params": question, "_ng_task_index": task, "_ng_rollout_index": 0});
        let mut request = self.client.post(format!("{}/run", self.agent.url)).json(&body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap_or_default());
        response.json().await.expect("JSON")
    }

    /// Ends the servers with SIGTERM; each must end cleanly.
    pub async fn stop(&mut self) {
        tokio::join!(self.agent.stop(), self.model.stop(), self.resources.stop());
    }
}
