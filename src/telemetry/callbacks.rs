//! Observable instruments whose callbacks can neither end nor hold up the export of metrics.
//!
//! The SDK runs callbacks on its reader's thread, under a lock: one that panics ends every later export,
//! one that blocks delays it for ever, both without a word. A [`GuardedMeterProvider`] runs them on a
//! thread of its own and waits a bounded time.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use opentelemetry::metrics::{
    AsyncInstrument, AsyncInstrumentBuilder, Callback, Counter, Gauge, Histogram, HistogramBuilder, InstrumentBuilder,
    InstrumentProvider, Meter, MeterProvider, ObservableCounter, ObservableGauge, ObservableUpDownCounter,
    UpDownCounter,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};

use crate::diagnostics;

/// How long one callback may take. One that takes longer is left alone until it returns; its instrument
/// has no value meanwhile.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A meter provider that guards the callbacks of the instruments made through it.
#[derive(Clone, Debug)]
pub(crate) struct GuardedMeterProvider<P> {
    inner: P,
    runner: Arc<Runner>,
}

impl<P: MeterProvider> GuardedMeterProvider<P> {
    pub(crate) fn new(inner: P) -> Self {
        Self::with_timeout(inner, CALLBACK_TIMEOUT)
    }

    fn with_timeout(inner: P, timeout: Duration) -> Self {
        Self { inner, runner: Arc::new(Runner { timeout, jobs: Mutex::new(None) }) }
    }
}

impl<P: MeterProvider> MeterProvider for GuardedMeterProvider<P> {
    fn meter_with_scope(&self, scope: InstrumentationScope) -> Meter {
        let inner = self.inner.meter_with_scope(scope);
        Meter::new(Arc::new(GuardedInstruments { inner, runner: Arc::clone(&self.runner) }))
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread that runs callbacks. Started with the first one; left behind, and replaced, when a callback
/// does not return in time.
struct Runner {
    timeout: Duration,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
}

impl Runner {
    /// Runs a job; whether it ended in time. Must not panic itself.
    fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let (ended, end) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            job();
            let _ = ended.send(());
        });
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match jobs.take().map_or_else(start_thread, Ok) {
            Ok(sender) => sender,
            Err(error) => {
                diagnostics::warn_once(&format!("thread for metric callbacks could not be started ({})", error.kind()));
                return false;
            }
        };
        if sender.send(job).is_err() {
            return false;
        }
        match end.recv_timeout(self.timeout) {
            Ok(()) => {
                *jobs = Some(sender);
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }
}

fn start_thread() -> std::io::Result<mpsc::Sender<Job>> {
    let (sender, jobs) = mpsc::channel::<Job>();
    thread::Builder::new().name("otel-callbacks".to_owned()).spawn(move || {
        let _suppressed = Context::enter_telemetry_suppressed_scope();
        jobs.into_iter().for_each(|job| job());
    })?;
    Ok(sender)
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Keeps what a callback observes.
struct Recorder<T>(Mutex<Vec<(T, Vec<KeyValue>)>>);

impl<T: Send> AsyncInstrument<T> for Recorder<T> {
    fn observe(&self, measurement: T, attributes: &[KeyValue]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((measurement, attributes.to_vec()));
    }
}

/// How the last run of a callback went.
#[derive(Default)]
struct Runs {
    running: AtomicBool,
    panicked: AtomicBool,
    told_of_block: AtomicBool,
    told_of_panic: AtomicBool,
}

/// The callback as the reader sees it: always returns, in bounded time.
fn guard<T: Copy + Send + 'static>(runner: &Arc<Runner>, name: &str, callback: Callback<T>) -> Callback<T> {
    let (runner, name, callback) = (Arc::clone(runner), name.to_owned(), Arc::new(callback));
    let runs = Arc::new(Runs::default());
    Box::new(move |instrument| {
        if runs.running.swap(true, SeqCst) {
            return;
        }
        let recorder = Arc::new(Recorder(Mutex::new(Vec::new())));
        let ended = runner.run({
            let (callback, recorder, runs) = (Arc::clone(&callback), Arc::clone(&recorder), Arc::clone(&runs));
            move || {
                let result = catch_unwind(AssertUnwindSafe(|| callback(&*recorder)));
                runs.panicked.store(result.is_err(), SeqCst);
                runs.running.store(false, SeqCst);
            }
        });
        if !ended {
            if !runs.told_of_block.swap(true, SeqCst) {
                diagnostics::warn(&format!(
                    "the callback of metric {name} blocks: exported without it until it returns"
                ));
            }
            return;
        }
        if runs.panicked.load(SeqCst) {
            if !runs.told_of_panic.swap(true, SeqCst) {
                diagnostics::warn(&format!("the callback of metric {name} panicked: exported without it"));
            }
            return;
        }
        for (measurement, attributes) in recorder.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            instrument.observe(measurement, &attributes);
        }
    })
}

/// Makes instruments of the meter below; only the callbacks are not passed on as they are.
struct GuardedInstruments {
    inner: Meter,
    runner: Arc<Runner>,
}

/// Instruments without callbacks.
macro_rules! pass_on {
    ($($method:ident: $builder:ident -> $instrument:ty;)*) => {$(
        fn $method(&self, builder: $builder<'_, $instrument>) -> $instrument {
            let mut below = self.inner.$method(builder.name);
            (below.description, below.unit) = (builder.description, builder.unit);
            below.build()
        }
    )*};
}

macro_rules! pass_on_histogram {
    ($($method:ident: $instrument:ty;)*) => {$(
        fn $method(&self, builder: HistogramBuilder<'_, $instrument>) -> $instrument {
            let mut below = self.inner.$method(builder.name);
            (below.description, below.unit, below.boundaries) = (builder.description, builder.unit, builder.boundaries);
            below.build()
        }
    )*};
}

macro_rules! pass_on_guarded {
    ($($method:ident: $instrument:ty, $number:ty;)*) => {$(
        fn $method(&self, builder: AsyncInstrumentBuilder<'_, $instrument, $number>) -> $instrument {
            let mut below = self.inner.$method(builder.name.clone());
            (below.description, below.unit) = (builder.description, builder.unit);
            below.callbacks =
                builder.callbacks.into_iter().map(|callback| guard(&self.runner, &builder.name, callback)).collect();
            below.build()
        }
    )*};
}

impl InstrumentProvider for GuardedInstruments {
    pass_on! {
        u64_counter: InstrumentBuilder -> Counter<u64>;
        f64_counter: InstrumentBuilder -> Counter<f64>;
        i64_up_down_counter: InstrumentBuilder -> UpDownCounter<i64>;
        f64_up_down_counter: InstrumentBuilder -> UpDownCounter<f64>;
        u64_gauge: InstrumentBuilder -> Gauge<u64>;
        i64_gauge: InstrumentBuilder -> Gauge<i64>;
        f64_gauge: InstrumentBuilder -> Gauge<f64>;
    }
    pass_on_histogram! {
        f64_histogram: Histogram<f64>;
        u64_histogram: Histogram<u64>;
    }
    pass_on_guarded! {
        u64_observable_counter: ObservableCounter<u64>, u64;
        f64_observable_counter: ObservableCounter<f64>, f64;
        i64_observable_up_down_counter: ObservableUpDownCounter<i64>, i64;
        f64_observable_up_down_counter: ObservableUpDownCounter<f64>, f64;
        u64_observable_gauge: ObservableGauge<u64>, u64;
        i64_observable_gauge: ObservableGauge<i64>, i64;
        f64_observable_gauge: ObservableGauge<f64>, f64;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::AtomicUsize;

    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};

    use super::*;

    struct Rig {
        exporter: InMemoryMetricExporter,
        sdk: SdkMeterProvider,
        meter: Meter,
    }

    impl Rig {
        fn new(timeout: Duration) -> Self {
            let exporter = InMemoryMetricExporter::default();
            let sdk = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
            let meter = GuardedMeterProvider::with_timeout(sdk.clone(), timeout).meter("user");
            Self { exporter, sdk, meter }
        }

        /// Value of every i64 gauge and u64 sum in a fresh export.
        fn collect(&self) -> Vec<(String, i64)> {
            self.exporter.reset();
            self.sdk.force_flush().unwrap();
            let mut values = Vec::new();
            for metrics in self.exporter.get_finished_metrics().unwrap() {
                for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
                    match metric.data() {
                        AggregatedMetrics::I64(MetricData::Gauge(gauge)) => {
                            values.extend(gauge.data_points().map(|point| (metric.name().to_owned(), point.value())));
                        }
                        AggregatedMetrics::U64(MetricData::Sum(sum)) => values
                            .extend(sum.data_points().map(|point| (metric.name().to_owned(), point.value() as i64))),
                        other => panic!("{other:?}"),
                    }
                }
            }
            values.sort();
            values
        }
    }

    fn values(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_panicking_callback_costs_its_own_value_only() {
        let rig = Rig::new(Duration::from_secs(30));
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let _bad = rig
            .meter
            .i64_observable_gauge("bad")
            .with_callback(move |instrument| {
                assert!(counted.fetch_add(1, SeqCst) > 0, "panics the first time");
                instrument.observe(7, &[]);
            })
            .build();
        rig.meter.u64_counter("good").build().add(1, &[]);
        assert_eq!(rig.collect(), values(&[("good", 1)]));
        assert_eq!(rig.collect(), values(&[("bad", 7), ("good", 1)]));
        // Instruments made after the panic work as well.
        rig.meter.u64_counter("later").build().add(2, &[]);
        assert_eq!(rig.collect(), values(&[("bad", 7), ("good", 1), ("later", 2)]));
    }

    #[test]
    fn a_blocking_callback_is_left_alone_until_it_returns() {
        let rig = Rig::new(Duration::from_millis(100));
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let inner = Arc::clone(&gate);
        let _slow = rig
            .meter
            .i64_observable_gauge("slow")
            .with_callback(move |instrument| {
                let open = inner.0.lock().unwrap();
                drop(inner.1.wait_while(open, |open| !*open).unwrap());
                instrument.observe(1, &[]);
            })
            .build();
        let _fine =
            rig.meter.i64_observable_gauge("fine").with_callback(|instrument| instrument.observe(2, &[])).build();
        assert_eq!(rig.collect(), values(&[("fine", 2)]));
        assert_eq!(rig.collect(), values(&[("fine", 2)]));
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let expected = values(&[("fine", 2), ("slow", 1)]);
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while rig.collect() != expected {
            assert!(std::time::Instant::now() < deadline, "the callback has returned: {:?}", rig.collect());
        }
    }

    #[test]
    fn observations_keep_their_attributes_and_the_thread_is_suppressed() {
        let rig = Rig::new(Duration::from_secs(30));
        let _gauge = rig
            .meter
            .i64_observable_gauge("gauge")
            .with_callback(|instrument| {
                let suppressed = Context::is_current_telemetry_suppressed();
                instrument.observe(i64::from(suppressed), &[KeyValue::new("key", "a")]);
                instrument.observe(2, &[KeyValue::new("key", "b")]);
            })
            .build();
        assert_eq!(rig.collect(), values(&[("gauge", 1), ("gauge", 2)]));
    }
}
