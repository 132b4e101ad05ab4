//! Tells the operator about losses, on stderr: whoever loses telemetry cannot count on telemetry to hear of it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry::Context;

use super::delivery::{DeliveryReport, SignalDelivery};
use super::ledger::LossLedger;
use crate::diagnostics::Pace;

/// At most one line about losses in this time, besides the one at shutdown.
const PERIOD: Duration = Duration::from_secs(10);

type Say = Box<dyn FnMut(&str) + Send>;

/// A small thread that looks at the ledger every ten seconds, and at shutdown.
#[derive(Debug)]
pub(crate) struct LossReporter {
    shared: Arc<Shared>,
}

struct Shared {
    ledger: LossLedger,
    stopped: Mutex<bool>,
    stop: Condvar,
    teller: Mutex<Teller>,
}

/// What has been said, and what there is to say.
struct Teller {
    said: DeliveryReport,
    metrics: Option<MetricWatch>,
    pace: Arc<Pace>,
    period: Duration,
    say: Say,
}

/// Notices that metrics are no longer collected: the SDK's reader thread ends without a word when a
/// callback panics, and waits for ever for one that blocks.
struct MetricWatch {
    patience: Duration,
    started: Instant,
    stalled: bool,
}

impl LossReporter {
    /// Starts the thread. `metric_interval`: how often metrics should be exported, when they are.
    /// `pace` is shared with everybody who speaks of exports.
    pub(crate) fn start(ledger: &LossLedger, metric_interval: Option<Duration>, pace: Arc<Pace>) -> Self {
        let say = |line: &str| {
            // Not `eprintln!`, which panics where stderr is closed.
            let _ = writeln!(std::io::stderr(), "nemo_gym_telemetry: {line}");
        };
        Self::start_with(ledger, metric_interval, PERIOD, pace, Box::new(say))
    }

    fn start_with(
        ledger: &LossLedger,
        metric_interval: Option<Duration>,
        period: Duration,
        pace: Arc<Pace>,
        say: Say,
    ) -> Self {
        let metrics = metric_interval.map(|interval| MetricWatch {
            // An export may take its whole timeout before the next collection begins.
            patience: interval.saturating_mul(3).saturating_add(period.saturating_mul(3)),
            started: Instant::now(),
            stalled: false,
        });
        let shared = Arc::new(Shared {
            ledger: ledger.clone(),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
            teller: Mutex::new(Teller { said: DeliveryReport::default(), metrics, pace, period, say }),
        });
        let thread = Arc::clone(&shared);
        let spawned = thread::Builder::new().name("otel-losses".to_owned()).spawn(move || {
            let _suppressed = Context::enter_telemetry_suppressed_scope();
            while !thread.stopped_within(period) {
                thread.tell(false);
            }
        });
        if let Err(error) = spawned {
            crate::diagnostics::warn(&format!("thread otel-losses could not be started ({})", error.kind()));
        }
        Self { shared }
    }

    /// Ends the thread and says what was lost in total, if anything was.
    pub(crate) fn finish(&self) {
        if !self.shared.set_stopped() {
            self.shared.tell(true);
        }
    }
}

impl Drop for LossReporter {
    fn drop(&mut self) {
        self.shared.set_stopped();
    }
}

impl Shared {
    /// Whether it was stopped already.
    fn set_stopped(&self) -> bool {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop.notify_all();
        std::mem::replace(&mut *stopped, true)
    }

    fn stopped_within(&self, period: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let (stopped, _) =
            self.stop.wait_timeout_while(stopped, period, |stopped| !*stopped).unwrap_or_else(PoisonError::into_inner);
        *stopped
    }

    fn tell(&self, last: bool) {
        let now = self.ledger.snapshot();
        let mut teller = self.teller.lock().unwrap_or_else(PoisonError::into_inner);
        if last {
            if !now.is_complete() {
                (teller.say)(&format!("telemetry was lost. {now}"));
            }
            return;
        }
        match news(&teller.said, &now) {
            None => teller.said = now,
            Some(line) if teller.pace.may_speak(teller.period) => {
                (teller.say)(&line);
                teller.said = now;
            }
            // An exporter has just spoken; what is new stays new.
            Some(_) => {}
        }
        let collected = self.ledger.last_collection();
        if let Some(line) = teller.metrics.as_mut().and_then(|watch| watch.news(collected)) {
            (teller.say)(&line);
        }
    }
}

/// What was lost between two readings.
fn news(before: &DeliveryReport, now: &DeliveryReport) -> Option<String> {
    let signals = [
        ("spans", &before.spans, &now.spans),
        ("log records", &before.log_records, &now.log_records),
        ("metric data points", &before.metric_data_points, &now.metric_data_points),
    ];
    let lost: Vec<String> = signals
        .into_iter()
        .filter_map(|(name, before, now)| {
            let fresh = fresh_losses(before, now);
            let reasons: Vec<String> = fresh.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            (!fresh.is_empty()).then(|| format!("{} {name} ({})", fresh.values().sum::<u64>(), reasons.join(", ")))
        })
        .collect();
    (!lost.is_empty()).then(|| format!("lost since the last report: {}", lost.join("; ")))
}

fn fresh_losses<'a>(before: &SignalDelivery, now: &'a SignalDelivery) -> BTreeMap<&'a str, u64> {
    now.lost
        .iter()
        .map(|(reason, count)| (reason.as_str(), count - before.lost.get(reason).copied().unwrap_or_default()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

impl MetricWatch {
    fn news(&mut self, collected: Option<Instant>) -> Option<String> {
        let silence = collected.unwrap_or(self.started).elapsed();
        let stalled = silence > self.patience;
        match (std::mem::replace(&mut self.stalled, stalled), stalled) {
            (false, true) => Some(format!(
                "no metrics have been collected for {} s: a callback of an observable instrument blocks or has panicked",
                silence.as_secs()
            )),
            (true, false) => Some("metrics are being collected again".to_owned()),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::ledger::Signal;
    use super::*;

    fn reporter(ledger: &LossLedger, interval: Option<Duration>) -> (LossReporter, mpsc::Receiver<String>) {
        let (sender, lines) = mpsc::channel();
        let say: Say = Box::new(move |line| drop(sender.send(line.to_owned())));
        (LossReporter::start_with(ledger, interval, Duration::from_millis(20), Arc::default(), say), lines)
    }

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn losses_are_told_once_and_in_total_at_the_end() {
        let ledger = LossLedger::new();
        let (reporter, lines) = reporter(&ledger, None);
        ledger.signal(Signal::Spans).count_queue_full();
        assert_eq!(lines.recv_timeout(SOON).unwrap(), "lost since the last report: 1 spans (queue_full 1)");
        ledger.signal(Signal::Spans).count_queue_full();
        ledger.signal(Signal::LogRecords).count_already_shutdown();
        let mut told = String::new();
        while !told.contains("log records") {
            told += &lines.recv_timeout(SOON).unwrap();
        }
        assert!(
            told.contains("1 spans (queue_full 1)") && told.contains("1 log records (already_shutdown 1)"),
            "{told}"
        );
        reporter.finish();
        reporter.finish();
        drop(reporter);
        let rest: Vec<_> = lines.iter().collect();
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert!(rest[0].contains("spans: 0 exported, 2 lost (queue_full 2)"), "{rest:?}");
    }

    #[test]
    fn nothing_lost_nothing_said() {
        let ledger = LossLedger::new();
        let (reporter, lines) = reporter(&ledger, None);
        reporter.finish();
        drop(reporter);
        assert_eq!(lines.iter().count(), 0);
    }

    #[test]
    fn a_stalled_metric_reader_is_told_once_and_its_return_too() {
        let ledger = LossLedger::new();
        let (_reporter, lines) = reporter(&ledger, Some(Duration::from_millis(10)));
        assert!(lines.recv_timeout(SOON).unwrap().starts_with("no metrics have been collected"));
        ledger.note_collection();
        assert_eq!(lines.recv_timeout(SOON).unwrap(), "metrics are being collected again");
    }
}
