//! Traces in the terminal.

use std::collections::{HashMap, HashSet};

use crate::span::Span;
use crate::verdict::{Rollout, Trace, Verdict};

const BAR: usize = 36;

/// At most `limit` rollouts: all in their order if there are no more, else the faulty and the slowest ones.
pub fn render(verdict: &Verdict, limit: usize, colours: bool) -> String {
    let mut text = String::new();
    let mut rollouts: Vec<&Rollout> = verdict.rollouts.iter().collect();
    if rollouts.len() > limit {
        rollouts.sort_by_key(|rollout| (rollout.faults.is_empty(), std::cmp::Reverse(rollout.outcome.duration)));
        rollouts.truncate(limit);
        if limit > 0 {
            text = format!("The {limit} of {} rollouts that are worst off:\n\n", verdict.rollouts.len());
        }
    } else {
        rollouts.sort_by_key(|rollout| rollout.traces.first().and_then(|trace| trace.first()).map(|span| span.start));
    }
    let paint = Paint { on: colours };
    for rollout in rollouts {
        for trace in &rollout.traces {
            text.push_str(&render_trace(rollout, trace, &paint));
        }
    }
    text
}

/// The start-up of the supervisor and its servers; nothing where its spans did not come here.
pub fn render_startup(spans: &[Span], colours: bool) -> String {
    let Some(root) = spans.iter().find(|span| span.name == "gym.startup") else { return String::new() };
    let mut trace: Trace = spans.iter().filter(|span| span.trace_id == root.trace_id).collect();
    trace.sort_by_key(|span| (span.start, span.end));
    let paint = Paint { on: colours };
    waterfall(&paint.bold("start-up"), &trace, "", &paint)
}

fn render_trace(rollout: &Rollout, trace: &Trace, paint: &Paint) -> String {
    let reward = match &rollout.outcome.reward {
        Ok(reward) => format!("reward {reward}"),
        Err(error) => paint.red(error),
    };
    let title = paint.bold(&format!("rollout {}", rollout.outcome.id));
    waterfall(&title, trace, &reward, paint)
}

fn waterfall(title: &str, trace: &Trace, remark: &str, paint: &Paint) -> String {
    let start = trace.iter().map(|span| span.start).min().unwrap_or(0);
    let total = trace.iter().map(|span| span.end).max().unwrap_or(0).saturating_sub(start);
    let trace_id = trace.first().map_or("", |span| &span.trace_id);
    let mut text = format!("{title}  trace {trace_id}  {} spans  {:.1} ms  {remark}\n", trace.len(), ms(total));
    let rows = rows(trace);
    let width = |text: &dyn Fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or(0);
    let (servers, names) = (width(&|row| row.span.server.chars().count()), width(&|row| row.name().chars().count()));
    for row in &rows {
        let Row { span, .. } = row;
        let bar = bar(span.start - start, span.end.saturating_sub(start), total);
        let failed = span.status == "ERROR";
        let mark = match failed {
            true => paint.red(&format!(" ✗ {}", span.text("error.type").unwrap_or("error"))),
            false => String::new(),
        };
        text.push_str(&format!(
            "  {} {:<names$} {:<8} {:>9.2} ms {:>9.2} ms {}{mark}\n",
            paint.of_server(&format!("{:<servers$}", span.server)),
            row.name(),
            span.kind,
            ms(span.start - start),
            ms(span.end.saturating_sub(span.start)),
            if failed { paint.red(&bar) } else { bar },
        ));
    }
    text.push('\n');
    text
}

/// A span and how it hangs below the others.
struct Row<'a> {
    branch: String,
    span: &'a Span,
}

impl Row<'_> {
    fn name(&self) -> String {
        format!("{}{}", self.branch, self.span.name)
    }
}

/// The spans in the order of a depth-first walk, children by their start. A span whose parent is missing is a root.
fn rows<'a>(trace: &Trace<'a>) -> Vec<Row<'a>> {
    let ids: HashSet<&str> = trace.iter().map(|span| span.span_id.as_str()).collect();
    let mut children: HashMap<Option<&str>, Vec<&Span>> = HashMap::new();
    for span in trace {
        let parent = span.parent_span_id.as_deref().filter(|parent| ids.contains(parent) && *parent != span.span_id);
        children.entry(parent).or_default().push(span);
    }
    let mut rows = Vec::with_capacity(trace.len());
    // On a stack, last child first: (span, its branch, what its children's branches begin with).
    let mut open: Vec<(&Span, String, String)> = Vec::new();
    for root in children.remove(&None).into_iter().flatten().rev() {
        open.push((root, String::new(), String::new()));
    }
    while let Some((span, branch, stem)) = open.pop() {
        let below = children.remove(&Some(span.span_id.as_str())).unwrap_or_default();
        let last = below.len().saturating_sub(1);
        for (index, child) in below.into_iter().enumerate().rev() {
            let (fork, next) = if index == last { ("└ ", "  ") } else { ("├ ", "│ ") };
            open.push((child, format!("{stem}{fork}"), format!("{stem}{next}")));
        }
        rows.push(Row { branch, span });
    }
    rows
}

/// Where the span lies in the trace's time.
fn bar(from: u64, to: u64, total: u64) -> String {
    let cell = |at: u64| (at as f64 / total.max(1) as f64 * BAR as f64) as usize;
    let from = cell(from).min(BAR - 1);
    let to = cell(to).clamp(from + 1, BAR);
    format!("{}{}{}", "·".repeat(from), "█".repeat(to - from), "·".repeat(BAR - to))
}

fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// Colours, where the terminal has them.
struct Paint {
    on: bool,
}

impl Paint {
    fn with(&self, code: u8, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        self.with(1, text)
    }

    fn red(&self, text: &str) -> String {
        self.with(31, text)
    }

    /// The same colour for the same server.
    fn of_server(&self, padded: &str) -> String {
        const COLOURS: [u8; 5] = [36, 33, 32, 35, 34];
        let sum: usize = padded.trim_end().bytes().map(usize::from).sum();
        self.with(COLOURS[sum % COLOURS.len()], padded)
    }
}
