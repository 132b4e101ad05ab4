//! A telemetry handle over in-memory exporters, and ways to look at what it exported.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::process::Command;

use nemo_gym_telemetry::opentelemetry::KeyValue;
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

pub struct Fixture {
    pub telemetry: Telemetry,
    pub spans: InMemorySpanExporter,
    pub metrics: InMemoryMetricExporter,
    pub meter_provider: SdkMeterProvider,
}

/// One data point: attributes as text, and a value (a histogram's sum and count).
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub attributes: BTreeMap<String, String>,
    pub value: f64,
    pub count: u64,
}

impl Fixture {
    pub fn new(identity: ServerIdentity, environment: Environment) -> Self {
        Self::sharing(InMemorySpanExporter::default(), identity, environment)
    }

    /// A second process's handle, so to speak, whose spans arrive at the same place.
    pub fn sharing(spans: InMemorySpanExporter, identity: ServerIdentity, environment: Environment) -> Self {
        let metrics = InMemoryMetricExporter::default();
        let meter_provider =
            SdkMeterProvider::builder().with_reader(PeriodicReader::builder(metrics.clone()).build()).build();
        let tracer_provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let telemetry = Telemetry::builder()
            .with_environment(environment)
            .with_identity(identity)
            .with_tracer_provider(tracer_provider)
            .with_meter_provider(meter_provider.clone())
            .build();
        Self { telemetry, spans, metrics, meter_provider }
    }

    pub fn spans(&self) -> Vec<SpanData> {
        self.spans.get_finished_spans().unwrap()
    }

    pub fn span(&self, name: &str) -> SpanData {
        let spans = self.spans();
        let mut found = spans.iter().filter(|span| span.name == name);
        let span = found.next().unwrap_or_else(|| panic!("no span {name} among {:?}", names(&spans)));
        assert!(found.next().is_none(), "more than one {name}");
        span.clone()
    }

    /// The points of one metric now, or nothing.
    pub fn points(&self, name: &str) -> Vec<Point> {
        self.metrics.reset();
        self.meter_provider.force_flush().unwrap();
        let mut points = Vec::new();
        for resource in self.metrics.get_finished_metrics().unwrap() {
            for metric in resource.scope_metrics().flat_map(|scope| scope.metrics()).filter(|m| m.name() == name) {
                points.extend(match metric.data() {
                    AggregatedMetrics::U64(data) => points_of(data, |v| *v as f64),
                    AggregatedMetrics::I64(data) => points_of(data, |v| *v as f64),
                    AggregatedMetrics::F64(data) => points_of(data, |v| *v),
                });
            }
        }
        points
    }

    /// The value of the one point of a metric.
    pub fn value(&self, name: &str) -> Option<f64> {
        let points = self.points(name);
        assert!(points.len() <= 1, "{points:?}");
        points.first().map(|point| point.value)
    }
}

fn points_of<T: Copy>(data: &MetricData<T>, number: fn(&T) -> f64) -> Vec<Point> {
    let point = |attributes: Vec<&KeyValue>, value: f64, count| Point {
        attributes: attributes.iter().map(|kv| (kv.key.to_string(), kv.value.to_string())).collect(),
        value,
        count,
    };
    match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|p| point(p.attributes().collect(), number(&p.value()), 1)).collect()
        }
        MetricData::Sum(sum) => {
            sum.data_points().map(|p| point(p.attributes().collect(), number(&p.value()), 1)).collect()
        }
        MetricData::Histogram(histogram) => {
            histogram.data_points().map(|p| point(p.attributes().collect(), number(&p.sum()), p.count())).collect()
        }
        MetricData::ExponentialHistogram(_) => panic!("none is used"),
    }
}

pub fn names(spans: &[SpanData]) -> Vec<String> {
    spans.iter().map(|span| span.name.to_string()).collect()
}

pub fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|kv| kv.key.as_str() == key).map(|kv| kv.value.to_string())
}

pub fn model() -> ServerIdentity {
    ServerIdentity::new("policy_model", ServerType::ResponsesApiModels)
}

pub fn supervisor() -> ServerIdentity {
    ServerIdentity::new("supervisor", ServerType::Supervisor)
}

/// What a child of this command would find, beginning with what it inherits.
pub fn child_environment(inherited: &[(&str, &str)], command: &Command) -> Environment {
    let mut variables: BTreeMap<String, String> =
        inherited.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    for (name, value) in command.get_envs() {
        let name = name.to_str().unwrap().to_owned();
        match value {
            Some(value) => variables.insert(name, value.to_str().unwrap().to_owned()),
            None => variables.remove(&name),
        };
    }
    variables.into_iter().collect()
}

/// Waits for something that comes with time, at most ten seconds.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
