#![doc = include_str!("../../docs/propagation.md")]

mod baggage;
mod carried;
mod headers;
mod propagator;
mod sidecar;
mod traceparent;
mod tracestate;

pub(crate) use carried::fresh_span_id;
pub(crate) use headers::{TraceHeaders, inject, inject_baggage};
pub use propagator::GymPropagator;
pub(crate) use sidecar::mark_new_root;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";

#[cfg(test)]
mod tests;
