//! The thread that exports batches.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};

use super::ledger::{LossLedger, Signal, SignalLedger};
use super::patience::Patience;
use super::queue::{Accepted, Queue, Refused};
use crate::config::settings::BatchSettings;
use crate::diagnostics;

/// What a worker does with its batches; runs on the worker's thread only.
pub(super) trait Sink<T>: Send + 'static {
    fn export(&mut self, batch: Vec<T>, patience: &Patience) -> OTelSdkResult;
    fn shutdown(&mut self, timeout: Duration);
}

/// A queue and the thread that empties it.
///
/// The thread exports when a batch is full, when the scheduled delay has passed since the last sweep,
/// and when asked to. Its telemetry is suppressed: what the exporter's libraries emit on it makes
/// neither spans nor log records.
pub(super) struct Batcher<T> {
    shared: Arc<Shared<T>>,
    flush_timeout: Duration,
}

struct Shared<T> {
    queue: Queue<T>,
    batch: usize,
    ledger: LossLedger,
    signal: Signal,
    control: Mutex<Control>,
    /// Wakes the worker.
    wake: Condvar,
    /// Wakes those who wait for the worker.
    done: Condvar,
}

#[derive(Default)]
struct Control {
    /// The worker waits: only then is it worth a system call to wake it.
    idle: bool,
    /// A batch is full.
    ready: bool,
    /// Number of the last flush asked for, and of the last one done.
    flush_asked: u64,
    flush_done: u64,
    failed_exports: u64,
    /// A shutdown has given up: nothing more is exported.
    abandoned: bool,
    /// Shutdown has begun, with this much time for the exporter.
    shutdown: Option<Instant>,
    finished: bool,
}

impl<T> Shared<T> {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self) -> &SignalLedger {
        self.ledger.signal(self.signal)
    }

    fn notify(&self, change: impl FnOnce(&mut Control)) {
        let mut control = self.control();
        change(&mut control);
        if control.idle {
            control.idle = false;
            self.wake.notify_one();
        }
    }

    /// Waits until `reached` or until `timeout` has passed; whether it was reached.
    fn wait(&self, timeout: Duration, mut reached: impl FnMut(&Control) -> bool) -> bool {
        let (control, _) = self
            .done
            .wait_timeout_while(self.control(), timeout, |control| !reached(control))
            .unwrap_or_else(PoisonError::into_inner);
        reached(&control)
    }
}

impl<T: Send + 'static> Batcher<T> {
    /// Starts the thread. Where none can be had, everything offered is refused and counted.
    pub(super) fn start(
        name: &str,
        settings: &BatchSettings,
        ledger: LossLedger,
        signal: Signal,
        sink: impl Sink<T>,
    ) -> Self {
        let batch = settings.max_export_batch_size.clamp(1, settings.max_queue_size.max(1));
        let shared = Arc::new(Shared {
            queue: Queue::new(settings.max_queue_size, batch),
            batch,
            ledger,
            signal,
            control: Mutex::new(Control::default()),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        let (worker, delay) = (Arc::clone(&shared), settings.scheduled_delay.max(Duration::from_millis(1)));
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _suppressed = Context::enter_telemetry_suppressed_scope();
            worker.run(delay, sink);
        });
        if let Err(error) = spawned {
            diagnostics::warn(&format!("thread {name} could not be started ({}): its data is lost", error.kind()));
            shared.queue.close();
            shared.control().finished = true;
        }
        Self { shared, flush_timeout: settings.export_timeout }
    }

    /// Offers an item: taken, or counted as lost. Never waits.
    #[inline]
    pub(super) fn push(&self, item: T) {
        match self.shared.queue.push(item) {
            Ok(Accepted::Quietly) => {}
            Ok(Accepted::HandedOver(waiting)) if waiting < self.shared.batch => {}
            Ok(Accepted::HandedOver(_)) => self.shared.notify(|control| control.ready = true),
            Ok(Accepted::HalfFull) => self.press(),
            Err(Refused::Full) => {
                self.shared.signal().count_queue_full();
                self.press();
            }
            Err(Refused::Closed) => self.shared.signal().count_already_shutdown(),
        }
    }

    #[cold]
    fn press(&self) {
        if self.shared.signal().patience.press() {
            self.shared.notify(|_| {});
        }
    }

    /// Exports everything offered before the call.
    pub(super) fn force_flush(&self) -> OTelSdkResult {
        let mut ticket = 0;
        let mut failures_before = 0;
        self.shared.notify(|control| {
            control.flush_asked += 1;
            (ticket, failures_before) = (control.flush_asked, control.failed_exports);
        });
        let mut failed = false;
        let reached = self.shared.wait(self.flush_timeout, |control| {
            failed = control.failed_exports > failures_before;
            control.flush_done >= ticket || control.finished
        });
        match (reached, failed) {
            (false, _) => Err(OTelSdkError::Timeout(self.flush_timeout)),
            (true, true) => Err(OTelSdkError::InternalFailure("an export failed".to_owned())),
            (true, false) => Ok(()),
        }
    }

    /// Exports what is there and ends the thread, or gives up when `timeout` has passed: what was not
    /// exported by then is counted as lost.
    pub(super) fn shutdown(&self, timeout: Duration) -> OTelSdkResult {
        let mut first = false;
        self.shared.signal().patience.end();
        self.shared.notify(|control| {
            first = control.shutdown.is_none();
            control.shutdown.get_or_insert_with(|| deadline_after(timeout));
        });
        if !first {
            return Err(OTelSdkError::AlreadyShutdown);
        }
        if self.shared.wait(timeout, |control| control.finished) {
            return Ok(());
        }
        // Under the lock that the worker takes to fetch a batch: every item is either cut off here or
        // in the exporter's hands, where the ledger knows it.
        let mut control = self.shared.control();
        control.abandoned = true;
        let (waiting, items) = self.shared.queue.close();
        self.shared.signal().count_cut_off(waiting as u64);
        drop(control);
        drop(items);
        Err(OTelSdkError::Timeout(timeout))
    }
}

impl<T> Drop for Batcher<T> {
    /// Without a shutdown before, the thread still exports what is there, with nobody waiting for it.
    fn drop(&mut self) {
        self.shared.signal().patience.end();
        self.shared.notify(|control| {
            control.shutdown.get_or_insert_with(|| deadline_after(Duration::from_secs(5)));
        });
    }
}

impl<T> fmt::Debug for Batcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("signal", &self.shared.signal).finish_non_exhaustive()
    }
}

impl<T> Shared<T> {
    fn run(&self, delay: Duration, mut sink: impl Sink<T>) {
        let mut next_sweep = deadline_after(delay);
        loop {
            let (ticket, shutdown) = self.await_work(next_sweep);
            let flush = ticket > self.control().flush_done;
            let pressed = self.signal().patience.relieve();
            if shutdown.is_some() || flush || pressed || Instant::now() >= next_sweep {
                // Only what is there now: producers may go on for ever.
                let mut waiting = self.queue.sweep(shutdown.is_some());
                next_sweep = deadline_after(delay);
                while waiting > 0 {
                    match self.export_one(&mut sink) {
                        0 => break,
                        count => waiting = waiting.saturating_sub(count),
                    }
                }
            } else {
                while self.queue.waiting() >= self.batch {
                    self.export_one(&mut sink);
                }
            }
            if let Some(deadline) = shutdown {
                sink.shutdown(deadline.saturating_duration_since(Instant::now()));
            }
            let mut control = self.control();
            control.flush_done = ticket;
            control.finished = shutdown.is_some();
            self.done.notify_all();
            if control.finished {
                return;
            }
        }
    }

    /// Sleeps until there is something to do; the last flush asked for and the deadline of a shutdown.
    fn await_work(&self, next_sweep: Instant) -> (u64, Option<Instant>) {
        let mut control = self.control();
        loop {
            let now = Instant::now();
            let asked = control.flush_asked > control.flush_done || control.shutdown.is_some();
            if control.ready || asked || self.signal().patience.is_pressed() || now >= next_sweep {
                control.ready = false;
                control.idle = false;
                return (control.flush_asked, control.shutdown);
            }
            control.idle = true;
            (control, _) = self.wake.wait_timeout(control, next_sweep - now).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Exports one batch; its size.
    fn export_one(&self, sink: &mut impl Sink<T>) -> usize {
        let batch = {
            let control = self.control();
            let batch = if control.abandoned { Vec::new() } else { self.queue.take(self.batch) };
            if batch.is_empty() {
                return 0;
            }
            self.signal().submit(batch.len() as u64);
            batch
        };
        let count = batch.len();
        let in_flight = self.signal().follow();
        // A panicking exporter loses its batch, not the thread.
        let result = catch_unwind(AssertUnwindSafe(|| sink.export(batch, &self.signal().patience)))
            .unwrap_or_else(|_| Err(OTelSdkError::InternalFailure("the exporter panicked".to_owned())));
        in_flight.finish(&result);
        if result.is_err() {
            self.control().failed_exports += 1;
        }
        count
    }
}

/// The instant after `duration`, or one that no process lives to see.
fn deadline_after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}

/// Runs an export to its end on this thread, or drops it when `timeout` has passed and its exporter does not hold on.
pub(super) fn block_on(
    export: impl Future<Output = OTelSdkResult>,
    timeout: Duration,
    patience: &Patience,
) -> OTelSdkResult {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut task = TaskContext::from_waker(&waker);
    let mut export = pin!(export);
    let mut deadline = deadline_after(timeout);
    loop {
        if let Poll::Ready(result) = export.as_mut().poll(&mut task) {
            return result;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::park_timeout(left);
        } else if patience.is_holding() {
            deadline = deadline_after(timeout);
        } else {
            return Err(OTelSdkError::Timeout(timeout));
        }
    }
}
