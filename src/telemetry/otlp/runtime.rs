//! The private runtime on which all OTLP input and output happens.
//!
//! The SDK calls exporters from threads of its own, the application's runtime may be busy, blocked or
//! gone, and gRPC needs a reactor: so the exporters bring their own, one thread that does nothing else.
//! That thread's telemetry is suppressed: what hyper, h2 and rustls log or measure there would be
//! exported, which makes more of it, for ever.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use opentelemetry::Context;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// One thread that drives a runtime until this value is dropped or stopped.
#[derive(Debug)]
pub(crate) struct ExportRuntime {
    handle: Handle,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

impl ExportRuntime {
    /// Starts the thread. Callable from anywhere, inside another runtime too.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .thread_name("gym-otlp-resolve")
            // Name look-ups only.
            .max_blocking_threads(2)
            .on_thread_start(|| std::mem::forget(Context::enter_telemetry_suppressed_scope()))
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (ending, ended) = mpsc::channel();
        std::thread::Builder::new().name("gym-otlp-export".to_owned()).spawn(move || {
            let _ending: mpsc::Sender<()> = ending;
            let _suppressed = Context::enter_telemetry_suppressed_scope();
            runtime.block_on(async { _ = stopped.await });
            // Without waiting for a name look-up that hangs.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Mutex::new(Some(stop)), ended: Mutex::new(ended) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends the thread and waits for that until `deadline`; whether it has ended. Requests that are under
    /// way are dropped.
    pub(crate) fn stop(&self, deadline: Instant) -> bool {
        drop(self.stop.lock().unwrap_or_else(|e| e.into_inner()).take());
        let wait = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let ended = self.ended.lock().unwrap_or_else(|e| e.into_inner());
        ended.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Disconnected)
    }
}
