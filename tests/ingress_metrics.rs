//! Metrics of the server layer (MET-01, MET-03, MET-05), and that they add up.

mod ingress_support;

use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::{get, post};
use http_body_util::BodyExt;
use ingress_support::*;
use nemo_gym_telemetry::ServerType;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use tower::ServiceExt;

fn router() -> Router {
    Router::new()
        .route(
            "/sleep/{ms}",
            get(|Path(ms): Path<u64>| async move { tokio::time::sleep(Duration::from_millis(ms)).await }),
        )
        .route("/verify", post(|| async { r#"{"reward": 0.0}"# }))
        .route("/run", post(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .route("/health", get(|| async { "ok" }))
        .route("/v1/healthcare", post(|| async { "care" }))
        .route("/api/health", get(|| async { "ok" }))
}

async fn send(app: &Router, request: http::Request<axum::body::Body>) -> StatusCode {
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    drop(response.into_body().collect().await);
    status
}

#[tokio::test]
async fn durations_are_seconds_in_the_advised_buckets() {
    let rig = Rig::resources();
    let app = router().layer(GymTelemetryLayer::new(&rig.telemetry));
    for ms in [3, 40, 300] {
        send(&app, request("GET", &format!("/sleep/{ms}"))).await;
    }
    let points = rig.points("http.server.request.duration");
    let (key, (count, sum)) = points.iter().next().unwrap();
    assert_eq!(
        key,
        "http.request.method=GET http.response.status_code=200 http.route=/sleep/{ms} network.protocol.version=1.1 url.scheme=http"
    );
    assert_eq!((points.len(), *count), (1, 3.0));
    assert!((0.343..3.0).contains(sum), "{sum}");
    let (bounds, counts) = rig.bounds("http.server.request.duration").pop().unwrap();
    assert_eq!(bounds, [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]);
    assert!(counts.iter().filter(|count| **count > 0).count() >= 2, "{counts:?}");
}

#[tokio::test]
async fn what_a_client_sends_makes_no_series() {
    let rig = Rig::resources();
    let app = router().layer(GymTelemetryLayer::new(&rig.telemetry));
    for n in 0..5000 {
        let mut request = request("POST", &format!("/verify?n={n}"));
        for (name, value) in [
            ("host", format!("h{n}.example")),
            ("x-forwarded-host", format!("f{n}")),
            ("user-agent", format!("agent/{n}")),
        ] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        send(&app, request).await;
    }
    assert_eq!(rig.points("http.server.request.duration").len(), 1);
    assert_eq!(rig.points("http.server.active_requests").len(), 1);
    assert_eq!(rig.points("gym.verify.duration_ms")[""].0, 5000.0);
}

#[tokio::test]
async fn a_wrong_answer_is_a_success_and_a_failing_verifier_is_not() {
    let rig = Rig::resources();
    let app = router().layer(GymTelemetryLayer::new(&rig.telemetry));
    send(&app, request("POST", "/verify")).await;
    assert_eq!(rig.points("gym.verify.success_rate")[""].0, 1.0);
    assert_eq!(rig.points("gym.verify.completed_total")["nemo.gym.verify.outcome=success"].0, 1.0);

    let rig = Rig::new("all", ServerType::ResponsesApiAgents);
    let app = router().layer(GymTelemetryLayer::new(&rig.telemetry));
    send(&app, request("POST", "/run")).await;
    assert_eq!(rig.points("gym.rollout.completed_total")["nemo.gym.rollout.outcome=failure"].0, 1.0);
    assert_eq!(rig.points("gym.rollout.duration_ms")[""].0, 1.0, "failures are samples too");
}

#[tokio::test]
async fn excluded_paths_are_exact() {
    let rig = Rig::resources();
    let app = router().layer(GymTelemetryLayer::new(&rig.telemetry));
    for _ in 0..100 {
        assert_eq!(send(&app, request("GET", "/health")).await, 200);
    }
    assert!(rig.spans().is_empty());
    assert_eq!(rig.total("http.server.request.duration"), 0.0);
    assert!(rig.points("http.server.active_requests").is_empty());
    send(&app, request("POST", "/v1/healthcare")).await;
    send(&app, request("GET", "/api/health")).await;
    send(&app, request("GET", "/health/")).await;
    let names: Vec<_> = rig.server_spans().iter().map(|span| span.name.to_string()).collect();
    assert_eq!(names, ["POST /v1/healthcare", "GET /api/health", "GET"]);

    let rig = Rig::resources();
    let layer = GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).with_excluded_path("/api/health").build();
    let app = router().layer(layer);
    send(&app, request("GET", "/api/health")).await;
    assert!(rig.spans().is_empty());
    let layer = GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).without_excluded_paths().build();
    send(&router().layer(layer), request("GET", "/health")).await;
    assert_eq!(rig.server_span().name, "GET /health");
}

#[tokio::test]
async fn groups_gate_their_metrics() {
    let rig = Rig::new("server", ServerType::ResourcesServers);
    let app = router().layer(GymTelemetryLayer::new(&rig.telemetry));
    send(&app, request("POST", "/verify")).await;
    assert_eq!(rig.total("http.server.request.duration"), 1.0);
    assert_eq!(rig.total("gym.verify.duration_ms"), 0.0);

    let rig = Rig::new("verify", ServerType::ResourcesServers);
    let app = router().layer(GymTelemetryLayer::new(&rig.telemetry));
    send(&app, request("POST", "/verify")).await;
    assert_eq!(rig.total("http.server.request.duration"), 0.0);
    assert!(rig.points("http.server.active_requests").is_empty());
    assert_eq!(rig.total("gym.verify.duration_ms"), 1.0);
}

#[tokio::test]
async fn body_sizes_are_opt_in() {
    let rig = Rig::resources();
    let layer = GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).with_body_sizes(true).build();
    send(&router().layer(layer), request("POST", "/verify")).await;
    let points = rig.points("http.server.response.body.size");
    assert_eq!(points.values().next(), Some(&(1.0, r#"{"reward": 0.0}"#.len() as f64)));
    assert_eq!(rig.total("http.server.request.duration"), 1.0);
}
