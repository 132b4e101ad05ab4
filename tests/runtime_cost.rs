//! What monitoring costs while nothing happens: no allocation, and nothing once it has ended.

mod runtime_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Rig, multi_thread};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[cfg(target_os = "linux")]
fn sampler_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").filter_map(Result::ok);
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "gym-rt-sampler").count()
}

// One test in this program: allocations are counted for the whole process.
#[test]
fn ticks_allocate_nothing_and_the_thread_ends_with_the_last_runtime() {
    let rig = Rig::new();
    let runtime = multi_thread(2);
    let monitor = RuntimeMonitor::builder(&rig.telemetry)
        .with_runtime_name("cost")
        .with_sample_interval(Duration::from_millis(5))
        .with_stuck_threshold(Duration::from_millis(200))
        .start(runtime.handle());
    let count = |rig: &Rig| rig.collect().lag_of(Some("cost")).map_or(0, |lag| lag.count);
    rig.collect_until("warm", |c| c.lag_of(Some("cost")).is_some_and(|lag| lag.count >= 10));

    let samples = count(&rig);
    let allocations = ALLOCATIONS.load(Relaxed);
    std::thread::sleep(Duration::from_millis(500));
    let allocations = ALLOCATIONS.load(Relaxed) - allocations;
    let samples = count(&rig) - samples;
    assert!(samples >= 10, "{samples} samples");
    assert_eq!(allocations, 0, "in {samples} samples of the lag and as many looks at the workers");

    #[cfg(target_os = "linux")]
    assert_eq!(sampler_threads(), 1);
    drop(monitor);
    let deadline = Instant::now() + Duration::from_secs(10);
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < deadline, "the monitor's task outlives the monitor");
        std::thread::yield_now();
    }
    #[cfg(target_os = "linux")]
    while sampler_threads() > 0 {
        assert!(Instant::now() < deadline, "the sampler outlives the last runtime");
        std::thread::yield_now();
    }
}
