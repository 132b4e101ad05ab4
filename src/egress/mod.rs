#![doc = include_str!("../../docs/client.md")]

mod attempt;
mod body;
mod builder;
mod call;
mod choices;
mod connections;
mod error_type;
mod headers;
mod middleware;
mod redirect;
mod request_choices;
mod target;
mod url;

pub(crate) use self::url::redacted_query;
pub use builder::{ConfiguredTracePropagation, TracePropagationBuilder};
pub use connections::{Connecting, ConnectionMetrics, ConnectionMetricsLayer};
pub use middleware::TracePropagation;
pub use redirect::same_server_redirects;
pub use request_choices::{DestinationServer, TraceOptOut, UrlTemplate};
