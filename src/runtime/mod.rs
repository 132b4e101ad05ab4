#![doc = include_str!("../../docs/runtime.md")]

mod instruments;
mod lag;
mod monitor;
mod monitored;
mod process;
mod registry;
mod sampler;
mod stuck;

pub use monitor::{RuntimeMonitor, RuntimeMonitorBuilder};
pub(crate) use registry::{Monitors, ensure_started};
