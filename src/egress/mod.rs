#![doc = include_str!("../../docs/client.md")]

mod body;
mod builder;
mod call;
mod error_type;
mod middleware;
mod request_choices;
mod target;
mod url;

pub use builder::{ConfiguredTracePropagation, TracePropagationBuilder};
pub use middleware::TracePropagation;
pub use request_choices::{DestinationServer, TraceOptOut, UrlTemplate};
