//! The telemetry handle: made once per process by [`init_telemetry`], or owned, from a builder.

#[allow(dead_code, unused_imports)]
pub(crate) mod accounting;
mod builder;
#[allow(dead_code, unused_imports)]
pub(crate) mod console;
mod handle;
#[allow(dead_code)]
mod logs;
#[allow(dead_code)]
pub(crate) mod resource;

pub use accounting::{DeliveryReport, SignalDelivery};
pub use builder::{TelemetryBuilder, init_telemetry};

pub(crate) use handle::{Scope, Switches};
pub use handle::{Telemetry, get_telemetry};
