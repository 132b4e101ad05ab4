//! Whether an exporter may hold on to a batch while its collector is away.
//!
//! Giving a batch up makes room in its queue, and is good for nothing else. As long as more than half of the room is
//! free and nobody shuts down, an exporter therefore keeps its batch beyond the export timeout and tries again.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Between a queue, the thread that empties it, and the exporter in that thread's hands.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// More than half of the queue's room was taken since the thread last looked.
    scarce: AtomicBool,
    /// A shutdown has begun.
    ended: AtomicBool,
    /// The exporter holds a batch beyond its timeout.
    holding: AtomicBool,
}

impl Patience {
    /// Room gets scarce; whether that is news.
    pub(super) fn press(&self) -> bool {
        !self.scarce.load(Relaxed) && !self.scarce.swap(true, Relaxed)
    }

    pub(super) fn is_pressed(&self) -> bool {
        self.scarce.load(Relaxed)
    }

    /// The queue is about to be emptied; whether room had got scarce.
    pub(super) fn relieve(&self) -> bool {
        self.scarce.swap(false, Relaxed)
    }

    /// For good: nothing is held from now on.
    pub(super) fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// The exporter's time is up: whether it may try once more.
    #[cfg_attr(not(any(feature = "otlp-grpc", feature = "otlp-http")), expect(dead_code))]
    pub(crate) fn hold(&self) -> bool {
        let may_hold = !self.is_pressed() && !self.ended.load(Relaxed);
        self.holding.store(may_hold, Relaxed);
        may_hold
    }

    /// The exporter has no batch any more.
    #[cfg_attr(not(any(feature = "otlp-grpc", feature = "otlp-http")), expect(dead_code))]
    pub(crate) fn let_go(&self) {
        self.holding.store(false, Relaxed);
    }

    pub(super) fn is_holding(&self) -> bool {
        self.holding.load(Relaxed)
    }
}
