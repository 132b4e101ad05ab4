//! A telemetry handle over in-memory exporters, and servers on real sockets.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nemo_gym_telemetry::opentelemetry::{KeyValue, Value};
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, InMemorySpanExporterBuilder, SdkTracerProvider, SpanData};

pub const T1: &str = "0af7651916cd43dd8448eb211c80319c";
pub const S1: &str = "b7ad6b7169203331";

/// Telemetry whose output a test can read.
pub struct Rig {
    pub telemetry: Telemetry,
    spans: InMemorySpanExporter,
    metrics: InMemoryMetricExporter,
    meter_provider: SdkMeterProvider,
}

impl Rig {
    pub fn new(groups: &str, server_type: ServerType) -> Self {
        Self::with_identity(groups, ServerIdentity::new("example_server", server_type))
    }

    pub fn with_identity(groups: &str, identity: ServerIdentity) -> Self {
        let spans = InMemorySpanExporterBuilder::new().build();
        let tracer_provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let metrics = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(metrics.clone()).with_interval(Duration::from_secs(3600)).build();
        let meter_provider = SdkMeterProvider::builder().with_reader(reader).build();
        let telemetry = Telemetry::builder()
            .with_environment(Environment::from_iter([("NEMO_GYM_OTEL_SPAN_GROUPS", groups)]))
            .with_identity(identity)
            .with_tracer_provider(tracer_provider)
            .with_meter_provider(meter_provider.clone())
            .with_parent_based_sampler()
            .build();
        Self { telemetry, spans, metrics, meter_provider }
    }

    pub fn resources() -> Self {
        Self::new("all", ServerType::ResourcesServers)
    }

    /// Ended spans, in the order of their ends.
    pub fn spans(&self) -> Vec<SpanData> {
        self.spans.get_finished_spans().unwrap()
    }

    pub fn server_spans(&self) -> Vec<SpanData> {
        let is_server = |span: &SpanData| span.span_kind == nemo_gym_telemetry::opentelemetry::trace::SpanKind::Server;
        self.spans().into_iter().filter(is_server).collect()
    }

    /// The one SERVER span.
    pub fn server_span(&self) -> SpanData {
        let spans = self.server_spans();
        assert_eq!(spans.len(), 1, "{:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>());
        spans.into_iter().next().unwrap()
    }

    pub fn span(&self, name: &str) -> SpanData {
        let spans = self.spans();
        let names: Vec<_> = spans.iter().map(|span| span.name.to_string()).collect();
        spans.into_iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name} among {names:?}"))
    }

    /// Waits until this many SERVER spans have ended.
    pub async fn ended(&self, count: usize) -> Vec<SpanData> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let spans = self.server_spans();
            if spans.len() >= count || Instant::now() > deadline {
                assert_eq!(spans.len(), count, "{:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>());
                return spans;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The points of a metric, by their attributes as text; histograms as (count, sum).
    pub fn points(&self, name: &str) -> BTreeMap<String, (f64, f64)> {
        self.metrics.reset();
        self.meter_provider.force_flush().unwrap();
        let exported = self.metrics.get_finished_metrics().unwrap();
        let mut points = BTreeMap::new();
        for metric in exported.iter().flat_map(|r| r.scope_metrics()).flat_map(|s| s.metrics()) {
            if metric.name() == name {
                read(metric.data(), &mut points);
            }
        }
        points
    }

    /// Sum of the metric's points, and of a histogram its count.
    pub fn total(&self, name: &str) -> f64 {
        self.points(name).values().map(|(count, _)| count).sum()
    }

    pub fn bounds(&self, name: &str) -> Vec<(Vec<f64>, Vec<u64>)> {
        self.points(name);
        let exported = self.metrics.get_finished_metrics().unwrap();
        let mut bounds = Vec::new();
        for metric in exported.iter().flat_map(|r| r.scope_metrics()).flat_map(|s| s.metrics()) {
            if metric.name() == name
                && let AggregatedMetrics::F64(MetricData::Histogram(histogram)) = metric.data()
            {
                bounds.extend(histogram.data_points().map(|p| (p.bounds().collect(), p.bucket_counts().collect())));
            }
        }
        bounds
    }
}

fn read(data: &AggregatedMetrics, points: &mut BTreeMap<String, (f64, f64)>) {
    fn each<T: Copy>(data: &MetricData<T>, to_f64: fn(T) -> f64, points: &mut BTreeMap<String, (f64, f64)>) {
        match data {
            MetricData::Gauge(gauge) => {
                points.extend(gauge.data_points().map(|p| (key(p.attributes()), (to_f64(p.value()), 0.0))));
            }
            MetricData::Sum(sum) => {
                points.extend(sum.data_points().map(|p| (key(p.attributes()), (to_f64(p.value()), 0.0))));
            }
            MetricData::Histogram(histogram) => points
                .extend(histogram.data_points().map(|p| (key(p.attributes()), (p.count() as f64, to_f64(p.sum()))))),
            other => panic!("unexpected aggregation {other:?}", other = std::any::type_name_of_val(other)),
        }
    }
    match data {
        AggregatedMetrics::F64(data) => each(data, |v| v, points),
        AggregatedMetrics::U64(data) => each(data, |v| v as f64, points),
        AggregatedMetrics::I64(data) => each(data, |v| v as f64, points),
    }
}

fn key<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut all: Vec<_> = attributes.map(|a| format!("{}={}", a.key, a.value)).collect();
    all.sort();
    all.join(" ")
}

pub fn attribute<'a>(span: &'a SpanData, key: &str) -> Option<&'a Value> {
    let mut values = span.attributes.iter().filter(|a| a.key.as_str() == key).map(|a| &a.value);
    let value = values.next();
    assert!(values.next().is_none(), "{key} twice on {}", span.name);
    value
}

pub fn text(span: &SpanData, key: &str) -> Option<String> {
    attribute(span, key).map(|value| value.as_str().into_owned())
}

pub fn is_error(span: &SpanData) -> bool {
    matches!(span.status, nemo_gym_telemetry::opentelemetry::trace::Status::Error { .. })
}

pub fn duration(span: &SpanData) -> Duration {
    span.end_time.duration_since(span.start_time).unwrap()
}

/// Serves on a free port of the loopback until the test ends.
pub async fn serve(app: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

/// A request without a connection.
pub fn request(method: &str, path: &str) -> http::Request<axum::body::Body> {
    http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "127.0.0.1:8000")
        .body(axum::body::Body::empty())
        .unwrap()
}

pub fn traceparent(flags: &str) -> String {
    format!("00-{T1}-{S1}-{flags}")
}
