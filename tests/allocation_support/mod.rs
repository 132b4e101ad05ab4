//! An allocator that counts: how many allocations (moves of grown blocks among them) there have been.

#![allow(dead_code)] // each test and bench asks for one of the counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// On the calling thread.
pub fn of_thread() -> u64 {
    OF_THREAD.get()
}

/// On all threads.
pub fn of_process() -> u64 {
    OF_PROCESS.load(Relaxed)
}

struct Counting;

impl Counting {
    fn count() {
        OF_PROCESS.fetch_add(1, Relaxed);
        // A thread that is going away counts no more.
        let _ = OF_THREAD.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: everything is passed on to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
