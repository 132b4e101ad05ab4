//! What the crate has to say to its operator.
//!
//! Warnings often come up before a `tracing` subscriber exists; they must be heard all the same, so
//! without one they go to stderr. Messages never hold values that may be secret: that is the
//! caller's duty, who names the variable or field instead.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Says `message` now.
pub(crate) fn warn(message: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!(target: "nemo_gym_telemetry", "{message}");
    } else {
        // Not `eprintln!`, which panics where stderr is closed.
        let _ = writeln!(std::io::stderr(), "nemo_gym_telemetry: WARNING: {message}");
    }
}

/// Says `message` unless this process has said the very same before. The memory of what was said is
/// bounded: past 256 different messages, repeats are said again.
pub(crate) fn warn_once(message: &str) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let fresh = {
        let mut said = SAID.lock().unwrap_or_else(|e| e.into_inner());
        let said = said.get_or_insert_default();
        if said.len() >= 256 { !said.contains(message) } else { said.insert(message.to_owned()) }
    };
    if fresh {
        warn(message);
    }
}

/// Lets something through at most once a period.
#[derive(Debug)]
pub(crate) struct RateLimit {
    period: Duration,
    last: Mutex<Option<Instant>>,
}

impl RateLimit {
    pub(crate) const fn new(period: Duration) -> Self {
        Self { period, last: Mutex::new(None) }
    }

    pub(crate) fn allow(&self) -> bool {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        match *last {
            Some(then) if now.duration_since(then) < self.period => false,
            _ => {
                *last = Some(now);
                true
            }
        }
    }
}

/// Keeps several voices from saying more than one thing in a while between them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    quiet_until: Mutex<Option<Instant>>,
}

impl Pace {
    /// Whether something may be said now; if so, nothing more for as long as `quiet`.
    pub(crate) fn may_speak(&self, quiet: Duration) -> bool {
        let now = Instant::now();
        let mut until = self.quiet_until.lock().unwrap_or_else(|e| e.into_inner());
        if until.is_some_and(|until| now < until) {
            return false;
        }
        *until = now.checked_add(quiet);
        true
    }
}
