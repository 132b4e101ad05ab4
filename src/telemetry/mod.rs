//! The telemetry handle: made once per process by [`init_telemetry`], or owned, from a builder.
#![doc = ""]
#![doc = include_str!("../../docs/lifecycle.md")]
#![doc = ""]
#![doc = include_str!("../../docs/exporters.md")]

pub(crate) mod accounting;
mod builder;
mod callbacks;
pub(crate) mod console;
mod handle;
pub mod logs;
#[cfg_attr(not(any(feature = "otlp-grpc", feature = "otlp-http")), path = "otlp_absent.rs")]
mod otlp;
mod providers;
pub(crate) mod resource;
pub mod serving;
mod shutdown;
mod switches;

pub use accounting::{DeliveryReport, SignalDelivery};
pub use builder::{TelemetryBuilder, init_telemetry};
pub use serving::{DEFAULT_GRACE, Serve, serve};
pub use shutdown::{DEFAULT_SHUTDOWN_TIMEOUT, ShutdownGuard, ShutdownReport, shutdown_telemetry};

pub(crate) use handle::Scope;
pub use handle::{Telemetry, get_telemetry, is_metrics_exporter_active};
pub(crate) use switches::Switches;
