//! Configuration: the `telemetry:` block, the environment, and what a supervisor hands its servers.

mod environment;
mod identity;
#[allow(dead_code)]
pub(crate) mod settings;

pub use environment::Environment;
pub use identity::{ServerIdentity, ServerType};
