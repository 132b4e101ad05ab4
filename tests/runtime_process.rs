//! `process.*`: names, units and attributes of the semantic conventions, values of this process.
#![cfg(target_os = "linux")]

mod runtime_support;

use std::fs::File;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use opentelemetry::KeyValue;
use runtime_support::{Collected, Rig, current_thread, spin};

fn cpu_time(collected: &Collected, mode: &'static str) -> f64 {
    collected.value_with("process.cpu.time", &[KeyValue::new("cpu.mode", mode)]).expect("CPU time")
}

// One test: the numbers are those of the whole process, and tests beside it would move them.
#[test]
fn the_process_is_seen_as_the_kernel_sees_it() {
    let rig = Rig::new();
    let runtime = current_thread();
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).start(runtime.handle());
    let before = rig.collect();

    let mut cpu = Duration::ZERO;
    while cpu < Duration::from_millis(200) {
        let begun = Instant::now();
        spin(Duration::from_millis(50));
        cpu += begun.elapsed();
    }
    let files: Vec<_> = (0..20).map(|_| File::open("/proc/self/stat").expect("a file")).collect();
    let memory = vec![1u8; 64 << 20];
    let end = Arc::new(Barrier::new(11));
    let threads: Vec<_> = (0..10)
        .map(|_| {
            let end = end.clone();
            std::thread::spawn(move || end.wait())
        })
        .collect();
    let after = rig.collect();

    // The machine may have given this process no more than a part of the time.
    let user = cpu_time(&after, "user") - cpu_time(&before, "user");
    assert!((0.02..30.0).contains(&user), "seconds: {user}");
    assert!(cpu_time(&after, "system") >= cpu_time(&before, "system"));
    let grew = |name| after.value(name) - before.value(name);
    assert_eq!(grew("process.unix.file_descriptor.count"), 20.0);
    assert_eq!(grew("process.thread.count"), 10.0);
    let bytes = grew("process.memory.usage");
    assert!((60e6..100e6).contains(&bytes), "{bytes}");

    drop(files);
    end.wait();
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(memory.iter().step_by(4096).map(|byte| usize::from(*byte)).sum::<usize>(), 64 << 8);
    let resident = |status: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1024.0
    };
    let (told, kernel) = (
        rig.collect().value("process.memory.usage"),
        resident(&std::fs::read_to_string("/proc/self/status").expect("a status")),
    );
    assert!((told - kernel).abs() < 4e6, "{told} and {kernel}");
}
