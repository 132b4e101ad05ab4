//! The end of telemetry: everything that is pending goes out, within one bound for all signals.
//!
//! The SDK gives each provider its own timeout, and some of its parts ignore it. Here one deadline holds:
//! exporters stop sending shortly before it ([`otlp::Shared::close_at`]), the providers are shut down on
//! threads of our own, and nobody waits for those longer than that. So neither a collector that never
//! answers nor the application's runtime (busy, single-threaded, gone) can hold up the process.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::accounting::{DeliveryReport, LossLedger};
use super::handle::Telemetry;
use super::providers::Providers;

/// How long a shutdown may take unless the caller says otherwise, for all signals together.
pub const DEFAULT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How a shutdown went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The timeout passed before everything was sent.
    pub timed_out: bool,
    /// What became of everything since the start of telemetry: per signal what was exported, and what was
    /// lost for which reason.
    pub delivery: DeliveryReport,
}

/// What a telemetry handle has to end, and how far that is.
#[derive(Debug)]
pub(super) struct Lifecycle {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    Running(Box<Providers>),
    Ending,
    Ended(ShutdownReport),
}

impl Lifecycle {
    pub(super) fn new(providers: Providers) -> Self {
        Self { state: Mutex::new(State::Running(Box::new(providers))), done: Condvar::new() }
    }

    /// Ends everything within `timeout`. A second call sends nothing: it waits for the first, within its
    /// own timeout, and returns the first's report.
    pub(super) fn end(&self, timeout: Duration) -> ShutdownReport {
        let deadline = deadline_after(timeout);
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut *state, State::Ending) {
                State::Running(providers) => {
                    drop(state);
                    let report = end_providers(*providers, timeout, deadline);
                    *self.lock() = State::Ended(report.clone());
                    self.done.notify_all();
                    return report;
                }
                State::Ended(report) => {
                    *state = State::Ended(report.clone());
                    return report;
                }
                State::Ending => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return ShutdownReport { timed_out: true, ..ShutdownReport::default() };
                    }
                    state = self.done.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
                }
            }
        }
    }

    /// The providers to end; none once that has begun.
    pub(super) fn own_providers(&self) -> (Option<SdkTracerProvider>, Option<SdkMeterProvider>) {
        match &*self.lock() {
            State::Running(providers) => (providers.tracer.clone(), providers.meter.clone()),
            State::Ending | State::Ended(_) => (None, None),
        }
    }

    /// Whether nothing is left to end.
    pub(super) fn is_over(&self) -> bool {
        !matches!(&*self.lock(), State::Running(_))
    }

    /// Sends what is pending and goes on; whether all of it went out within `timeout`.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let deadline = deadline_after(timeout);
        let (tracer, meter, logger) = match &*self.lock() {
            State::Running(providers) => (providers.tracer.clone(), providers.meter.clone(), providers.logger.clone()),
            State::Ending | State::Ended(_) => return true,
        };
        let mut tasks = Tasks::default();
        if let Some(tracer) = tracer {
            tasks.start("gym-flush-traces", move || tracer.force_flush().is_ok());
        }
        if let Some(logger) = logger {
            tasks.start("gym-flush-logs", move || logger.force_flush().is_ok());
        }
        if let Some(meter) = meter {
            tasks.start("gym-flush-metrics", move || meter.force_flush().is_ok());
        }
        tasks.wait(deadline) && tasks.all_good
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Traces and logs first, so that the last metrics can tell how that went; metrics at half time at the latest.
fn end_providers(providers: Providers, timeout: Duration, deadline: Instant) -> ShutdownReport {
    let Providers { tracer, meter, logger, otlp, ledger, reporter } = providers;
    // Queues give up a little earlier, then exporters, so that what is lost is counted before the report
    // is made.
    let margin = (timeout / 20).min(Duration::from_millis(200));
    let queues_until = deadline.checked_sub(margin).unwrap_or(deadline);
    if let Some(otlp) = &otlp {
        otlp.close_at(deadline.checked_sub(margin / 2).unwrap_or(deadline));
    }
    let mut tasks = Tasks::default();
    if let Some(tracer) = tracer {
        tasks.start("gym-end-traces", move || tracer.shutdown_with_timeout(left_until(queues_until)).is_ok());
    }
    if let Some(logger) = logger {
        tasks.start("gym-end-logs", move || logger.shutdown_with_timeout(left_until(queues_until)).is_ok());
    }
    if let Some(meter) = meter {
        let half_time = deadline.checked_sub(timeout / 2).unwrap_or(deadline);
        tasks.wait(half_time);
        tasks.start("gym-end-metrics", move || meter.shutdown_with_timeout(left_until(queues_until)).is_ok());
    }
    let ended = tasks.wait(deadline);
    // The SDK's metric reader returns after 5 s whatever its timeout; its exporter may still be sending.
    while is_exporting(&ledger) && Instant::now() < queues_until {
        thread::sleep(Duration::from_millis(5));
    }
    let timed_out = !ended || Instant::now() >= queues_until;
    if let Some(otlp) = otlp {
        otlp.stop(deadline);
    }
    ledger.close();
    if let Some(reporter) = reporter {
        // On a thread: stderr may be a pipe that nobody empties.
        let mut last_words = Tasks::default();
        last_words.start("gym-end-report", move || {
            reporter.finish();
            true
        });
        last_words.wait(deadline.max(Instant::now() + Duration::from_millis(100)));
    }
    ShutdownReport { timed_out, delivery: ledger.snapshot() }
}

fn is_exporting(ledger: &LossLedger) -> bool {
    let delivery = ledger.snapshot();
    [delivery.spans, delivery.log_records, delivery.metric_data_points].iter().any(|signal| signal.in_flight > 0)
}

/// Work on threads of its own, waited for with a deadline.
struct Tasks {
    sender: mpsc::Sender<bool>,
    results: mpsc::Receiver<bool>,
    running: usize,
    all_good: bool,
    all_started: bool,
}

impl Default for Tasks {
    fn default() -> Self {
        let (sender, results) = mpsc::channel();
        Self { sender, results, running: 0, all_good: true, all_started: true }
    }
}

impl Tasks {
    fn start(&mut self, name: &str, work: impl FnOnce() -> bool + Send + 'static) {
        let sender = self.sender.clone();
        // A thread that cannot start leaves its work undone; its provider's `Drop` is the last resort.
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _suppressed = opentelemetry::Context::enter_telemetry_suppressed_scope();
            let _ = sender.send(work());
        });
        match spawned {
            Ok(_) => self.running += 1,
            Err(_) => self.all_started = false,
        }
    }

    /// Waits until all have returned or the deadline has passed; whether all have returned.
    fn wait(&mut self, deadline: Instant) -> bool {
        while self.running > 0 {
            match self.results.recv_timeout(left_until(deadline)) {
                Ok(good) => {
                    self.running -= 1;
                    self.all_good &= good;
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
        self.all_started
    }
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The instant after `duration`, or one that no process lives to see.
fn deadline_after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}

/// Shuts telemetry down when it is dropped: at the end of `main`, early or not, and when `main` panics.
///
/// Dropping waits up to the timeout (default 5 s), on the dropping thread but never for the application's
/// runtime. Made by [`Telemetry::shutdown_guard`].
#[must_use = "telemetry is shut down when the guard is dropped, which is at once unless it is bound to a name"]
pub struct ShutdownGuard {
    telemetry: Telemetry,
    timeout: Duration,
}

impl ShutdownGuard {
    pub(super) fn new(telemetry: Telemetry) -> Self {
        Self { telemetry, timeout: DEFAULT_SHUTDOWN_TIMEOUT }
    }

    /// Bounds the shutdown; the default is 5 s.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.telemetry.shutdown_blocking(self.timeout);
    }
}

impl fmt::Debug for ShutdownGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownGuard").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Shuts the process-wide telemetry down, as [`Telemetry::shutdown`] does. Without `init_telemetry` before
/// there is nothing to do.
pub async fn shutdown_telemetry() -> ShutdownReport {
    super::get_telemetry().shutdown().await
}
