//! Who a server is: its name in the Gym configuration and its type.

use std::fmt;

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

    /// The name under which the server stands in the Gym configuration.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The server's type.
    pub fn server_type(&self) -> Option<&ServerType> {
        self.server_type.as_ref()
    }
}
