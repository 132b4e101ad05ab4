//! The runtime monitor's metrics: `gym.event_loop.*` (upstream's name for what is tokio's runtime here) and
//! `process.*` (OpenTelemetry semantic conventions).

use super::{Metric, counter, gauge, histogram, up_down};

/// The runtime that a point tells about; absent on the points of an unnamed one.
const RUNTIME: &[&str] = &["nemo.gym.runtime.name"];

/// Buckets of the lag: those that the Python servers use for `gym.*_ms`, and two below 5 ms, because an idle
/// runtime wakes its sleepers 1 to 2 ms late.
pub const EVENT_LOOP_LAG_MS: &[f64] =
    &[0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10_000.0];

/// How late a sleeping task of the runtime wakes: one value per sample interval, the worst of it.
pub const GYM_EVENT_LOOP_LAG: Metric = histogram(
    "gym.event_loop.lag_ms",
    "ms",
    EVENT_LOOP_LAG_MS,
    RUNTIME,
    "How late a sleeping task of the runtime wakes, worst of each sample interval; about 1 ms when idle.",
);
/// The most recent lateness; grows while the sleeping task is overdue.
pub const GYM_EVENT_LOOP_LAG_LAST: Metric = gauge(
    "gym.event_loop.lag_last_ms",
    "ms",
    RUNTIME,
    "How late the sleeping task woke last, or is at present if that is more.",
);
/// The worst lateness since the previous export.
pub const GYM_EVENT_LOOP_LAG_MAX: Metric = gauge(
    "gym.event_loop.lag_max_ms",
    "ms",
    RUNTIME,
    "How late the sleeping task woke at worst since the previous export, a wake that is overdue included.",
);
/// Tasks that were spawned and have not ended, the monitor's own included.
pub const GYM_EVENT_LOOP_TASKS: Metric =
    gauge("gym.event_loop.tasks", "{task}", RUNTIME, "Tasks alive in the runtime.");
/// Worker threads.
pub const GYM_EVENT_LOOP_WORKERS: Metric =
    gauge("gym.event_loop.workers", "{worker}", RUNTIME, "Worker threads of the runtime.");
/// Share of the workers' time that was spent running tasks since the previous export, 0 to 1.
pub const GYM_EVENT_LOOP_BUSY_RATIO: Metric = gauge(
    "gym.event_loop.busy_ratio",
    "1",
    RUNTIME,
    "Share of the workers' time spent running tasks since the previous export.",
);
/// Tasks that wait in the queue shared by all workers.
pub const GYM_EVENT_LOOP_GLOBAL_QUEUE_DEPTH: Metric = gauge(
    "gym.event_loop.global_queue_depth",
    "{task}",
    RUNTIME,
    "Tasks that wait in the queue shared by the runtime's workers.",
);
/// Time that all workers together have spent running tasks.
pub const GYM_EVENT_LOOP_BUSY_TIME: Metric =
    counter("gym.event_loop.busy_time", "s", RUNTIME, "Time that the workers have spent running tasks.");
/// How often workers went to sleep for want of work.
pub const GYM_EVENT_LOOP_PARKS: Metric =
    counter("gym.event_loop.parks", "{park}", RUNTIME, "How often workers have gone to sleep for want of work.");
/// Workers that made no progress for the threshold: most at one time since the previous export.
pub const GYM_EVENT_LOOP_STUCK_WORKERS: Metric = gauge(
    "gym.event_loop.stuck_workers",
    "{worker}",
    RUNTIME,
    "Most workers at one time, since the previous export, that were running and made no progress for the threshold.",
);
/// For how long a worker made no progress: longest since the previous export, 0 when none was stuck.
pub const GYM_EVENT_LOOP_STUCK_AGE: Metric = gauge(
    "gym.event_loop.stuck_age_ms",
    "ms",
    RUNTIME,
    "Longest that a stuck worker has made no progress, since the previous export; 0 when none was stuck.",
);
/// How often a worker crossed the threshold.
pub const GYM_EVENT_LOOP_STUCK: Metric =
    counter("gym.event_loop.stuck_total", "{stall}", RUNTIME, "How often a worker has become stuck.");

/// Tasks that wait in the workers' own queues. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_LOCAL_QUEUE_DEPTH: Metric = gauge(
    "gym.event_loop.local_queue_depth",
    "{task}",
    RUNTIME,
    "Tasks that wait in the workers' own queues, all workers together.",
);
/// Threads of the pool behind `spawn_blocking`. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_BLOCKING_THREADS: Metric = gauge(
    "gym.event_loop.blocking_threads",
    "{thread}",
    RUNTIME,
    "Threads that the runtime has made for blocking work, idle ones included.",
);
/// Idle threads of that pool. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_IDLE_BLOCKING_THREADS: Metric = gauge(
    "gym.event_loop.idle_blocking_threads",
    "{thread}",
    RUNTIME,
    "Threads for blocking work that have none at present.",
);
/// Closures that wait for such a thread. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_BLOCKING_QUEUE_DEPTH: Metric =
    gauge("gym.event_loop.blocking_queue_depth", "{task}", RUNTIME, "Blocking closures that wait for a thread.");
/// Polls of tasks. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_POLLS: Metric =
    counter("gym.event_loop.polls", "{poll}", RUNTIME, "How often the workers have polled a task.");
/// Mean duration of a poll (moving average) on the worker where it is longest. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_POLL_TIME_MEAN: Metric = gauge(
    "gym.event_loop.poll_time_mean_ms",
    "ms",
    RUNTIME,
    "Moving average of the duration of a poll, on the worker where it is longest.",
);
/// Tasks that a worker took from another. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_STEALS: Metric =
    counter("gym.event_loop.steals", "{task}", RUNTIME, "Tasks that a worker has taken from another worker's queue.");
/// Tasks that tokio made yield. Needs `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
pub const GYM_EVENT_LOOP_FORCED_YIELDS: Metric = counter(
    "gym.event_loop.forced_yields",
    "{yield}",
    RUNTIME,
    "How often a task was made to yield because it had used up its budget.",
);

/// CPU time of the process. Linux.
pub const PROCESS_CPU_TIME: Metric =
    counter("process.cpu.time", "s", &["cpu.mode"], "CPU time of the process, by mode.");
/// Resident memory of the process. Linux.
pub const PROCESS_MEMORY_USAGE: Metric =
    up_down("process.memory.usage", "By", &[], "Physical memory that the process occupies.");
/// Threads of the process. Linux.
pub const PROCESS_THREAD_COUNT: Metric = up_down("process.thread.count", "{thread}", &[], "Threads of the process.");
/// Open file descriptors of the process. Linux.
pub const PROCESS_UNIX_FILE_DESCRIPTOR_COUNT: Metric = up_down(
    "process.unix.file_descriptor.count",
    "{file_descriptor}",
    &[],
    "File descriptors that the process has open.",
);

/// All of them.
pub(super) const METRICS: &[Metric] = &[
    GYM_EVENT_LOOP_LAG,
    GYM_EVENT_LOOP_LAG_LAST,
    GYM_EVENT_LOOP_LAG_MAX,
    GYM_EVENT_LOOP_TASKS,
    GYM_EVENT_LOOP_WORKERS,
    GYM_EVENT_LOOP_BUSY_RATIO,
    GYM_EVENT_LOOP_GLOBAL_QUEUE_DEPTH,
    GYM_EVENT_LOOP_BUSY_TIME,
    GYM_EVENT_LOOP_PARKS,
    GYM_EVENT_LOOP_STUCK_WORKERS,
    GYM_EVENT_LOOP_STUCK_AGE,
    GYM_EVENT_LOOP_STUCK,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_LOCAL_QUEUE_DEPTH,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_BLOCKING_THREADS,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_IDLE_BLOCKING_THREADS,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_BLOCKING_QUEUE_DEPTH,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_POLLS,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_POLL_TIME_MEAN,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_STEALS,
    #[cfg(tokio_unstable)]
    GYM_EVENT_LOOP_FORCED_YIELDS,
    PROCESS_CPU_TIME,
    PROCESS_MEMORY_USAGE,
    PROCESS_THREAD_COUNT,
    PROCESS_UNIX_FILE_DESCRIPTOR_COUNT,
];
