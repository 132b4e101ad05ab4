#![doc = include_str!("../../docs/supervisor.md")]

mod active;
pub mod memory;
mod startup;

pub use active::ActiveServer;
pub(crate) use active::ActiveServers;
pub use memory::{MemoryProfiler, MemoryProfilerBuilder, MemorySample};
pub use startup::{StartingServer, SupervisorStartup};
