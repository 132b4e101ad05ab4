//! A server whose collector is not there yet: nobody notices, and nothing is missing afterwards (casebook EXP-05).

mod e2e;
mod otlp_support;
mod signals_support;

use std::time::{Duration, Instant};

use e2e::process::{Server, example};
use otlp_support::{ClosedPort, Collector, PROTOCOLS, Reply};
use signals_support::resident_memory_of;

/// Both at once, in seconds; the casebook's 30 with `NEMO_GYM_OUTAGE_SECONDS=30`.
fn outage() -> Duration {
    let seconds = std::env::var("NEMO_GYM_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

const INTERVAL: Duration = Duration::from_secs(1);

/// 50 requests a second; how long each took, in order of size.
async fn load(url: &str, duration: Duration) -> Vec<Duration> {
    let client = reqwest::Client::new();
    let body = serde_json::json!({
        "responses_create_params": {"input": []},
        "response": {"output": []},
    });
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let mut took = Vec::new();
    let began = Instant::now();
    while began.elapsed() < duration {
        tick.tick().await;
        let sent = Instant::now();
        client.post(format!("{url}/verify")).json(&body).send().await.unwrap().bytes().await.unwrap();
        took.push(sent.elapsed());
    }
    took.sort();
    took
}

async fn outage_of(protocol: &str) {
    let port = ClosedPort::reserve();
    let interval = INTERVAL.as_millis().to_string();
    let mut command = example("resources_server");
    command.args(["--port", "0"]).envs([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", port.address)),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_BSP_SCHEDULE_DELAY", &interval),
        ("OTEL_METRIC_EXPORT_INTERVAL", &interval),
        ("CUDA_VISIBLE_DEVICES", ""),
    ]);
    let began = Instant::now();
    let mut server = Server::start(command).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{protocol}: started after {:?}", began.elapsed());

    let mut sent = load(&server.url, Duration::from_millis(500)).await.len();
    let before = resident_memory_of(server.process.id());
    let without = load(&server.url, outage()).await;
    sent += without.len();
    let growth = resident_memory_of(server.process.id()).saturating_sub(before);
    assert!(growth < 64 << 20, "{protocol}: grew by {growth} bytes");

    let collector = Collector::on(port.open(), |_| Reply::Take);
    let back = Instant::now();
    let arrived = move |received: &otlp_support::Received| {
        received.spans.iter().filter(|name| *name == "POST /verify").count() == sent
            && received.newest("http.server.request.duration") == Some(sent as u64)
    };
    let collector = tokio::task::spawn_blocking(move || {
        collector.wait_for("everything of the outage", arrived);
        collector
    })
    .await
    .unwrap();
    let back = back.elapsed();
    // The two intervals, and one for a busy machine.
    assert!(back < 3 * INTERVAL, "{protocol}: {back:?} until everything was there");

    let with = load(&server.url, outage()).await;
    let p99 = |took: &[Duration]| took[took.len() * 99 / 100];
    println!(
        "{protocol}: p99 {:?} without and {:?} with a collector, {growth} bytes more, all there {back:?} after its start",
        p99(&without),
        p99(&with),
    );
    // What is measured on a busy machine scatters; waiting for the collector would be seconds.
    assert!(p99(&without) < 3 * p99(&with) + Duration::from_millis(50), "{protocol}: {without:?}");
    assert!(server.process.terminate().await.success());
    let stderr = server.process.stderr();
    let said: Vec<_> = stderr.lines().filter(|line| !line.contains("tokio runtime:")).collect();
    // A long outage costs exports of metrics, whose successors carry the sums; that is said at the end once more.
    let in_total = said.iter().filter(|line| line.contains("telemetry was lost")).count();
    assert!((1..=1 + outage().as_secs() as usize / 10 + in_total).contains(&said.len()), "{protocol}: {said:#?}");
    let spans_lost =
        |line: &str| line.contains("telemetry was lost") && !line.contains(" exported, 0 lost; log records");
    assert!(!said.iter().any(|line| spans_lost(line)), "{said:#?}");
    drop(collector);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_notices_a_late_collector() {
    tokio::join!(outage_of(PROTOCOLS[0]), outage_of(PROTOCOLS[1]));
}
