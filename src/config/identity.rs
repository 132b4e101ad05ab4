//! Who a server is: its name in the Gym configuration and its type.

use std::fmt;

use super::Environment;
use super::document::{GlobalConfig, Node};
use super::variables::{NEMO_GYM_CONFIG_DICT, NEMO_GYM_CONFIG_PATH};
use crate::diagnostics::warn_once;

/// The kind of a Gym server, as upstream writes it in `nemo.gym.server.type`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerType {
    /// `resources_servers`
    ResourcesServers,
    /// `responses_api_agents`
    ResponsesApiAgents,
    /// `responses_api_models`
    ResponsesApiModels,
    /// `environment_servers`
    EnvironmentServers,
    /// `supervisor`: the process that starts the servers.
    Supervisor,
    /// Any other text; nothing is derived from it.
    Other(String),
}

impl ServerType {
    /// The text upstream uses.
    pub fn as_str(&self) -> &str {
        match self {
            ServerType::ResourcesServers => "resources_servers",
            ServerType::ResponsesApiAgents => "responses_api_agents",
            ServerType::ResponsesApiModels => "responses_api_models",
            ServerType::EnvironmentServers => "environment_servers",
            ServerType::Supervisor => "supervisor",
            ServerType::Other(text) => text,
        }
    }
}

impl From<&str> for ServerType {
    fn from(text: &str) -> Self {
        match text {
            "resources_servers" => ServerType::ResourcesServers,
            "responses_api_agents" => ServerType::ResponsesApiAgents,
            "responses_api_models" => ServerType::ResponsesApiModels,
            "environment_servers" => ServerType::EnvironmentServers,
            "supervisor" => ServerType::Supervisor,
            other => ServerType::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for ServerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A server's name and type. Either may be unknown; an unknown one is absent from every span and
/// resource, never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerIdentity {
    name: Option<String>,
    server_type: Option<ServerType>,
}

impl ServerIdentity {
    /// A named server of a known type.
    pub fn new(name: impl Into<String>, server_type: ServerType) -> Self {
        Self { name: Some(name.into()).filter(|n| !n.is_empty()), server_type: Some(server_type) }
    }

    /// Nothing known.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// Sets the name.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into()).filter(|n| !n.is_empty());
        self
    }

    /// Sets the type.
    pub fn with_server_type(mut self, server_type: ServerType) -> Self {
        self.server_type = Some(server_type);
        self
    }

    /// What is known of a server: name and type each from the identity its code states, else from the
    /// environment, else from the default in its code.
    ///
    /// A Gym supervisor sets `NEMO_GYM_CONFIG_PATH`, the name, and `NEMO_GYM_CONFIG_DICT`, the
    /// configuration as JSON or YAML, in which the type is the key under the server's name.
    pub fn resolve(explicit: Option<ServerIdentity>, env: &Environment, default: Option<ServerIdentity>) -> Self {
        let explicit = explicit.unwrap_or_default();
        let default = default.unwrap_or_default();
        let name = explicit.name.or_else(|| env.get(NEMO_GYM_CONFIG_PATH).map(str::to_owned));
        let server_type = explicit
            .server_type
            .or_else(|| configured_type(env.get(NEMO_GYM_CONFIG_DICT)?, name.as_deref()?))
            .or(default.server_type);
        Self { name: name.or(default.name), server_type }
    }

    /// The name under which the server stands in the Gym configuration.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The server's type.
    pub fn server_type(&self) -> Option<&ServerType> {
        self.server_type.as_ref()
    }
}

/// Longest key that is taken for a type this crate does not know.
const MAX_TYPE_LENGTH: usize = 64;

/// The type of a server in a Gym configuration: a known type among the keys under its name, else the
/// only key there. Junk of any kind means that the type is unknown.
fn configured_type(config: &str, name: &str) -> Option<ServerType> {
    let Ok(entry) = GlobalConfig::Text(config).entry(name) else {
        warn_once(&format!(
            "{NEMO_GYM_CONFIG_DICT} is neither a JSON nor a YAML mapping; the server's type is unknown"
        ));
        return None;
    };
    let Some(Node::Map(keys)) = entry else { return None };
    let types = keys.iter().map(|(key, _)| ServerType::from(key.as_str()));
    if let Some(known) = types.into_iter().find(|t| !matches!(t, ServerType::Other(_) | ServerType::Supervisor)) {
        return Some(known);
    }
    match keys.as_slice() {
        [(key, _)] if !key.is_empty() && key.len() <= MAX_TYPE_LENGTH && !key.contains(char::is_control) => {
            Some(ServerType::from(key.as_str()))
        }
        _ => None,
    }
}
