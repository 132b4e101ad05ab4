//! What is on, in one word.

use crate::span_group::{SpanGroup, SpanGroups};

/// Telemetry is on: received context is adopted and passed on.
const ACTIVE: u32 = 1 << 16;
/// Spans are exported.
const TRACES: u32 = 1 << 17;
/// Metrics are recorded.
const METRICS: u32 = 1 << 18;

/// The switches of a handle, read once at the head of every instrumented request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switches(pub(super) u32);

impl Switches {
    pub(crate) const OFF: Switches = Switches(0);
    /// Off, after having been on.
    pub(super) const ENDED: Switches = Switches(1 << 19);

    pub(crate) fn new(groups: SpanGroups, traces: bool, metrics: bool) -> Self {
        Switches(groups.bits() | ACTIVE | if traces { TRACES } else { 0 } | if metrics { METRICS } else { 0 })
    }
    /// Wholly off: nothing is measured, headers stay untouched.
    #[inline]
    pub(crate) fn is_off(self) -> bool {
        self.0 & ACTIVE == 0
    }
    /// Off, after having been on: what a request brought before still goes on.
    #[inline]
    pub(crate) fn has_ended(self) -> bool {
        self == Self::ENDED
    }
    /// Whether spans of the group are made.
    #[inline]
    pub(crate) fn spans(self, group: SpanGroup) -> bool {
        self.0 & (group.bit() | TRACES) == group.bit() | TRACES
    }
    /// Whether spans are made at all.
    #[inline]
    pub(crate) fn traces(self) -> bool {
        self.0 & TRACES != 0
    }
    /// Whether the group's metrics are recorded.
    #[inline]
    pub(crate) fn metrics_of(self, group: SpanGroup) -> bool {
        self.0 & (group.bit() | METRICS) == group.bit() | METRICS
    }
    /// Whether metrics are recorded at all.
    #[inline]
    pub(crate) fn metrics(self) -> bool {
        self.0 & METRICS != 0
    }
    pub(crate) fn groups(self) -> SpanGroups {
        SpanGroups::from_bits(self.0)
    }
}
