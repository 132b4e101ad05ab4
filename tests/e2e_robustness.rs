//! Telemetry never gets in the way: junk in headers and variables changes no answer and stops no server, and a collector
//! that is not there delays nothing.

mod e2e;

use std::time::{Duration, Instant};

use e2e::fleet::{Fleet, telemetry_to};
use e2e::process::{Server, example};
use serde_json::{Value, json};

/// Bytes that have no place in these headers, and some that have.
const JUNK: [&[u8]; 12] = [
    b"",
    b" ",
    b"xz",
    b"\xb2\xff\xfe",
    b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
    b"00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
    b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz,00-x",
    b"a=b,,=,;;=;k=%zz,\x80=1",
    b"%00%0d%0aset-cookie:x=1",
    &[b'a'; 7000],
];

const HEADERS: [&str; 7] =
    ["traceparent", "tracestate", "baggage", "user-agent", "x-forwarded-for", "x-request-id", "cookie"];

async fn answers(server: &Server, header: &str, value: &[u8]) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.post(format!("{}/get_weather?token=%zz&x", server.url)).json(&json!({"city": "sf"}));
    if let Ok(value) = reqwest::header::HeaderValue::from_bytes(value) {
        request = request.header(header, value);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_in_a_header_changes_no_answer() {
    let off = Server::start(example("resources_server")).await;
    let mut command = example("resources_server");
    command.envs(telemetry_to("http://127.0.0.1:9", "grpc", "junk"));
    let mut on = Server::start(command).await;
    for header in HEADERS {
        for value in JUNK {
            assert_eq!(answers(&on, header, value).await, answers(&off, header, value).await, "{header}: {value:?}");
        }
    }
    on.stop().await;
    assert!(!on.process.stderr().contains("panicked"), "{}", on.process.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_in_a_variable_stops_no_server() {
    let variables = [
        "NEMO_GYM_OTEL_SPAN_GROUPS",
        "NEMO_GYM_OTEL_TRACES_ENABLED",
        "NEMO_GYM_OTEL_METRICS_ENABLED",
        "NEMO_GYM_OTEL_LOGS_ENABLED",
        "NEMO_GYM_OTEL_RUN_ID",
        "NEMO_GYM_OTEL_MEMORY_PROFILING_INTERVAL_SECONDS",
        "NEMO_GYM_OTEL_EVENT_LOOP_SAMPLE_INTERVAL_SECONDS",
        "NEMO_GYM_CONFIG_PATH",
        "NEMO_GYM_CONFIG_DICT",
        "NEMO_GYM_STARTUP_TRACEPARENT",
        "NEMO_GYM_STARTUP_SPAWN_NS",
        "OTEL_SERVICE_NAME",
        "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_TRACES_SAMPLER",
        "OTEL_TRACES_SAMPLER_ARG",
        "OTEL_PROPAGATORS",
        "OTEL_METRIC_EXPORT_INTERVAL",
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "OTEL_BSP_SCHEDULE_DELAY",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
        "OTEL_EXPORTER_OTLP_COMPRESSION",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
        "TRACEPARENT",
    ];
    let junk: [&[u8]; 5] = [b"", b"  ", b"\xff\xfe\x80", b"%zz,=;{[\"-1e999", b"-1"];
    for value in junk {
        use std::os::unix::ffi::OsStrExt as _;
        let mut command = example("resources_server");
        command.env("NEMO_GYM_OTEL_ENABLED", "1").env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
        command.envs(variables.map(|name| (name, std::ffi::OsStr::from_bytes(value))));
        let mut server = Server::start(command).await;
        let expected = (200, json!({"city": "sf", "weather_description": "cold in sf"}));
        assert_eq!(answers(&server, "traceparent", b"junk").await, expected, "{value:?}");
        server.stop().await;
        assert!(!server.process.stderr().contains("panicked"), "{value:?}: {}", server.process.stderr());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_delays_neither_start_nor_requests() {
    // Nothing listens on the first; the second accepts and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for endpoint in ["http://127.0.0.1:9", &silent] {
        for protocol in ["grpc", "http/protobuf"] {
            let begun = Instant::now();
            let mut fleet = Fleet::start(&telemetry_to(endpoint, protocol, "absent")).await;
            let started = begun.elapsed();
            assert!(started < Duration::from_secs(3 * 4), "three servers in {started:?}");
            for task in 0..20 {
                let begun = Instant::now();
                fleet.rollout(task, &[]).await;
                assert!(begun.elapsed() < Duration::from_secs(2), "{endpoint} {protocol}: {:?}", begun.elapsed());
            }
            let begun = Instant::now();
            fleet.stop().await;
            assert!(begun.elapsed() < Duration::from_secs(9), "{endpoint} {protocol}: ends in {:?}", begun.elapsed());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_signals_end_a_server_cleanly() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        for variables in [vec![], telemetry_to("http://127.0.0.1:9", "grpc", "signals")] {
            let mut command = example("model_server");
            command.envs(variables);
            let mut server = Server::start(command).await;
            server.process.signal(signal);
            let status = server.process.wait().await;
            assert_eq!(status.code(), Some(0), "signal {signal}: {}", server.process.stderr());
        }
    }
}
