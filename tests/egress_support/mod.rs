//! What the tests of outgoing calls share: a handle over in-memory exporters, and servers that keep what they got.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::HeaderMap;
use nemo_gym_telemetry::egress::{ConfiguredTracePropagation, TracePropagation};
use nemo_gym_telemetry::{Environment, ServerIdentity, Telemetry};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

pub const T1: &str = "0af7651916cd43dd8448eb211c80319c";
pub const S1: &str = "b7ad6b7169203331";

/// A telemetry handle of this test's own.
pub struct Rig {
    pub telemetry: Telemetry,
    spans: InMemorySpanExporter,
    metrics: InMemoryMetricExporter,
    meter_provider: SdkMeterProvider,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(&[], SdkTracerProvider::builder())
    }

    pub fn with_groups(groups: &str) -> Self {
        Self::with(&[("NEMO_GYM_OTEL_SPAN_GROUPS", groups)], SdkTracerProvider::builder())
    }

    /// Of a server in a fleet, with every group on.
    pub fn of_server(identity: ServerIdentity) -> Self {
        let variables = [("NEMO_GYM_OTEL_SPAN_GROUPS", "all")];
        Self::of(&variables, SdkTracerProvider::builder(), identity)
    }

    pub fn with(variables: &[(&str, &str)], provider: opentelemetry_sdk::trace::TracerProviderBuilder) -> Self {
        Self::of(variables, provider, ServerIdentity::unknown())
    }

    fn of(
        variables: &[(&str, &str)],
        provider: opentelemetry_sdk::trace::TracerProviderBuilder,
        identity: ServerIdentity,
    ) -> Self {
        let spans = InMemorySpanExporter::default();
        let metrics = InMemoryMetricExporter::default();
        let meter_provider =
            SdkMeterProvider::builder().with_reader(PeriodicReader::builder(metrics.clone()).build()).build();
        let variables = [("NEMO_GYM_OTEL_ENABLED", "1")].into_iter().chain(variables.iter().copied());
        let telemetry = Telemetry::builder()
            .with_environment(Environment::from_iter(variables))
            .with_tracer_provider(provider.with_simple_exporter(spans.clone()).build())
            .with_parent_based_sampler()
            .with_identity(identity)
            .with_meter_provider(meter_provider.clone())
            .build();
        Self { telemetry, spans, metrics, meter_provider }
    }

    pub fn middleware(&self) -> ConfiguredTracePropagation {
        TracePropagation::builder().with_telemetry(&self.telemetry).build()
    }

    /// A plain client behind the middleware.
    pub fn client(&self) -> ClientWithMiddleware {
        ClientBuilder::new(reqwest::Client::new()).with(self.middleware()).build()
    }

    /// Every span that has ended.
    pub fn spans(&self) -> Vec<SpanData> {
        self.spans.get_finished_spans().expect("the exporter works")
    }

    /// The only span that has ended.
    pub fn span(&self) -> SpanData {
        let mut spans = self.spans();
        assert_eq!(spans.len(), 1, "{spans:#?}");
        spans.remove(0)
    }

    /// Waits until this many spans have ended.
    pub async fn wait_for_spans(&self, count: usize) -> Vec<SpanData> {
        for _ in 0..500 {
            if self.spans().len() >= count {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    /// What the instruments have recorded so far: metric name and attributes to count (histograms) or sum (counters).
    pub fn points(&self) -> BTreeMap<(String, String), (u64, f64)> {
        self.metrics.reset();
        self.meter_provider.force_flush().expect("the reader works");
        let mut points = BTreeMap::new();
        for metrics in self.metrics.get_finished_metrics().expect("the exporter works") {
            collect(&metrics, &mut points);
        }
        points
    }
}

fn collect(metrics: &ResourceMetrics, points: &mut BTreeMap<(String, String), (u64, f64)>) {
    for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
        let key = |attributes: Vec<String>| {
            let mut attributes = attributes;
            attributes.sort();
            (metric.name().to_owned(), attributes.join(" "))
        };
        match metric.data() {
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                for point in histogram.data_points() {
                    let attributes = point.attributes().map(|kv| format!("{}={}", kv.key, kv.value)).collect();
                    points.insert(key(attributes), (point.count(), point.sum()));
                }
            }
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                for point in sum.data_points() {
                    let attributes = point.attributes().map(|kv| format!("{}={}", kv.key, kv.value)).collect();
                    points.insert(key(attributes), (point.value(), point.value() as f64));
                }
            }
            _ => {}
        }
    }
}

/// A handle with a tracer provider of its own, whose trace ids are known to be random; its spans go nowhere.
pub fn own_provider(groups: &str) -> Telemetry {
    let environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_SPAN_GROUPS", groups),
        ("NEMO_GYM_OTEL_METRICS_ENABLED", "0"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
    ]);
    Telemetry::builder().with_environment(environment).build()
}

/// A remote parent T1/S1.
pub fn parent(sampled: bool) -> Context {
    let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let remote = SpanContext::new(
        TraceId::from_hex(T1).expect("hex"),
        SpanId::from_hex(S1).expect("hex"),
        flags,
        true,
        TraceState::NONE,
    );
    Context::new().with_remote_span_context(remote)
}

pub fn attribute(span: &SpanData, key: &str) -> Option<Value> {
    let mut found = span.attributes.iter().filter(|kv| kv.key.as_str() == key);
    let value = found.next().map(|kv| kv.value.clone());
    assert!(found.next().is_none(), "{key} twice in {span:#?}");
    value
}

pub fn text(span: &SpanData, key: &str) -> Option<String> {
    attribute(span, key).map(|value| value.as_str().into_owned())
}

pub fn is_error(span: &SpanData) -> bool {
    matches!(span.status, opentelemetry::trace::Status::Error { .. })
}

/// The requests that a server got, in order: path with query, and headers.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<(String, HeaderMap)>>>);

impl Seen {
    pub fn all(&self) -> Vec<(String, HeaderMap)> {
        self.0.lock().expect("not poisoned").clone()
    }

    /// All lines of a field over all requests.
    pub fn values(&self, name: &str) -> Vec<String> {
        let all = self.all();
        let values = all.iter().flat_map(|(_, headers)| headers.get_all(name));
        values.map(|value| value.to_str().expect("text").to_owned()).collect()
    }
}

async fn see(State(seen): State<Seen>, request: Request, next: Next) -> Response {
    seen.0.lock().expect("not poisoned").push((request.uri().to_string(), request.headers().clone()));
    next.run(request).await
}

/// Serves a router on a free port until the test's runtime goes.
pub async fn serve(router: Router) -> (SocketAddr, Seen) {
    let seen = Seen::default();
    let router = router.layer(from_fn_with_state(seen.clone(), see));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, seen)
}

/// Fields of a `traceparent`.
pub fn fields(traceparent: &str) -> (String, String, String) {
    let parts: Vec<_> = traceparent.split('-').collect();
    assert_eq!((parts.len(), parts[0]), (4, "00"), "{traceparent}");
    (parts[1].to_owned(), parts[2].to_owned(), parts[3].to_owned())
}

/// What a raw server does with a request it has read.
#[derive(Clone, Debug)]
pub enum Act {
    /// Sends these bytes and closes the connection.
    Answer(&'static str),
    /// The same, some time later.
    AnswerAfter(std::time::Duration, &'static str),
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Sends these bytes, then nothing more.
    Hang(&'static str),
}

pub const OK: Act = Act::Answer("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
pub const BUSY: Act = Act::Answer("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");

/// A server below HTTP: answers its requests by these acts in turn, the last one for all that follow. Returns the
/// heads of the requests as they came over the wire.
pub async fn raw_server(acts: Vec<Act>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let heads = Arc::new(Mutex::new(Vec::new()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let seen = heads.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (seen, acts) = (seen.clone(), acts.clone());
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let act = {
                    let mut seen = seen.lock().expect("not poisoned");
                    seen.push(String::from_utf8_lossy(&request).into_owned());
                    acts[(seen.len() - 1).min(acts.len() - 1)].clone()
                };
                match act {
                    Act::Answer(bytes) => _ = stream.write_all(bytes.as_bytes()).await,
                    Act::AnswerAfter(wait, bytes) => {
                        tokio::time::sleep(wait).await;
                        _ = stream.write_all(bytes.as_bytes()).await;
                    }
                    Act::Close => {}
                    #[allow(deprecated)]
                    Act::Reset => _ = stream.set_linger(Some(std::time::Duration::ZERO)),
                    Act::Hang(bytes) => {
                        _ = stream.write_all(bytes.as_bytes()).await;
                        std::future::pending::<()>().await;
                    }
                }
            });
        }
    });
    (address, heads)
}

/// Sum of the points of a metric whose attributes contain this text.
pub fn total(points: &BTreeMap<(String, String), (u64, f64)>, metric: &str, attribute: &str) -> u64 {
    let matching = points.iter().filter(|((name, attributes), _)| name == metric && attributes.contains(attribute));
    matching.map(|(_, (count, _))| count).sum()
}
