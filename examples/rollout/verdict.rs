//! Whether each rollout is one whole trace.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::drive::Outcome;
use crate::span::Span;

/// Spans of one trace, by start.
pub type Trace<'a> = Vec<&'a Span>;

/// A rollout, its trace, and what is wrong with it.
#[derive(Debug)]
pub struct Rollout<'a> {
    pub outcome: &'a Outcome,
    pub traces: Vec<Trace<'a>>,
    pub faults: Vec<String>,
}

/// The verdict on all rollouts.
#[derive(Debug)]
pub struct Verdict<'a> {
    pub rollouts: Vec<Rollout<'a>>,
    /// Traces that servers made requests in, and that belong to no rollout: pieces broken off one.
    strays: Vec<Trace<'a>>,
    servers: &'a [&'a str],
}

/// Sorts spans by trace, traces by rollout, and judges them.
pub fn of<'a>(outcomes: &'a [Outcome], spans: &'a [Span], servers: &'a [&'a str]) -> Verdict<'a> {
    let mut traces: BTreeMap<&str, Trace> = BTreeMap::new();
    for span in spans {
        traces.entry(&span.trace_id).or_default().push(span);
    }
    let mut by_rollout: HashMap<&str, Vec<Trace>> = HashMap::new();
    let mut strays = Vec::new();
    for mut trace in traces.into_values() {
        trace.sort_by_key(|span| (span.start, span.end));
        let ids: BTreeSet<&str> = trace.iter().filter_map(|span| span.text("nemo.gym.rollout.id")).collect();
        if ids.is_empty() && trace.iter().any(|span| span.kind == "SERVER") {
            strays.push(trace.clone());
        }
        for id in ids {
            by_rollout.entry(id).or_default().push(trace.clone());
        }
    }
    let rollouts = outcomes.iter().map(|outcome| {
        let traces = by_rollout.remove(outcome.id.as_str()).unwrap_or_default();
        let faults = faults(&traces, servers);
        Rollout { outcome, traces, faults }
    });
    Verdict { rollouts: rollouts.collect(), strays, servers }
}

fn faults(traces: &[Trace], servers: &[&str]) -> Vec<String> {
    let [trace] = traces else { return vec![format!("{} traces instead of one", traces.len())] };
    let ids: HashSet<&str> = trace.iter().map(|span| span.span_id.as_str()).collect();
    let orphans =
        trace.iter().filter(|span| span.parent_span_id.as_deref().is_some_and(|parent| !ids.contains(parent)));
    let roots = trace.iter().filter(|span| span.parent_span_id.is_none()).count();
    let absent = servers.iter().filter(|server| !trace.iter().any(|span| span.server == **server));
    let others: BTreeSet<&str> = trace.iter().filter_map(|span| span.text("nemo.gym.rollout.id")).collect();

    let mut faults: Vec<String> = orphans.map(|span| format!("the parent of {} is missing", span.name)).collect();
    faults.extend(absent.map(|server| format!("no span of {server}")));
    if roots > 1 {
        faults.push(format!("{roots} roots"));
    }
    if others.len() > 1 {
        faults.push("shares its trace with another rollout".to_owned());
    }
    faults
}

impl Verdict<'_> {
    /// Whether every rollout is one whole trace, and no piece lies about.
    pub fn is_whole(&self) -> bool {
        self.strays.is_empty() && self.rollouts.iter().all(|rollout| rollout.faults.is_empty())
    }

    /// The verdict in words.
    pub fn report(&self) -> String {
        let mut lines = Vec::new();
        for rollout in self.rollouts.iter().filter(|rollout| !rollout.faults.is_empty()) {
            lines.push(format!("rollout {}: {}", rollout.outcome.id, rollout.faults.join("; ")));
        }
        for stray in &self.strays {
            let names: Vec<&str> = stray.iter().map(|span| span.name.as_str()).take(3).collect();
            let trace_id = stray.first().map_or("", |span| &span.trace_id);
            lines.push(format!("trace {trace_id} belongs to no rollout: {}", names.join(", ")));
        }
        let spans: usize = self.rollouts.iter().flat_map(|rollout| &rollout.traces).map(Vec::len).sum();
        let whole = self.rollouts.iter().filter(|rollout| rollout.faults.is_empty()).count();
        let (total, servers) = (self.rollouts.len(), self.servers.join(", "));
        lines.push(format!("{whole} of {total} rollouts are one trace each across {servers} ({spans} spans)"));
        if spans == 0 && total > 0 {
            lines.push(
                "No span arrived: is telemetry switched off in the environment (NEMO_GYM_OTEL_*, OTEL_*)?".into(),
            );
        }
        lines.join("\n")
    }
}
