//! The instruments of monitored runtimes: one callback each, for all runtimes of a telemetry handle.

use std::sync::Weak;
use std::time::Duration;

use opentelemetry::metrics::{AsyncInstrument, Histogram, Meter};
use tokio::runtime::RuntimeMetrics;

use super::monitored::Monitored;
use super::registry::Registry;
use crate::metrics::{catalog, ms};

/// Registers the callbacks and returns the one instrument that is recorded into.
pub(super) fn observe(meter: &Meter, registry: &Weak<Registry>) -> Histogram<f64> {
    catalog::GYM_EVENT_LOOP_LAG_LAST.observe_f64_gauge(meter, each(registry, |it| it.lag.last().map(ms)));
    catalog::GYM_EVENT_LOOP_LAG_MAX.observe_f64_gauge(meter, each(registry, |it| it.lag.take_worst().map(ms)));
    catalog::GYM_EVENT_LOOP_TASKS.observe_u64_gauge(meter, number(registry, RuntimeMetrics::num_alive_tasks));
    catalog::GYM_EVENT_LOOP_WORKERS.observe_u64_gauge(meter, number(registry, RuntimeMetrics::num_workers));
    catalog::GYM_EVENT_LOOP_GLOBAL_QUEUE_DEPTH
        .observe_u64_gauge(meter, number(registry, RuntimeMetrics::global_queue_depth));
    catalog::GYM_EVENT_LOOP_BUSY_RATIO.observe_f64_gauge(meter, each(registry, Monitored::take_busy_ratio));
    catalog::GYM_EVENT_LOOP_BUSY_TIME.observe_f64_counter(
        meter,
        each(registry, |it| Some(it.sum::<Duration>(RuntimeMetrics::worker_total_busy_duration).as_secs_f64())),
    );
    catalog::GYM_EVENT_LOOP_PARKS
        .observe_u64_counter(meter, each(registry, |it| Some(it.sum(RuntimeMetrics::worker_park_count))));
    catalog::GYM_EVENT_LOOP_STUCK_WORKERS
        .observe_u64_gauge(meter, each(registry, |it| Some(it.take_stuck_workers() as u64)));
    catalog::GYM_EVENT_LOOP_STUCK_AGE.observe_f64_gauge(meter, each(registry, |it| Some(ms(it.take_stuck_age()))));
    catalog::GYM_EVENT_LOOP_STUCK.observe_u64_counter(meter, each(registry, |it| Some(it.stalls())));
    #[cfg(tokio_unstable)]
    observe_unstable(meter, registry);
    catalog::GYM_EVENT_LOOP_LAG.f64_histogram(meter)
}

/// What tokio publishes only when the program is built with `--cfg tokio_unstable`.
#[cfg(tokio_unstable)]
fn observe_unstable(meter: &Meter, registry: &Weak<Registry>) {
    catalog::GYM_EVENT_LOOP_LOCAL_QUEUE_DEPTH
        .observe_u64_gauge(meter, each(registry, |it| Some(it.sum(RuntimeMetrics::worker_local_queue_depth) as u64)));
    catalog::GYM_EVENT_LOOP_BLOCKING_THREADS
        .observe_u64_gauge(meter, number(registry, RuntimeMetrics::num_blocking_threads));
    catalog::GYM_EVENT_LOOP_IDLE_BLOCKING_THREADS
        .observe_u64_gauge(meter, number(registry, RuntimeMetrics::num_idle_blocking_threads));
    catalog::GYM_EVENT_LOOP_BLOCKING_QUEUE_DEPTH
        .observe_u64_gauge(meter, number(registry, RuntimeMetrics::blocking_queue_depth));
    catalog::GYM_EVENT_LOOP_POLLS
        .observe_u64_counter(meter, each(registry, |it| Some(it.sum(RuntimeMetrics::worker_poll_count))));
    catalog::GYM_EVENT_LOOP_POLL_TIME_MEAN.observe_f64_gauge(
        meter,
        each(registry, |it| {
            (0..it.metrics.num_workers()).map(|worker| ms(it.metrics.worker_mean_poll_time(worker))).reduce(f64::max)
        }),
    );
    catalog::GYM_EVENT_LOOP_STEALS
        .observe_u64_counter(meter, each(registry, |it| Some(it.sum(RuntimeMetrics::worker_steal_count))));
    catalog::GYM_EVENT_LOOP_FORCED_YIELDS
        .observe_u64_counter(meter, each(registry, |it| Some(it.metrics.budget_forced_yield_count())));
}

/// A callback that observes a value of every live runtime; nothing where there is none.
fn each<T>(
    registry: &Weak<Registry>,
    value: impl Fn(&Monitored) -> Option<T> + Send + Sync + 'static,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    let registry = registry.clone();
    move |observer| {
        let Some(registry) = registry.upgrade() else { return };
        for runtime in &registry.live().runtimes {
            if let Some(value) = value(runtime) {
                observer.observe(value, &runtime.attributes);
            }
        }
    }
}

fn number(
    registry: &Weak<Registry>,
    value: impl Fn(&RuntimeMetrics) -> usize + Send + Sync + 'static,
) -> impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static {
    each(registry, move |it| Some(value(&it.metrics) as u64))
}
