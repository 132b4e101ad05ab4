//! Span groups: which kinds of spans a process makes.
//!
//! A group switches spans (and the `gym.*` metrics of the same group) on and off. It never
//! switches propagation: with a group off, no span is made and the caller's context still passes.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// One kind of span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum SpanGroup {
    /// `gym.job`: the driver's whole run.
    Job = 0,
    /// SERVER spans of inbound HTTP requests.
    Server = 1,
    /// CLIENT spans of outbound HTTP requests.
    HttpClient = 2,
    /// `gym.rollout`, made by an agent's `/run`.
    Rollout = 3,
    /// `gym.verify`, made by a resources server's `/verify`.
    Verify = 4,
    /// `gym.agent.responses`, made by an agent's `/v1/responses`.
    Agent = 5,
    /// `gym.model.*`, made by a model server's generation routes.
    ModelCall = 6,
    /// `gym.sandbox.*`.
    Sandbox = 7,
    /// `gym.startup*` and `gym.server.startup*`.
    Startup = 8,
}

/// Every span group, in the order of their bits.
pub const ALL_GROUPS: [SpanGroup; 9] = [
    SpanGroup::Job,
    SpanGroup::Server,
    SpanGroup::HttpClient,
    SpanGroup::Rollout,
    SpanGroup::Verify,
    SpanGroup::Agent,
    SpanGroup::ModelCall,
    SpanGroup::Sandbox,
    SpanGroup::Startup,
];

/// The groups whose spans carry one rollout's trace from process to process.
pub const CROSS_PROCESS_SPINE: SpanGroups = SpanGroups::of(&[SpanGroup::Server, SpanGroup::HttpClient]);

impl SpanGroup {
    /// The group's name in a specification such as `NEMO_GYM_OTEL_SPAN_GROUPS`.
    pub const fn as_str(self) -> &'static str {
        match self {
            SpanGroup::Job => "job",
            SpanGroup::Server => "server",
            SpanGroup::HttpClient => "http_client",
            SpanGroup::Rollout => "rollout",
            SpanGroup::Verify => "verify",
            SpanGroup::Agent => "agent",
            SpanGroup::ModelCall => "model_call",
            SpanGroup::Sandbox => "sandbox",
            SpanGroup::Startup => "startup",
        }
    }

    pub(crate) const fn bit(self) -> u32 {
        1 << self as u8
    }
}

impl fmt::Display for SpanGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of span groups.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SpanGroups(u32);

impl SpanGroups {
    /// No group.
    pub const NONE: SpanGroups = SpanGroups(0);
    /// Preset `all`.
    pub const ALL: SpanGroups = SpanGroups::of(&ALL_GROUPS);
    /// Preset `default`: job, startup, server, http_client, rollout.
    pub const DEFAULT: SpanGroups = SpanGroups::of(&[
        SpanGroup::Job,
        SpanGroup::Startup,
        SpanGroup::Server,
        SpanGroup::HttpClient,
        SpanGroup::Rollout,
    ]);
    /// Preset `per_rollout`: everything inside one rollout.
    pub const PER_ROLLOUT: SpanGroups = SpanGroups::of(&[
        SpanGroup::Server,
        SpanGroup::HttpClient,
        SpanGroup::Rollout,
        SpanGroup::Verify,
        SpanGroup::Agent,
        SpanGroup::ModelCall,
    ]);

    /// The set of the given groups.
    pub const fn of(groups: &[SpanGroup]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < groups.len() {
            bits |= groups[i].bit();
            i += 1;
        }
        SpanGroups(bits)
    }

    /// Resolves a specification: names and presets (`default`, `per_rollout`, `all`) separated by
    /// commas, in any case, blanks ignored. Returns the union and the entries that mean nothing,
    /// lowercased, in the order they stand. The empty specification is the empty set.
    pub fn resolve(spec: &str) -> (SpanGroups, Vec<String>) {
        let mut set = SpanGroups::NONE;
        let mut unknown = Vec::new();
        for entry in spec.split(',').map(|e| e.trim().to_lowercase()).filter(|e| !e.is_empty()) {
            match Self::named(&entry) {
                Some(groups) => set.0 |= groups.0,
                None if unknown.contains(&entry) => {}
                None => unknown.push(entry),
            }
        }
        (set, unknown)
    }

    fn named(name: &str) -> Option<SpanGroups> {
        match name {
            "default" => Some(Self::DEFAULT),
            "per_rollout" => Some(Self::PER_ROLLOUT),
            "all" => Some(Self::ALL),
            _ => ALL_GROUPS.iter().find(|g| g.as_str() == name).map(|g| SpanGroups(g.bit())),
        }
    }

    /// Whether the group is in the set.
    pub const fn contains(self, group: SpanGroup) -> bool {
        self.0 & group.bit() != 0
    }

    /// Whether no group is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The groups of the set.
    pub fn iter(self) -> impl Iterator<Item = SpanGroup> {
        ALL_GROUPS.into_iter().filter(move |g| self.contains(*g))
    }

    /// The groups among the given bits; other bits are ignored.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        SpanGroups(bits & Self::ALL.0)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for SpanGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(SpanGroup::as_str)).finish()
    }
}

/// The groups of the process-wide handle; 0 before `init_telemetry` and after shutdown.
static PROCESS_GROUPS: AtomicU32 = AtomicU32::new(0);

/// Whether the process-wide telemetry makes spans of this group: one relaxed atomic load.
/// Every group is off before `init_telemetry` and after shutdown.
#[inline]
pub fn is_span_group_enabled(group: SpanGroup) -> bool {
    PROCESS_GROUPS.load(Relaxed) & group.bit() != 0
}

pub(crate) fn set_process_groups(groups: SpanGroups) {
    PROCESS_GROUPS.store(groups.0, Relaxed);
}
