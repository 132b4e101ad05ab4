//! Telemetry that collects into memory when asked to, and views of what it collected.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, HistogramDataPoint, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

pub struct Rig {
    pub telemetry: Telemetry,
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

impl Rig {
    pub fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).with_interval(Duration::from_secs(3600)).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let telemetry = Telemetry::builder()
            .with_environment(Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1")]))
            .with_meter_provider(provider.clone())
            .build();
        Self { telemetry, provider, exporter }
    }

    /// What one export holds. Collected on the reader's own thread, so it works while every worker is blocked.
    pub fn collect(&self) -> Collected {
        self.exporter.reset();
        self.provider.force_flush().expect("in-memory export");
        Collected(self.exporter.get_finished_metrics().expect("in-memory metrics"))
    }

    /// Collects until the check holds; panics with the last collection after 20 s.
    pub fn collect_until(&self, what: &str, check: impl Fn(&Collected) -> bool) -> Collected {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let collected = self.collect();
            if check(&collected) {
                return collected;
            }
            assert!(Instant::now() < deadline, "never seen: {what}; last {:#?}", collected.values());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub struct Collected(Vec<ResourceMetrics>);

/// One number of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub name: String,
    pub attributes: Vec<KeyValue>,
    pub value: f64,
}

/// One series of a histogram.
#[derive(Clone, Debug)]
pub struct Distribution {
    pub count: u64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    /// (upper bound, values at or below it and above the bound before)
    pub buckets: Vec<(f64, u64)>,
}

impl Distribution {
    /// Values above the bound, which must be one of the histogram's.
    pub fn above(&self, bound: f64) -> u64 {
        assert!(self.buckets.iter().any(|(upper, _)| *upper == bound), "{bound} is not a bucket boundary");
        self.buckets.iter().filter(|(upper, _)| *upper > bound).map(|(_, count)| count).sum()
    }
}

impl Collected {
    fn metrics(&self) -> impl Iterator<Item = &opentelemetry_sdk::metrics::data::Metric> {
        self.0.iter().flat_map(ResourceMetrics::scope_metrics).flat_map(|scope| scope.metrics())
    }

    /// (name, unit, kind) of everything collected.
    pub fn kinds(&self) -> Vec<(String, String, &'static str)> {
        fn kind<T>(data: &MetricData<T>) -> &'static str {
            match data {
                MetricData::Gauge(_) => "gauge",
                MetricData::Sum(sum) if sum.is_monotonic() => "counter",
                MetricData::Sum(_) => "updowncounter",
                MetricData::Histogram(_) => "histogram",
                MetricData::ExponentialHistogram(_) => "exponential histogram",
            }
        }
        self.metrics()
            .map(|metric| {
                let kind = match metric.data() {
                    AggregatedMetrics::F64(data) => kind(data),
                    AggregatedMetrics::U64(data) => kind(data),
                    AggregatedMetrics::I64(data) => kind(data),
                };
                (metric.name().to_owned(), metric.unit().to_owned(), kind)
            })
            .collect()
    }

    /// Every point of every gauge and sum.
    pub fn values(&self) -> Vec<Value> {
        fn of<T: Copy>(name: &str, data: &MetricData<T>, number: impl Fn(T) -> f64) -> Vec<Value> {
            let value = |attributes: Vec<KeyValue>, value| Value { name: name.to_owned(), attributes, value };
            match data {
                MetricData::Gauge(gauge) => gauge
                    .data_points()
                    .map(|point| value(point.attributes().cloned().collect(), number(point.value())))
                    .collect(),
                MetricData::Sum(sum) => sum
                    .data_points()
                    .map(|point| value(point.attributes().cloned().collect(), number(point.value())))
                    .collect(),
                _ => vec![],
            }
        }
        self.metrics()
            .flat_map(|metric| match metric.data() {
                AggregatedMetrics::F64(data) => of(metric.name(), data, |v| v),
                AggregatedMetrics::U64(data) => of(metric.name(), data, |v| v as f64),
                AggregatedMetrics::I64(data) => of(metric.name(), data, |v| v as f64),
            })
            .collect()
    }

    /// The value of the series with exactly these attributes.
    pub fn value_with(&self, name: &str, attributes: &[KeyValue]) -> Option<f64> {
        let mut found = self.values().into_iter().filter(|v| v.name == name && v.attributes == attributes);
        let value = found.next().map(|v| v.value);
        assert!(found.next().is_none(), "two points for one series of {name}");
        value
    }

    /// The value of a runtime's series.
    pub fn value_of(&self, name: &str, runtime: Option<&str>) -> Option<f64> {
        self.value_with(name, &runtime_attributes(runtime))
    }

    /// The value of the unnamed runtime's series, which must be there.
    pub fn value(&self, name: &str) -> f64 {
        self.value_of(name, None).unwrap_or_else(|| panic!("no {name} in {:#?}", self.values()))
    }

    /// The lag distribution of a runtime.
    pub fn lag_of(&self, runtime: Option<&str>) -> Option<Distribution> {
        let attributes = runtime_attributes(runtime);
        self.metrics().filter(|metric| metric.name() == "gym.event_loop.lag_ms").find_map(|metric| {
            let AggregatedMetrics::F64(MetricData::Histogram(histogram)) = metric.data() else {
                panic!("the lag is no histogram of floats")
            };
            histogram
                .data_points()
                .find(|point| point.attributes().cloned().collect::<Vec<_>>() == attributes)
                .map(distribution)
        })
    }

    /// The lag distribution of the unnamed runtime; empty while it has no sample.
    pub fn lag(&self) -> Distribution {
        self.lag_of(None).unwrap_or(Distribution { count: 0, sum: 0.0, min: 0.0, max: 0.0, buckets: vec![] })
    }
}

fn distribution(point: &HistogramDataPoint<f64>) -> Distribution {
    let bounds = point.bounds().chain([f64::INFINITY]);
    Distribution {
        count: point.count(),
        sum: point.sum(),
        min: point.min().unwrap_or_default(),
        max: point.max().unwrap_or_default(),
        buckets: bounds.zip(point.bucket_counts()).collect(),
    }
}

fn runtime_attributes(name: Option<&str>) -> Vec<KeyValue> {
    name.iter().map(|name| KeyValue::new("nemo.gym.runtime.name", (*name).to_owned())).collect()
}

pub fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub fn multi_thread(workers: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().expect("a runtime")
}

/// Occupies the CPU without yielding.
pub fn spin(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        std::hint::spin_loop();
    }
}
