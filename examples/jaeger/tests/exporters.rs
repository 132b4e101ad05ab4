//! A driver and a server with this crate's exporters: over both protocols, with and without compression.

mod support;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::job::Job;
use nemo_gym_telemetry::opentelemetry::logs::{LogRecord as _, Logger as _, LoggerProvider as _};
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use serde_json::Value;
use support::{Jaeger, Trace, tag};

#[tokio::test]
async fn grpc() {
    shows_what_servers_send("grpc", "none").await;
}

#[tokio::test]
async fn grpc_compressed() {
    shows_what_servers_send("grpc", "gzip").await;
}

#[tokio::test]
async fn http() {
    shows_what_servers_send("http/protobuf", "none").await;
}

#[tokio::test]
async fn http_compressed() {
    shows_what_servers_send("http/protobuf", "gzip").await;
}

async fn shows_what_servers_send(protocol: &str, compression: &str) {
    let jaeger = Jaeger::start();
    let endpoint = if protocol == "grpc" { &jaeger.grpc } else { &jaeger.http };
    let environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
        ("NEMO_GYM_OTEL_SPAN_GROUPS", "all"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", compression),
        // Absent: the machine would be asked.
        ("CUDA_VISIBLE_DEVICES", ""),
    ]);
    let telemetry = |name: &str, kind| {
        let identity = ServerIdentity::new(name, kind);
        Telemetry::builder().with_environment(environment.clone()).with_identity(identity).build()
    };
    let driver = telemetry("driver", ServerType::Supervisor);
    let server = telemetry("my_resources", ServerType::ResourcesServers);

    let broken = get(|| async { StatusCode::INTERNAL_SERVER_ERROR });
    let routes = Router::new().route("/verify", post(|| async { r#"{"reward": 1.0}"# })).route("/broken", broken);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(axum::serve(listener, routes.layer(GymTelemetryLayer::new(&server))).into_future());

    let propagation = TracePropagation::builder().with_telemetry(&driver).build();
    let client = reqwest_middleware::ClientBuilder::new(support::client()).with(propagation).build();
    let job = Job::start(&driver);
    job.rollout(async {
        client.post(format!("http://{address}/verify")).send().await.unwrap().text().await.unwrap();
        client.get(format!("http://{address}/broken")).send().await.unwrap().text().await.unwrap();
    })
    .await;
    drop(job);
    for telemetry in [&driver, &server] {
        let logger = telemetry.logger_provider().expect("logs are on").logger("test");
        let mut record = logger.create_log_record();
        record.set_body("a line".into());
        logger.emit(record);
        let delivery = telemetry.shutdown().await.delivery;
        assert!(delivery.is_complete(), "{delivery:?}");
        for signal in [&delivery.spans, &delivery.metric_data_points, &delivery.log_records] {
            assert!(signal.exported > 0, "{delivery:?}");
        }
    }
    serving.abort();

    let traces = jaeger.traces("nemo-gym/driver").await;
    let with = |name: &str| -> &Trace {
        traces.iter().find(|trace| trace.spans().iter().any(|span| span["operationName"] == name)).unwrap()
    };
    let job = with("gym.job");
    // A client knows the templates of Gym's own routes only.
    let exchanges = [("POST /verify", "POST /verify", Value::Null), ("GET", "GET /broken", Value::Bool(true))];
    for (call, handled, error) in exchanges {
        let trace = with(handled);
        assert_eq!(trace.orphans(), 0, "{trace:#?}");
        let (call, handled) = (trace.span(call, "client"), trace.span(handled, "server"));
        assert_eq!(trace.parent(call), None);
        assert_eq!(trace.parent(handled), Some(call));
        assert_eq!((tag(call, "error"), tag(handled, "error")), (&error, &error), "{trace:#?}");
        assert_eq!(tag(call, "otel.link"), &job.0["traceID"]);
        for (span, service) in [(call, "nemo-gym/driver"), (handled, "nemo-gym/my_resources")] {
            let process = trace.process(span);
            assert_eq!((&process["serviceName"], tag(process, "service.name")), (&service.into(), &service.into()));
            assert_eq!(tag(process, "telemetry.sdk.language"), "rust");
        }
    }
}
