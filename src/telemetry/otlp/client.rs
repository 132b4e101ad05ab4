//! Delivers one encoded request: attempts, pauses, the collector's wishes, and the end of the process.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use opentelemetry_sdk::error::OTelSdkError;
use prost::Message;
use tokio::task::JoinHandle;

use super::Signal;
use super::control::{ExportDeadline, remaining};
use super::failure::{Failure, Outlook};
use super::report::Reporter;
use super::runtime::ExportRuntime;
use super::transport::Transport;
use crate::config::settings::OtlpSettings;
use crate::telemetry::accounting::Patience;

/// The longest pause that a collector can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The longest time that a request is held on to beyond its timeout: should it be the request that the collector
/// cannot bear, others wait behind it.
const MAX_HOLD: Duration = Duration::from_secs(300);
/// Attempts after the first one while shutting down.
const CLOSING_RETRIES: u32 = 3;
/// A failure that lasts less than this is not worth a message unless data is lost.
const WORTH_SAYING: Duration = Duration::from_secs(1);

/// A signal's way to its collector.
#[derive(Debug)]
pub(super) struct Client {
    runtime: Arc<ExportRuntime>,
    courier: Arc<Courier>,
}

/// What the export runtime works with.
#[derive(Debug)]
struct Courier {
    signal: Signal,
    authority: String,
    transport: Transport,
    /// For a request with all its attempts (`OTEL_EXPORTER_OTLP_TIMEOUT`).
    timeout: Duration,
    /// The longest pause between attempts; short against the export interval, so that data flows again
    /// soon after the collector's return.
    longest_backoff: Duration,
    deadline: ExportDeadline,
    reporter: Arc<Reporter>,
    /// Not before this moment, the collector said.
    paused_until: Mutex<Option<Instant>>,
    /// The last request was lost.
    failing: AtomicBool,
    /// The collector has taken a request: the protocol is right.
    proven: AtomicBool,
}

impl Client {
    pub(super) fn new(
        signal: Signal,
        authority: String,
        transport: Transport,
        settings: &OtlpSettings,
        interval: Duration,
        shared: &super::Shared,
    ) -> Self {
        let courier = Courier {
            signal,
            authority,
            transport,
            timeout: settings.timeout,
            longest_backoff: (interval / 2).clamp(Duration::from_millis(100), Duration::from_secs(2)),
            deadline: shared.control.deadline(),
            reporter: Arc::clone(&shared.reporter),
            paused_until: Mutex::new(None),
            failing: AtomicBool::new(false),
            proven: AtomicBool::new(false),
        };
        Self { runtime: Arc::clone(&shared.runtime), courier: Arc::new(courier) }
    }

    /// Sends a request and returns the response's message. Waits on the calling thread without a reactor;
    /// dropped, it drops the request as well.
    pub(super) async fn send(&self, request: &impl Message) -> Result<Bytes, OTelSdkError> {
        if self.courier.deadline.is_over() {
            return Err(self.courier.over().into_sdk_error(self.courier.timeout));
        }
        let message = Bytes::from(request.encode_to_vec());
        let courier = Arc::clone(&self.courier);
        let mut delivery = AbortOnDrop(self.runtime.handle().spawn(async move { courier.deliver(message).await }));
        match (&mut delivery.0).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(failure)) => Err(failure.into_sdk_error(self.courier.timeout)),
            // The runtime was stopped under the request.
            Err(_) => Err(OTelSdkError::AlreadyShutdown),
        }
    }

    /// Says and counts what a collector rejected of a request that it took.
    pub(super) fn rejected(&self, count: u64) {
        self.courier.reporter.rejected(self.courier.signal, &self.courier.authority, count);
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Courier {
    async fn deliver(&self, message: Bytes) -> Result<Bytes, Failure> {
        let mut deadline = self.deadline.clone();
        let result = tokio::select! {
            biased;
            result = self.attempts(message) => result,
            () = deadline.closed() => Err(self.over()),
        };
        self.failing.store(result.is_err(), Relaxed);
        if let Some(patience) = self.reporter.patience(self.signal) {
            patience.let_go();
        }
        if let Err(failure) = &result {
            self.report(failure);
        }
        result
    }

    async fn attempts(&self, message: Bytes) -> Result<Bytes, Failure> {
        let started = Instant::now();
        let mut give_up = started + self.timeout;
        let mut backoff = Duration::from_millis(100).min(self.longest_backoff);
        let mut closing_retries = if self.failing.load(Relaxed) { 0 } else { CLOSING_RETRIES };
        if let Some(until) = self.paused_until() {
            // The pause is the collector's wish and does not count against this request.
            give_up = give_up.max(until + self.timeout);
            self.pause(remaining(until)).await?;
        }
        loop {
            let allowed = remaining(give_up);
            let attempt = tokio::time::timeout(allowed, self.transport.send(message.clone()));
            let failure = match attempt.await {
                Ok(Ok(response)) => {
                    self.proven.store(true, Relaxed);
                    return Ok(response);
                }
                Ok(Err(mut failure)) => {
                    if self.proven.load(Relaxed) {
                        failure.mix_up = failure.mix_up.filter(|mix_up| !mix_up.is_suspicion());
                    }
                    failure
                }
                Err(_) => {
                    self.transport.abandon_connection();
                    // What was cut short proves nothing about the collector.
                    if allowed < self.timeout.mul_f64(0.9) && self.may_hold(started) {
                        give_up = Instant::now() + self.timeout;
                        continue;
                    }
                    return Err(Failure::time_is_up("no answer in time"));
                }
            };
            let pause = match failure.outlook {
                Outlook::Permanent => return Err(failure),
                Outlook::Throttled(pause) => {
                    let pause = pause.min(MAX_PAUSE);
                    *self.lock_pause() = Some(Instant::now() + pause);
                    // Long pauses may outlast the timeout. A request that cannot be held on to is kept for one of them.
                    self.may_hold(started);
                    give_up =
                        give_up.max((started + self.timeout + MAX_PAUSE).min(Instant::now() + pause + self.timeout));
                    pause
                }
                Outlook::Transient => {
                    let pause = backoff.mul_f64(rand::random_range(0.5..1.0));
                    backoff = (backoff * 2).min(self.longest_backoff);
                    pause
                }
            };
            if self.deadline.get().is_some() {
                if closing_retries == 0 {
                    return Err(failure);
                }
                closing_retries -= 1;
            }
            if pause >= remaining(give_up) {
                if !self.may_hold(started) {
                    return Err(failure);
                }
                give_up = Instant::now() + pause + self.timeout;
            }
            if started.elapsed() >= WORTH_SAYING {
                self.report(&failure);
            }
            self.pause(pause).await?;
        }
    }

    /// Whether a request whose time is up is held on to: nobody needs its room, and the process goes on.
    fn may_hold(&self, started: Instant) -> bool {
        self.deadline.get().is_none()
            && started.elapsed() < MAX_HOLD
            && self.reporter.patience(self.signal).is_some_and(Patience::hold)
    }

    /// Pauses. Shutting down does not end the collector's or the backoff's pause, but shows at once when the
    /// pause cannot end in time.
    async fn pause(&self, pause: Duration) -> Result<(), Failure> {
        let until = Instant::now() + pause;
        let mut deadline = self.deadline.clone();
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => return Ok(()),
            () = deadline.closing() => {}
        }
        if deadline.get().is_some_and(|end| end <= until) {
            return Err(Failure::time_is_up("the pause before the next attempt outlasts the shutdown"));
        }
        tokio::time::sleep_until(until.into()).await;
        Ok(())
    }

    fn over(&self) -> Failure {
        Failure::time_is_up("the time for shutting down is over")
    }

    fn paused_until(&self) -> Option<Instant> {
        self.lock_pause().filter(|until| *until > Instant::now())
    }

    fn lock_pause(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.paused_until.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn report(&self, failure: &Failure) {
        self.reporter.failed(self.signal, self.transport.protocol(), &self.authority, failure);
    }
}
