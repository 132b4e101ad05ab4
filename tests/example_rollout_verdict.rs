//! The `rollout` example's judgement and its waterfalls, on traces that are broken in every way it looks for.

#![allow(dead_code)] // not all of the example's modules is used here

#[path = "../examples/rollout/drive.rs"]
mod drive;
#[path = "../examples/rollout/span.rs"]
mod span;
#[path = "../examples/rollout/verdict.rs"]
mod verdict;
#[path = "../examples/rollout/waterfall.rs"]
mod waterfall;

use std::time::Duration;

use drive::Outcome;
use serde_json::json;
use span::Span;

const SERVERS: [&str; 3] = ["agent", "model", "resources"];

fn outcome(id: &str) -> Outcome {
    Outcome {
        id: id.to_owned(),
        begun: std::time::SystemTime::UNIX_EPOCH,
        duration: Duration::from_millis(5),
        reward: Ok(1.0),
    }
}

/// A span of a trace: its id, its parent's, its server; and the rollout it names, if any.
fn span(trace: &str, id: &str, parent: Option<&str>, server: &str, rollout: Option<&str>) -> Span {
    let attributes = rollout.map(|rollout| ("nemo.gym.rollout.id".to_owned(), json!(rollout)));
    Span {
        trace_id: trace.to_owned(),
        span_id: id.to_owned(),
        parent_span_id: parent.map(str::to_owned),
        name: format!("POST /{id}"),
        kind: "SERVER",
        service: format!("nemo-gym/{server}"),
        server: server.to_owned(),
        start: 1_000_000 * id.len() as u64,
        end: 9_000_000,
        status: "UNSET",
        attributes: attributes.into_iter().collect(),
    }
}

/// A whole rollout.
fn whole(trace: &str, rollout: &str) -> Vec<Span> {
    vec![
        span(trace, "a", None, "agent", Some(rollout)),
        span(trace, "ab", Some("a"), "model", None),
        span(trace, "ac", Some("a"), "resources", None),
    ]
}

fn faults(outcomes: &[Outcome], spans: &[Span]) -> (bool, String) {
    let verdict = verdict::of(outcomes, spans, &SERVERS);
    (verdict.is_whole(), verdict.report())
}

#[test]
fn whole_rollouts_are_told_from_broken_ones() {
    let one = [outcome("0-0")];
    let two = [outcome("0-0"), outcome("1-0")];
    assert!(faults(&one, &whole("t0", "0-0")).0);
    assert!(faults(&two, &[whole("t0", "0-0"), whole("t1", "1-0")].concat()).0);
    assert!(faults(&[], &[]).0);

    let without = |index: usize| {
        let mut spans = whole("t0", "0-0");
        spans.remove(index);
        spans
    };
    let also = |span: Span| [whole("t0", "0-0"), vec![span]].concat();
    let broken = [
        (&one[..], vec![], "0 traces instead of one"),
        (&one, without(1), "no span of model"),
        (&one, without(2), "no span of resources"),
        (&one, also(span("t0", "b", Some("gone"), "model", None)), "the parent of POST /b is missing"),
        (&one, also(span("t0", "b", None, "model", None)), "2 roots"),
        (&one, [whole("t0", "0-0"), whole("t1", "0-0")].concat(), "2 traces instead of one"),
        (&one, also(span("t9", "b", None, "model", None)), "trace t9 belongs to no rollout"),
        (&one, also(span("t0", "b", Some("a"), "model", Some("1-0"))), "shares its trace"),
        (&two, whole("t0", "0-0"), "rollout 1-0: 0 traces"),
    ];
    for (outcomes, spans, fault) in broken {
        let (is_whole, report) = faults(outcomes, &spans);
        assert!(!is_whole && report.contains(fault), "{fault}: {report}");
    }
}

#[test]
fn spans_beside_the_rollouts_do_no_harm() {
    // The driver's own, and the start-up of a server: traces without a request.
    let mut beside = span("t8", "j", None, "", None);
    beside.kind = "INTERNAL";
    assert!(faults(&[outcome("0-0")], &[whole("t0", "0-0"), vec![beside]].concat()).0);
}

#[test]
fn a_waterfall_shows_the_tree_and_marks_errors() {
    let mut spans = whole("t0", "0-0");
    spans.push(span("t0", "abcd", Some("ab"), "resources", None));
    spans[1].status = "ERROR";
    spans[1].attributes.insert("error.type".to_owned(), json!("503"));
    let outcomes = [outcome("0-0")];
    let verdict = verdict::of(&outcomes, &spans, &SERVERS);
    let text = waterfall::render(&verdict, 20, false);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("rollout 0-0  trace t0  4 spans  8.0 ms  reward 1"), "{text}");
    let names = ["POST /a ", "├ POST /ab ", "│ └ POST /abcd ", "└ POST /ac "];
    for (line, name) in lines[1..].iter().zip(names) {
        assert!(line.contains(name), "{line}");
        assert_eq!(line.contains("✗ 503"), name.contains("/ab "), "{line}");
    }
    assert!(!text.contains('\x1b') && waterfall::render(&verdict, 20, true).contains("\x1b[31m"));
    assert_eq!(waterfall::render(&verdict, 0, false), "");
}

#[test]
fn odd_traces_are_shown_all_the_same() {
    // A cycle, a span that is its own parent, one that ends before it starts, and one far from the rest.
    let mut spans = vec![
        span("t0", "a", Some("bb"), "agent", Some("0-0")),
        span("t0", "bb", Some("a"), "model", None),
        span("t0", "ccc", Some("ccc"), "resources", None),
        span("t0", "dddd", None, "resources", None),
    ];
    spans[2].end = 0;
    spans[3].start = u64::MAX - 5;
    spans[3].end = u64::MAX;
    let outcomes = [outcome("0-0")];
    let verdict = verdict::of(&outcomes, &spans, &SERVERS);
    assert!(waterfall::render(&verdict, 20, true).contains("rollout 0-0"));
}
