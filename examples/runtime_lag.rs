//! What the runtime monitor's metrics say while workers are blocked: `cargo run --example runtime_lag`
//!
//! Blocks one worker of four, then all of them, and prints the metrics meanwhile as `NAME = VALUE`, each with a
//! sentence on what it tells. Ends by itself after a few seconds.

use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::Duration;

use nemo_gym_telemetry::Telemetry;
use nemo_gym_telemetry::runtime::RuntimeMonitor;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use tokio::runtime::{Builder, Runtime};

type Explained = &'static [(&'static str, &'static str)];

const IDLE: Explained = &[
    ("gym.event_loop.workers", "The runtime has four worker threads."),
    ("gym.event_loop.tasks", "One task is alive: the monitor's own, which measures the lag."),
    (
        "gym.event_loop.lag_last_ms",
        "A sleeping task wakes 1 to 2 ms late: that is the timer's granularity, not a fault.",
    ),
    ("gym.event_loop.lag_max_ms", "The worst wake since the previous export; noise of the machine shows here first."),
    ("gym.event_loop.busy_ratio", "The share of the workers' time spent running tasks is next to nothing."),
    ("gym.event_loop.busy_time", "The same in seconds, all workers together, since the runtime started."),
    ("gym.event_loop.parks", "How often a worker had nothing to do and went to sleep."),
    ("gym.event_loop.global_queue_depth", "No task waits for a worker."),
    ("gym.event_loop.stuck_workers", "No worker is stuck."),
    ("gym.event_loop.stuck_age_ms", "So there is no age either."),
];

const ONE_BLOCKED: Explained = &[
    ("gym.event_loop.stuck_workers", "One worker has not come back from a task for more than 100 ms."),
    (
        "gym.event_loop.stuck_age_ms",
        "For so long it has made no progress: this grows until the task gives the thread back.",
    ),
    (
        "gym.event_loop.lag_last_ms",
        "Small: three workers are free, so new work runs at once and the lag alone shows nothing.",
    ),
    ("gym.event_loop.tasks", "The blocking task is alive beside the monitor's."),
    (
        "gym.event_loop.busy_ratio",
        "Next to nothing: a worker publishes its busy time when it comes back, so a blocked one looks idle.",
    ),
    ("gym.event_loop.global_queue_depth", "Nothing waits: the other workers take what comes."),
];

const ONE_FREED: Explained = &[
    ("gym.event_loop.stuck_workers", "The worst since the previous export: a stall that ended in between is not lost."),
    ("gym.event_loop.stuck_age_ms", "How long it lasted in the end."),
    ("gym.event_loop.busy_ratio", "Now the blocked worker's time is published, all at once and after the fact."),
];

const ALL_BLOCKED: Explained = &[
    ("gym.event_loop.stuck_workers", "All four: nothing runs in this runtime, and no request is answered."),
    ("gym.event_loop.stuck_age_ms", "Since so long at worst; a thread outside the runtime sees it while it lasts."),
    ("gym.event_loop.lag_last_ms", "The sleeping task is overdue by this much, and would be late by at least that."),
    ("gym.event_loop.lag_max_ms", "The worst since the previous export is what is happening now."),
    ("gym.event_loop.global_queue_depth", "New tasks pile up, because no worker takes them."),
    ("gym.event_loop.tasks", "They are alive all the same: four that block, those that wait, and the monitor's."),
    ("gym.event_loop.busy_ratio", "Still next to nothing, as for one blocked worker: do not look for stalls here."),
];

const AFTERWARDS: Explained = &[
    (
        "gym.event_loop.stuck_workers",
        "The worst since the previous export: a stall is not lost because it ended in between.",
    ),
    ("gym.event_loop.stuck_age_ms", "How long the longest of them lasted."),
    ("gym.event_loop.stuck_total", "Five times a worker has become stuck: one in the first part, four in the second."),
    ("gym.event_loop.lag_last_ms", "New wakes are on time again."),
    ("gym.event_loop.lag_max_ms", "The wake that the stall delayed, in full."),
    ("gym.event_loop.busy_ratio", "Now the blocked workers' time is published, all at once and after the fact."),
    ("gym.event_loop.busy_time", "Blocking counts as busy, although the CPU did nothing."),
    ("gym.event_loop.tasks", "What waited has run: the monitor's task is left."),
    (
        "process.cpu.time",
        "CPU seconds of the process, user and system together: the machine was idle while the server was deaf.",
    ),
    ("process.thread.count", "Threads: the workers, the metric reader, the monitor's sampler and this one."),
    ("process.memory.usage", "Resident bytes."),
    ("process.unix.file_descriptor.count", "Open files and sockets."),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).with_interval(Duration::from_secs(3600)).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    let telemetry = Telemetry::builder().with_meter_provider(provider.clone()).build();
    let print = |title: &str, explained: Explained| -> Result<(), Box<dyn std::error::Error>> {
        exporter.reset();
        provider.force_flush()?;
        let exported = exporter.get_finished_metrics()?;
        println!("\n=== {title}");
        for (name, sentence) in explained {
            match value(&exported, name) {
                Some(value) => println!("{name} = {}\n    {sentence}", text(value)),
                None => println!("    {name}: this platform does not tell."),
            }
        }
        Ok(())
    };

    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    let monitor = RuntimeMonitor::builder(&telemetry).start(runtime.handle());
    sleep(Duration::from_millis(1000));
    print("idle", IDLE)?;

    let blocked = block(&runtime, 1)?;
    sleep(Duration::from_millis(500));
    print("one worker of four blocked for 500 ms, and still blocked", ONE_BLOCKED)?;
    drop(blocked);
    sleep(Duration::from_millis(300));
    print("it is free again", ONE_FREED)?;

    let blocked = block(&runtime, 4)?;
    for _ in 0..10 {
        runtime.spawn(async {});
    }
    sleep(Duration::from_millis(800));
    print("all four workers blocked for 800 ms, and still blocked", ALL_BLOCKED)?;
    drop(blocked);
    sleep(Duration::from_millis(300));
    print("all are free again", AFTERWARDS)?;

    drop(monitor);
    Ok(())
}

/// Blocks that many workers until what this returns is dropped.
fn block(runtime: &Runtime, workers: usize) -> Result<Vec<Sender<()>>, std::sync::mpsc::RecvError> {
    (0..workers)
        .map(|_| {
            let (release, wait) = channel();
            let (running, runs) = channel();
            runtime.spawn(async move {
                let _ = running.send(());
                // What never belongs into an async task: it holds the worker's thread, not only the task.
                let _ = wait.recv();
            });
            runs.recv().map(|()| release)
        })
        .collect()
}

/// The metric's value, summed over its points.
fn value(exported: &[ResourceMetrics], name: &str) -> Option<f64> {
    fn sum<T: Copy>(data: &MetricData<T>, number: impl Fn(T) -> f64) -> f64 {
        match data {
            MetricData::Gauge(gauge) => gauge.data_points().map(|point| number(point.value())).sum(),
            MetricData::Sum(sum) => sum.data_points().map(|point| number(point.value())).sum(),
            _ => 0.0,
        }
    }
    let mut metrics = exported.iter().flat_map(ResourceMetrics::scope_metrics).flat_map(|scope| scope.metrics());
    metrics.find(|metric| metric.name() == name).map(|metric| match metric.data() {
        AggregatedMetrics::F64(data) => sum(data, |v| v),
        AggregatedMetrics::U64(data) => sum(data, |v| v as f64),
        AggregatedMetrics::I64(data) => sum(data, |v| v as f64),
    })
}

/// Whole numbers as such, others with three decimals.
fn text(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}
