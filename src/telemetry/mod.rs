//! The telemetry handle: made once per process by [`init_telemetry`], or owned, from a builder.

mod builder;
mod handle;

pub use builder::{TelemetryBuilder, init_telemetry};

pub(crate) use handle::Scope;
pub use handle::{Telemetry, get_telemetry};
