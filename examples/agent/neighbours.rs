//! The servers an agent calls, and under which path.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::COOKIE;
use nemo_gym_telemetry::egress::{DestinationServer, TracePropagation};
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
    model: Neighbour,
    resources: Neighbour,
    own: Neighbour,
}

/// A server by its name in the Gym configuration and its base URL.
#[derive(Debug)]
pub struct Neighbour {
    pub name: String,
    pub url: String,
}

/// A reply, read to its end.
#[derive(Debug)]
pub struct Reply {
    server: String,
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
        Err(ApiError::Failed(format!("{} answered {}", self.server, self.status)))
    }

    /// The body, which must be a JSON object.
    pub fn json(self) -> Result<Value, ApiError> {
        match serde_json::from_slice(&self.body) {
            Ok(body @ Value::Object(_)) => Ok(body),
            _ => Err(ApiError::Failed(format!("{}'s reply is not a JSON object", self.server))),
        }
    }
}

impl Neighbours {
    /// These neighbours.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(model: Neighbour, resources: Neighbour, own: Neighbour) -> std::io::Result<Self> {
        // A fleet's servers talk to each other directly, never through a proxy. A model may think for minutes, so
        // only connecting has a time limit.
        let client = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(10)).build();
        let client = ClientBuilder::new(client.map_err(std::io::Error::other)?).with(TracePropagation).build();
        Ok(Self { client, model, resources, own })
    }

    /// Asks the model server.
    pub async fn model(&self, prefix: &str, request: &Value, cookies: &Cookies) -> Result<Reply, ApiError> {
        self.post(&self.model, prefix, &RESPONSES, request, cookies).await
    }

    /// Calls an endpoint of the resources server, a tool or its own.
    pub async fn resources(
        &self,
        prefix: &str,
        endpoint: &str,
        request: &Value,
        cookies: &Cookies,
    ) -> Result<Reply, ApiError> {
        self.post(&self.resources, prefix, &[endpoint], request, cookies).await
    }

    /// Calls `/v1/responses` of this very agent.
    pub async fn own(&self, prefix: &str, request: &Value, cookies: &Cookies) -> Result<Reply, ApiError> {
        self.post(&self.own, prefix, &RESPONSES, request, cookies).await
    }

    async fn post(
        &self,
        server: &Neighbour,
        prefix: &str,
        endpoint: &[&str],
        body: &Value,
        cookies: &Cookies,
    ) -> Result<Reply, ApiError> {
        let failed = |what: String| ApiError::Failed(format!("{}: {what}", server.name));
        let mut url = Url::parse(&server.url).map_err(|error| failed(error.to_string()))?;
        url.set_path(&format!("{}{prefix}", url.path().trim_end_matches('/')));
        // Segment by segment: a tool's name is the model's choice, and may hold a slash or a question mark.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(endpoint);
        }
        // Naming the server marks it as one of the fleet: its spans get the rollout's id.
        let destination = DestinationServer::new(server.name.clone());
        let mut call = self.client.post(url).with_extension(destination).json(body);
        if !cookies.is_empty() {
            let pairs: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            call = call.header(COOKIE, pairs.join("; "));
        }
        let reply = call.send().await.map_err(|error| failed(error.without_url().to_string()))?;
        let (status, cookies) = (reply.status(), set_cookies(reply.headers()).into_iter().collect());
        let body = reply.bytes().await.map_err(|error| failed(error.without_url().to_string()))?;
        Ok(Reply { server: server.name.clone(), status, cookies, body })
    }
}
