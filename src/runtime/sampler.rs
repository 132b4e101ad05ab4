//! The thread that looks at the workers, so that a stuck one is found while it is stuck, even if all of them are.
//!
//! It reads two atomics per worker and touches nothing in the runtime.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registry::{Live, Registry};
use super::stuck::Stuck;
use crate::diagnostics;

/// Shortest time between two warnings of one telemetry handle.
const WARNING_PERIOD: Duration = Duration::from_secs(60);

/// Starts the thread if it does not run. Without it, workers are looked at only when metrics are collected.
pub(super) fn ensure_running(registry: &Arc<Registry>, live: &mut Live) {
    if live.sampling {
        return;
    }
    let registry = registry.clone();
    match std::thread::Builder::new().name("gym-rt-sampler".to_owned()).spawn(move || run(&registry)) {
        Ok(_) => live.sampling = true,
        Err(error) => diagnostics::warn_once(&format!("no thread for the sampler of stuck workers: {error}")),
    }
}

/// Ends when no runtime is left to look at.
fn run(registry: &Registry) {
    let mut warnings = Warnings::default();
    let mut live = registry.live();
    while !live.runtimes.is_empty() {
        let mut period = Duration::MAX;
        let mut warning = None;
        for runtime in &live.runtimes {
            let (next, news) = runtime.look();
            period = period.min(next);
            if let Some(stuck) = news {
                let text = warnings.text(|| {
                    let workers = runtime.metrics.num_workers();
                    text(runtime.name.as_deref(), stuck, workers, runtime.settings.stuck_threshold)
                });
                warning = warning.or(text);
            }
        }
        if let Some(text) = warning {
            // Never under the lock: what listens to warnings may be slow, or end up here again.
            drop(live);
            diagnostics::warn(&text);
            live = registry.live();
        } else {
            live = registry.wait(live, period);
        }
    }
    live.sampling = false;
}

fn text(name: Option<&str>, stuck: Stuck, workers: usize, threshold: Duration) -> String {
    let name = name.map(|name| format!(" {name:?}")).unwrap_or_default();
    format!(
        "tokio runtime{name}: {} of {workers} workers stuck, no progress for {} ms (threshold {} ms). Blocking code, or \
         a long computation, runs in an async task: move it to spawn_blocking",
        stuck.workers,
        stuck.age.as_millis(),
        threshold.as_millis(),
    )
}

/// Lets one warning through per period and counts the rest.
#[derive(Default)]
struct Warnings {
    last: Option<Instant>,
    withheld: u64,
}

impl Warnings {
    fn text(&mut self, text: impl FnOnce() -> String) -> Option<String> {
        if self.last.is_some_and(|last| last.elapsed() < WARNING_PERIOD) {
            self.withheld += 1;
            return None;
        }
        self.last = Some(Instant::now());
        let mut text = text();
        match std::mem::take(&mut self.withheld) {
            0 => {}
            n => text.push_str(&format!(" ({n} more since the last such message)")),
        }
        Some(text)
    }
}
