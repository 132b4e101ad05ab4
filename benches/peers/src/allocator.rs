//! An allocator that counts inside of [`counted`] and else only asks a flag.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};

pub struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// What `work` did: allocations of this thread, and bytes that it left on the heap. Bytes are those asked for, without
/// what the system's allocator rounds up.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, isize) {
    let (allocations, live) = (ALLOCATIONS.get(), LIVE.load(Relaxed));
    ON.store(true, Relaxed);
    let result = work();
    ON.store(false, Relaxed);
    (result, ALLOCATIONS.get() - allocations, LIVE.load(Relaxed) - live)
}

fn note(allocations: usize, bytes: isize) {
    if ON.load(Relaxed) {
        ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
        LIVE.fetch_add(bytes, Relaxed);
    }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as isize);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, -(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size as isize - layout.size() as isize);
        unsafe { System.realloc(pointer, layout, size) }
    }
}
