//! `--observe`: rollouts round after round, and what they do to the servers, until the user ends it.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use nemo_gym_telemetry::job::Job;
use nemo_gym_telemetry::supervisor::MemoryProfiler;

use crate::drive::{self, Outcome};
use crate::memory;
use crate::receiver::Receiver;

/// A round is not begun sooner than this after the one before.
const REFRESH: Duration = Duration::from_secs(2);
/// So many rollouts are judged at the end; what is older is forgotten.
const KEPT: usize = 200;

/// What a round needs.
pub struct Observed<'a> {
    pub job: &'a Job,
    pub agent_url: &'a str,
    /// Rollouts a round.
    pub count: usize,
    pub concurrency: usize,
    pub profiler: &'a MemoryProfiler,
    pub receiver: Option<&'a Receiver>,
}

impl Observed<'_> {
    /// Runs and shows rounds until `told_to_end`, each to its end. Returns the last outcomes.
    pub async fn rounds(&self, told_to_end: impl Future<Output = ()>) -> Vec<Outcome> {
        let (begun, mut total, mut round) = (Instant::now(), 0, 0_u32);
        let mut outcomes = VecDeque::new();
        let mut tick = tokio::time::interval(REFRESH);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tokio::pin!(told_to_end);
        loop {
            tokio::select! {
                biased;
                () = &mut told_to_end => return outcomes.into(),
                _ = tick.tick() => {}
            }
            let done = drive::run(self.job, self.agent_url, total..total + self.count, self.concurrency).await;
            total += done.len();
            round += 1;
            self.show(&done, round, total, begun.elapsed());
            outcomes.extend(done);
            outcomes.drain(..outcomes.len().saturating_sub(KEPT));
            if let (Some(receiver), Some(oldest)) = (self.receiver, outcomes.iter().map(|o| o.begun).min()) {
                receiver.forget_before(oldest);
            }
        }
    }

    fn show(&self, done: &[Outcome], round: u32, total: usize, elapsed: Duration) {
        let mut stdout = std::io::stdout().lock();
        if stdout.is_terminal() {
            let _ = write!(stdout, "\x1b[2J\x1b[H");
        }
        let _ = writeln!(stdout, "round {round}, {total} rollouts in {} s; Ctrl-C ends it", elapsed.as_secs());
        drop(stdout);
        drive::summarise(done);
        if let Some(sample) = self.profiler.latest() {
            println!("\n{}", memory::table(&sample));
        }
    }
}
