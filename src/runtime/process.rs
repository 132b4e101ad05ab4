//! `process.*`: CPU time, memory, threads and file descriptors of this process, read from `/proc/self` whenever
//! metrics are collected. Absent where there is no such thing.

use std::sync::Weak;

use opentelemetry::metrics::Meter;

use super::registry::Registry;

#[cfg(not(target_os = "linux"))]
pub(super) fn observe(_: &Meter, _: &Weak<Registry>) {}

#[cfg(target_os = "linux")]
pub(super) fn observe(meter: &Meter, registry: &Weak<Registry>) {
    use opentelemetry::KeyValue;
    use procfs::process::{Process, Stat};

    use crate::metrics::catalog;

    // Read anew each time: after a fork this is another process.
    fn stat() -> Option<Stat> {
        Process::myself().and_then(|process| process.stat()).ok()
    }
    fn int(value: impl TryInto<i64>) -> i64 {
        value.try_into().unwrap_or(i64::MAX)
    }
    let on = |registry: &Weak<Registry>| {
        let registry = registry.clone();
        move || registry.upgrade().is_some_and(|registry| !registry.live().stopped)
    };

    let modes = ["user", "system"].map(|mode| [KeyValue::new("cpu.mode", mode)]);
    let is_on = on(registry);
    catalog::PROCESS_CPU_TIME.observe_f64_counter(meter, move |observer| {
        if let Some(stat) = is_on().then(stat).flatten() {
            let per_second = procfs::ticks_per_second() as f64;
            observer.observe(stat.utime as f64 / per_second, &modes[0]);
            observer.observe(stat.stime as f64 / per_second, &modes[1]);
        }
    });
    let is_on = on(registry);
    catalog::PROCESS_MEMORY_USAGE.observe_i64_up_down_counter(meter, move |observer| {
        if let Some(stat) = is_on().then(stat).flatten() {
            observer.observe(int(stat.rss.saturating_mul(procfs::page_size())), &[]);
        }
    });
    let is_on = on(registry);
    catalog::PROCESS_THREAD_COUNT.observe_i64_up_down_counter(meter, move |observer| {
        if let Some(stat) = is_on().then(stat).flatten() {
            observer.observe(stat.num_threads, &[]);
        }
    });
    let is_on = on(registry);
    catalog::PROCESS_UNIX_FILE_DESCRIPTOR_COUNT.observe_i64_up_down_counter(meter, move |observer| {
        if let Some(count) = is_on().then(|| open_descriptors().ok()).flatten() {
            observer.observe(int(count), &[]);
        }
    });
}

#[cfg(target_os = "linux")]
fn open_descriptors() -> std::io::Result<u64> {
    const DIRECTORY: &str = "/proc/self/fd";
    // Linux 6.2 and later tell the number as the directory's size, without a walk.
    match std::fs::metadata(DIRECTORY)?.len() {
        // One entry is the walk's own.
        0 => Ok(std::fs::read_dir(DIRECTORY)?.count().saturating_sub(1) as u64),
        count => Ok(count),
    }
}
