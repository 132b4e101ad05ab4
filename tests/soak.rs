//! Mixed traffic for a while: disconnects, panics, streams, collector restarts. At the end the books
//! balance: every request and every call is one span, exported or reported lost; nothing is active; memory is flat.
//!
//! 20 s, or `NEMO_GYM_SOAK_SECONDS`.

mod otlp_support;
mod signals_support;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::{get, post};
use futures_util::StreamExt as _;
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::logs::{LogRecord as _, Logger as _, LoggerProvider as _};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data, number_data_point::Value};
use otlp_support::{Collector, Received, Reply};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

/// What was produced, counted outside of telemetry.
#[derive(Debug, Default)]
struct Tally {
    requests: AtomicU64,
    calls: AtomicU64,
    records: AtomicU64,
}

fn environment(collector: SocketAddr) -> Environment {
    Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
        // One span per request, one per call.
        ("NEMO_GYM_OTEL_SPAN_GROUPS", "server,http_client"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{collector}")),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "100"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "250"),
    ])
}

fn app(telemetry: &Telemetry, tally: &Arc<Tally>) -> Router {
    let logger = telemetry.logger_provider().unwrap().logger("soak");
    let (counted, logged) = (Arc::clone(tally), Arc::clone(tally));
    let verify = move || {
        let mut record = logger.create_log_record();
        record.set_body("verified".into());
        logger.emit(record);
        logged.records.fetch_add(1, SeqCst);
        async { "ok" }
    };
    let stream = || async {
        let ticks = futures_util::stream::unfold(0, |i| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            (i < 10).then(|| (Ok::<_, Infallible>(format!("data: {i}\n\n")), i + 1))
        });
        Body::from_stream(ticks)
    };
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        "late"
    };
    async fn panics() -> &'static str {
        panic!("soak: on purpose")
    }
    Router::new()
        .route("/verify", post(verify))
        .route("/v1/chat/completions", post(stream))
        .route("/slow", get(slow))
        .route("/panic", get(panics))
        .layer(GymTelemetryLayer::new(telemetry))
        // Outermost: counts what reaches the telemetry layer.
        .layer(from_fn(move |request: Request, next: Next| {
            counted.requests.fetch_add(1, SeqCst);
            next.run(request)
        }))
}

/// One client: a call after another, each of another kind.
async fn client(client: ClientWithMiddleware, url: String, tally: Arc<Tally>, until: Instant, mut kind: usize) {
    while Instant::now() < until {
        kind += 1;
        tally.calls.fetch_add(1, SeqCst);
        match kind % 7 {
            0 => {
                let _ = client.get(format!("{url}/panic")).send().await;
            }
            1 => {
                // Gone before the head.
                let call = client.get(format!("{url}/slow")).send();
                let _ = tokio::time::timeout(Duration::from_millis(20), call).await;
            }
            2 => {
                // Gone in the middle of the stream.
                if let Ok(answer) = client.post(format!("{url}/v1/chat/completions")).send().await {
                    let _ = answer.bytes_stream().next().await;
                }
            }
            3 => {
                if let Ok(answer) = client.post(format!("{url}/v1/chat/completions")).send().await {
                    assert_eq!(answer.text().await.unwrap().matches("data:").count(), 10);
                }
            }
            4 => {
                let _ = client.get(format!("{url}/nowhere/{kind}")).send().await;
            }
            _ => {
                let answer = client.post(format!("{url}/verify")).send().await.unwrap();
                assert_eq!(answer.text().await.unwrap(), "ok");
            }
        }
    }
}

/// Restarts the collector again and again; each life has another mood. The last one takes everything.
fn collectors(address: SocketAddr, first: Collector, until: Instant) -> Collector {
    let moods: [fn() -> Reply; 4] =
        [|| Reply::Take, || Reply::Refuse(503, None), || Reply::Slow(Duration::from_millis(30)), || Reply::Reset];
    let mut collector = first;
    let mut life = 0;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1500));
        drop(collector);
        std::thread::sleep(Duration::from_millis(300));
        life += 1;
        let mood = moods[life % moods.len()];
        collector = Collector::on(TcpListener::bind(address).unwrap(), move |_| mood());
    }
    drop(collector);
    Collector::on(TcpListener::bind(address).unwrap(), |_| Reply::Take)
}

/// Values of a sum in every export.
fn all(received: &Received, name: &str) -> Vec<i64> {
    let scopes = received.metrics.iter().flat_map(|r| &r.resource_metrics).flat_map(|r| &r.scope_metrics);
    let metrics = scopes.flat_map(|scope| &scope.metrics).filter(|metric| metric.name == name);
    metrics.flat_map(values).collect()
}

/// Values of the newest export of a sum, or counts of a histogram.
fn newest(received: &Received, name: &str) -> Vec<i64> {
    let scopes = received.metrics.iter().flat_map(|r| &r.resource_metrics).flat_map(|r| &r.scope_metrics);
    let metric = scopes.flat_map(|scope| &scope.metrics).rfind(|metric| metric.name == name);
    values(metric.unwrap_or_else(|| panic!("no {name}")))
}

fn values(metric: &Metric) -> Vec<i64> {
    match &metric.data {
        Some(Data::Sum(sum)) => sum
            .data_points
            .iter()
            .map(|point| match point.value {
                Some(Value::AsInt(value)) => value,
                ref other => panic!("{other:?}"),
            })
            .collect(),
        Some(Data::Histogram(histogram)) => histogram.data_points.iter().map(|point| point.count as i64).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_books_balance_after_mixed_traffic() {
    let seconds = std::env::var("NEMO_GYM_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let until = Instant::now() + Duration::from_secs(seconds);
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("soak: on purpose") {
            default_hook(info);
        }
    }));

    let first = Collector::start();
    let address = first.address;
    let telemetry = Telemetry::builder().with_environment(environment(address)).build();
    let tally = Arc::new(Tally::default());
    let restarts = std::thread::spawn(move || collectors(address, first, until));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (memory_early, memory_late) = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(axum::serve(listener, app(&telemetry, &tally)).into_future());
        let propagation = TracePropagation::builder().with_telemetry(&telemetry).build();
        let http = ClientBuilder::new(reqwest::Client::new()).with(propagation).build();
        let clients: Vec<_> =
            (0..8).map(|i| tokio::spawn(client(http.clone(), url.clone(), Arc::clone(&tally), until, i))).collect();
        tokio::time::sleep(Duration::from_secs(seconds) / 2).await;
        let early = signals_support::resident_memory();
        for client in clients {
            client.await.unwrap();
        }
        let late = signals_support::resident_memory();
        // Abandoned requests end when the server has noticed.
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.abort();
        (early, late)
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    let collector = restarts.join().unwrap();

    let report = telemetry.shutdown_blocking(Duration::from_secs(20));
    let [requests, calls, records] = [&tally.requests, &tally.calls, &tally.records].map(|count| count.load(SeqCst));
    eprintln!("{requests} requests, {calls} calls, {records} records; {}", report.delivery);
    eprintln!("memory: {} MiB at half time, {} MiB at the end", memory_early >> 20, memory_late >> 20);
    let (spans, logs) = (&report.delivery.spans, &report.delivery.log_records);
    assert!(!report.timed_out, "{report:?}");
    assert!(requests > 100 && spans.exported > 100, "{requests} requests; {spans}");
    assert_eq!(spans.exported + spans.lost_total(), requests + calls, "started = ended: {spans}");
    assert_eq!(logs.exported + logs.lost_total(), records, "{logs}");
    collector.look(|received| {
        let active = newest(received, "http.server.active_requests");
        assert!(!active.is_empty() && active.iter().all(|count| *count == 0), "{active:?}");
        assert!(all(received, "http.server.active_requests").iter().all(|count| *count >= 0), "never negative");
        let durations: i64 = newest(received, "http.server.request.duration").iter().sum();
        assert_eq!(durations as u64, requests, "one duration for each request");
        let exported: i64 = newest(received, "otel.sdk.processor.span.processed").iter().sum();
        assert_eq!(exported as u64, requests + calls, "the last metrics tell of all spans");
    });
    assert!(memory_late < memory_early + (32 << 20), "{memory_early} -> {memory_late}");
}
