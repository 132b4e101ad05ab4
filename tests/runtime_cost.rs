//! What monitoring costs while nothing happens: no allocation, and nothing once it has ended.

mod allocation_support;
mod runtime_support;

use std::time::{Duration, Instant};

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Rig, multi_thread};

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
    let allocations = allocation_support::of_process();
    std::thread::sleep(Duration::from_millis(500));
    let allocations = allocation_support::of_process() - allocations;
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
