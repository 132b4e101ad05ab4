//! What the runtime monitor costs and how it judges busy workers: `cargo bench --bench runtime_monitor`
//!
//! Prints four figures or tables; nothing is asserted.
//! 1. CPU share: an idle process without and with a monitor at default settings, CPU time of all threads as the
//!    scheduler counts it (`/proc/self/task/*/schedstat`), several rounds in turn.
//! 2. Allocations of the whole process while the monitor ticks at default settings.
//! 3. One collection of all the monitor's metrics.
//! 4. Saturated workers with polls of various lengths: what counts as stuck.

#[path = "../tests/allocation_support/mod.rs"]
mod allocation_support;
#[path = "../tests/runtime_support/mod.rs"]
mod runtime_support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Rig, multi_thread, spin};

fn main() {
    // Without it this is a test run that only asks which tests there are.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    cpu_share();
    allocations();
    collection();
    long_polls();
}

/// CPU time of all threads of this process, if the kernel tells.
fn cpu_time() -> Option<Duration> {
    let nanos = std::fs::read_dir("/proc/self/task").ok()?.filter_map(Result::ok).filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(nanos.sum()))
}

fn cpu_share() {
    const ROUND: Duration = Duration::from_secs(4);
    println!("CPU share of an idle process, 4 workers, rounds of {ROUND:?}:");
    let runtime = multi_thread(4);
    let idle = || {
        let before = cpu_time()?;
        sleep(ROUND);
        Some((cpu_time()? - before).as_secs_f64() / ROUND.as_secs_f64() * 100.0)
    };
    for round in 1..=3 {
        let without = idle();
        let rig = Rig::new();
        let monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
        let with = idle();
        drop(monitor);
        match without.zip(with) {
            Some((without, with)) => println!("  round {round}: without {without:.4} %, with {with:.4} % of one core"),
            None => println!("  round {round}: this kernel does not tell"),
        }
    }
}

fn allocations() {
    let rig = Rig::new();
    let runtime = multi_thread(4);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    rig.collect_until("a sample", |c| c.lag().count > 0);
    let samples = rig.collect().lag().count;
    let before = allocation_support::of_process();
    sleep(Duration::from_secs(4));
    let allocations = allocation_support::of_process() - before;
    println!("allocations in {} samples (4 s, default settings): {allocations}", rig.collect().lag().count - samples);
}

fn collection() {
    const TIMES: u32 = 200;
    let rig = Rig::new();
    let runtime = multi_thread(4);
    let time = |rig: &Rig| {
        rig.collect();
        let begun = Instant::now();
        for _ in 0..TIMES {
            rig.collect();
        }
        begun.elapsed() / TIMES
    };
    let without = time(&rig);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    println!("one collection into memory: {without:?} without, {:?} with the monitor's metrics", time(&rig));
}

fn long_polls() {
    const WORKERS: usize = 2;
    println!("{WORKERS} workers saturated for 2 s, threshold 100 ms:");
    println!("  poll      61 polls  stuck_total  stuck_age_ms  stuck_workers  busy_ratio  lag_max_ms");
    for micros in [20, 200, 1000, 1500, 2000, 5000, 20_000, 200_000] {
        let poll = Duration::from_micros(micros);
        let rig = Rig::new();
        let runtime = multi_thread(WORKERS);
        let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
        rig.collect_until("a wake", |c| c.value_of("gym.event_loop.lag_last_ms", None).is_some());
        let tasks: Vec<_> = (0..WORKERS * 4)
            .map(|_| {
                runtime.spawn(async move {
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_secs(2) {
                        spin(poll);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                let _ = task.await;
            }
        });
        let c = rig.collect();
        println!(
            "  {:<9} {:<9} {:<12} {:<13.0} {:<14} {:<11.2} {:.1}",
            format!("{poll:?}"),
            format!("{:?}", poll * 61),
            c.value("gym.event_loop.stuck_total"),
            c.value("gym.event_loop.stuck_age_ms"),
            c.value("gym.event_loop.stuck_workers"),
            c.value("gym.event_loop.busy_ratio"),
            c.value("gym.event_loop.lag_max_ms"),
        );
    }
}
