//! The end of exporting: one moment for all signals after which nothing is sent any more.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Tells the exporters of a telemetry handle that it is shutting down, and until when they may send.
#[derive(Debug)]
pub(crate) struct ExportControl {
    deadline: watch::Sender<Option<Instant>>,
}

/// An exporter's end of an [`ExportControl`].
#[derive(Clone, Debug)]
pub(crate) struct ExportDeadline {
    deadline: watch::Receiver<Option<Instant>>,
}

impl ExportControl {
    pub(crate) fn new() -> Self {
        Self { deadline: watch::Sender::new(None) }
    }

    pub(crate) fn deadline(&self) -> ExportDeadline {
        ExportDeadline { deadline: self.deadline.subscribe() }
    }

    /// Shutting down has begun: whatever has not been sent at `deadline` is lost. Wakes exporters that wait.
    pub(crate) fn close_at(&self, deadline: Instant) {
        self.deadline.send_replace(Some(deadline));
    }
}

impl ExportDeadline {
    /// The deadline, when shutting down has begun.
    pub(crate) fn get(&self) -> Option<Instant> {
        *self.deadline.borrow()
    }

    pub(super) fn is_over(&self) -> bool {
        self.get().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Waits until shutting down begins.
    pub(super) async fn closing(&mut self) {
        if self.deadline.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until nothing may be sent any more.
    pub(super) async fn closed(&mut self) {
        self.closing().await;
        if let Some(deadline) = self.get() {
            tokio::time::sleep_until(deadline.into()).await;
        }
    }
}

/// What is left until `deadline`.
pub(super) fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
