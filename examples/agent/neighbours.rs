//! The servers an agent calls, and under which path.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::COOKIE;
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::rollout::RolloutId;
use reqwest::Url;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde_json::Value;

use crate::common::http::ApiError;
use crate::common::session::set_cookies;

/// Cookies by name.
pub type Cookies = BTreeMap<String, String>;

const RESPONSES: [&str; 2] = ["v1", "responses"];

/// The model server, the resources server and the agent itself.
#[derive(Debug)]
pub struct Neighbours {
    client: ClientWithMiddleware,
    model: String,
    resources: String,
    own: String,
}

/// A reply, read to its end.
#[derive(Debug)]
pub struct Reply {
    server: &'static str,
    pub status: StatusCode,
    pub cookies: Cookies,
    pub body: Bytes,
}

impl Reply {
    /// The reply, unless its status tells of a failure.
    pub fn success(self) -> Result<Self, ApiError> {
        if self.status.is_success() {
            return Ok(self);
        }
        Err(ApiError::Failed(format!("the {} server answered {}", self.server, self.status)))
    }

    /// The body, which must be a JSON object.
    pub fn json(self) -> Result<Value, ApiError> {
        match serde_json::from_slice(&self.body) {
            Ok(body @ Value::Object(_)) => Ok(body),
            _ => Err(ApiError::Failed(format!("the {} server's reply is not a JSON object", self.server))),
        }
    }
}

impl Neighbours {
    /// Neighbours by their base URLs.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(model: String, resources: String, own: String) -> std::io::Result<Self> {
        // A fleet's servers talk to each other directly, never through a proxy. A model may think for minutes, so
        // only connecting has a time limit.
        let client = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(10)).build();
        let client = ClientBuilder::new(client.map_err(std::io::Error::other)?).with(TracePropagation).build();
        Ok(Self { client, model, resources, own })
    }

    /// Asks the model server.
    pub async fn model(&self, prefix: &str, request: &Value, cookies: &Cookies) -> Result<Reply, ApiError> {
        self.post("model", &self.model, prefix, &RESPONSES, request, cookies).await
    }

    /// Calls an endpoint of the resources server, a tool or its own.
    pub async fn resources(
        &self,
        prefix: &str,
        endpoint: &str,
        request: &Value,
        cookies: &Cookies,
    ) -> Result<Reply, ApiError> {
        self.post("resources", &self.resources, prefix, &[endpoint], request, cookies).await
    }

    /// Calls `/v1/responses` of this very agent.
    pub async fn own(&self, prefix: &str, request: &Value, cookies: &Cookies) -> Result<Reply, ApiError> {
        self.post("agent", &self.own, prefix, &RESPONSES, request, cookies).await
    }

    async fn post(
        &self,
        server: &'static str,
        base: &str,
        prefix: &str,
        endpoint: &[&str],
        body: &Value,
        cookies: &Cookies,
    ) -> Result<Reply, ApiError> {
        let failed = |what: String| ApiError::Failed(format!("the {server} server: {what}"));
        let mut url = Url::parse(base).map_err(|error| failed(error.to_string()))?;
        url.set_path(&format!("{}{prefix}", url.path().trim_end_matches('/')));
        // Segment by segment: a tool's name is the model's choice, and may hold a slash or a question mark.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(endpoint);
        }
        let mut call = self.client.post(url).json(body);
        if !cookies.is_empty() {
            let pairs: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            call = call.header(COOKIE, pairs.join("; "));
        }
        let reply = call.send().await.map_err(|error| failed(error.without_url().to_string()))?;
        let (status, cookies) = (reply.status(), set_cookies(reply.headers()).into_iter().collect());
        let body = reply.bytes().await.map_err(|error| failed(error.without_url().to_string()))?;
        Ok(Reply { server, status, cookies, body })
    }
}

/// Which calls carry the rollout's id in their path: a fleet's configuration says.
#[derive(Clone, Copy, Debug, Default)]
pub struct RolloutPrefixes {
    observability: bool,
    token_capture: bool,
}

impl RolloutPrefixes {
    /// From the fleet's configuration, which a supervisor hands its servers in `NEMO_GYM_CONFIG_DICT`.
    pub fn from_process() -> Self {
        let config = std::env::var("NEMO_GYM_CONFIG_DICT").unwrap_or_default();
        let config: Value = serde_norway::from_str(&config).unwrap_or_default();
        let capture = &config["token_id_capture"];
        Self {
            observability: config["observability_enabled"] == true,
            token_capture: capture["enabled"] == true && capture["all_agents"] == true,
        }
    }

    /// Whether any call carries an id, so that an ill-formed one must not be passed over.
    pub fn any(self) -> bool {
        self.observability || self.token_capture
    }

    /// The prefix of `/seed_session` and `/verify`.
    pub fn for_resources(self, id: Option<&RolloutId>) -> String {
        id.filter(|_| self.observability).map(|id| format!("/ng-rollout/{id}")).unwrap_or_default()
    }

    /// The prefix of `/v1/responses`.
    pub fn for_responses(self, id: Option<&RolloutId>) -> String {
        match id {
            Some(id) if self.token_capture => format!("/ng-rollout/{id}/training-token-capture"),
            id => self.for_resources(id),
        }
    }

    /// The rollout id of a call whose conversation is recorded: one that came under a prefix, with observability on.
    pub fn observed(self, prefix: &str) -> Option<&str> {
        let id = prefix.strip_prefix("/ng-rollout/").filter(|_| self.observability)?;
        Some(id.strip_suffix("/training-token-capture").unwrap_or(id))
    }
}
