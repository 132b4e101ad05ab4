//! A bounded queue for many producers and one consumer that never makes a producer wait.
//!
//! Each producing thread appends to a buffer of its own shard, behind a mutex that only the consumer's
//! short sweeps ever contend for; a full buffer moves as a whole. Room is taken from the common bound in
//! small portions, so that producers do not fight for one counter with every item.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// More than the worker threads of most servers; threads beyond share shards.
const SHARDS: usize = 16;
/// Longest buffer of a shard.
const MAX_SEGMENT: usize = 128;
/// Empty buffers kept for producers.
const MAX_SPARES: usize = 2 * SHARDS;
/// Room taken from the common bound at a time, in queues large enough for it not to matter.
const PORTION: usize = 32;

pub(super) struct Queue<T> {
    shards: Box<[Shard<T>]>,
    /// Room that no shard has taken.
    room: AtomicUsize,
    capacity: usize,
    portion: usize,
    segment: usize,
    full: Mutex<Full<T>>,
}

/// On cache lines of its own: neighbours belong to other threads.
#[repr(align(128))]
struct Shard<T>(Mutex<Local<T>>);

struct Local<T> {
    items: Vec<T>,
    /// Room taken and not yet used.
    room: usize,
    closed: bool,
}

/// Buffers on their way to the consumer, oldest first.
struct Full<T> {
    segments: VecDeque<Vec<T>>,
    items: usize,
    /// Buffers that were emptied: producers get them back, so that they need not allocate.
    spares: Vec<Vec<T>>,
}

/// Why an item was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

/// What a producer should tell the consumer after an accepted item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    Quietly,
    /// A buffer was handed over; so many items now wait.
    HandedOver(usize),
    /// More than half of the room is taken.
    HalfFull,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread's shard: threads are numbered as they come.
#[inline]
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static SHARD: Cell<usize> = const { Cell::new(usize::MAX) }; }
    // A thread that is being torn down has no number any more: any shard will do.
    SHARD
        .try_with(|shard| {
            if shard.get() == usize::MAX {
                shard.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
            }
            shard.get()
        })
        .unwrap_or(0)
}

impl<T> Queue<T> {
    /// A queue for `capacity` items (at least one) that are taken in batches of up to `batch`.
    pub(super) fn new(capacity: usize, batch: usize) -> Self {
        let capacity = capacity.max(1);
        let shard = || Shard(Mutex::new(Local { items: Vec::new(), room: 0, closed: false }));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            room: AtomicUsize::new(capacity),
            capacity,
            portion: if capacity >= PORTION * SHARDS * 32 { PORTION } else { 1 },
            segment: (capacity / (2 * SHARDS)).clamp(1, batch.clamp(1, MAX_SEGMENT)),
            full: Mutex::new(Full { segments: VecDeque::new(), items: 0, spares: Vec::new() }),
        }
    }

    /// Offers an item. Never waits for the consumer's work.
    #[inline]
    pub(super) fn push(&self, item: T) -> Result<Accepted, Refused> {
        let Some(shard) = self.shards.get(shard_of_thread()) else { return Err(Refused::Full) };
        let mut local = lock(&shard.0);
        if local.closed {
            return Err(Refused::Closed);
        }
        let mut accepted = Accepted::Quietly;
        if local.room == 0 {
            let (taken, left) = self.take_room();
            if taken == 0 {
                return Err(Refused::Full);
            }
            local.room = taken;
            if left < self.capacity / 2 {
                accepted = Accepted::HalfFull;
            }
        }
        local.room -= 1;
        if local.items.capacity() == 0 {
            local.items.reserve_exact(self.segment);
        }
        local.items.push(item);
        if local.items.len() >= self.segment {
            let waiting = self.hand_over(&mut local.items);
            if accepted == Accepted::Quietly {
                accepted = Accepted::HandedOver(waiting);
            }
        }
        Ok(accepted)
    }

    /// Takes a portion of the common room; what was taken and what is left.
    fn take_room(&self) -> (usize, usize) {
        let mut room = self.room.load(Relaxed);
        loop {
            let taken = room.min(self.portion);
            match self.room.compare_exchange_weak(room, room - taken, Relaxed, Relaxed) {
                Ok(_) => return (taken, room - taken),
                Err(now) => room = now,
            }
        }
    }

    /// Moves a buffer to the consumer's side, puts a spare one in its place, and tells how many items wait.
    /// Called under the shard's lock, so that an item is always in a place where a sweep or a drain finds it.
    fn hand_over(&self, segment: &mut Vec<T>) -> usize {
        let mut full = lock(&self.full);
        let spare = full.spares.pop().unwrap_or_default();
        let segment = mem::replace(segment, spare);
        full.items += segment.len();
        full.segments.push_back(segment);
        full.items
    }

    /// Moves what the shards hold, and the room they have not used, to the consumer's side; with
    /// `close`, refuses every further item. Returns how many items now wait.
    pub(super) fn sweep(&self, close: bool) -> usize {
        for shard in &self.shards {
            let mut local = lock(&shard.0);
            local.closed |= close;
            self.room.fetch_add(mem::take(&mut local.room), Relaxed);
            if !local.items.is_empty() {
                self.hand_over(&mut local.items);
            }
        }
        self.waiting()
    }

    /// How many items wait on the consumer's side.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.full).items
    }

    /// Up to `max` of the oldest items on the consumer's side; their room is free again.
    pub(super) fn take(&self, max: usize) -> Vec<T> {
        let mut full = lock(&self.full);
        let mut batch = Vec::with_capacity(full.items.min(max));
        while let Some(next) = full.segments.front()
            && batch.len() + next.len() <= max
            && let Some(mut segment) = full.segments.pop_front()
        {
            batch.append(&mut segment);
            if full.spares.len() < MAX_SPARES {
                full.spares.push(segment);
            }
        }
        full.items -= batch.len();
        drop(full);
        self.room.fetch_add(batch.len(), Relaxed);
        batch
    }

    /// Closes the queue and takes all that is in it: how many items, and the items. Dropping them may take
    /// a while, counting them does not.
    pub(super) fn close(&self) -> (usize, impl Sized + use<T>) {
        self.sweep(true);
        let mut full = lock(&self.full);
        let count = mem::take(&mut full.items);
        let segments = mem::take(&mut full.segments);
        self.room.fetch_add(count, Relaxed);
        (count, segments)
    }
}
