//! The rollout id on every kind of server: prefix, /run body, baggage.

mod ingress_support;

use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::BodyExt;
use ingress_support::*;
use nemo_gym_telemetry::ServerType;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::rollout::{
    RolloutId, current_rollout_id, rollout_id_from_run_body, set_rollout_id, with_rollout_prefix,
};
use serde_json::json;
use tower::{Layer, ServiceExt};

async fn current() -> String {
    let inside = current_rollout_id();
    let spawned = nemo_gym_telemetry::span::spawn(async { current_rollout_id() }).await.unwrap();
    assert_eq!(inside, spawned, "the helper carries the id");
    inside.map(|id| id.to_string()).unwrap_or_default()
}

fn router() -> Router {
    Router::new()
        .route("/v1/responses", post(current))
        .route("/verify", post(current))
        .route("/get_weather", post(current))
        .route("/items/{id}", get(|Path(id): Path<String>| async move { id }))
        .route(
            "/run",
            post(|Json(body): Json<serde_json::Value>| async move {
                match rollout_id_from_run_body(&body) {
                    Ok(Some(id)) => {
                        set_rollout_id(&id);
                        set_rollout_id(&RolloutId::new("another").unwrap());
                        current().await
                    }
                    Ok(None) => current().await,
                    Err(error) => error.to_string(),
                }
            }),
        )
}

async fn answer(app: &Router, request: http::Request<axum::body::Body>) -> String {
    let response = app.clone().oneshot(request).await.unwrap();
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// The router answers under the prefix; the layer is inside of it, then around it.
fn apps(rig: &Rig) -> [Router; 2] {
    let layer = GymTelemetryLayer::new(&rig.telemetry);
    let around = Router::new().fallback_service(layer.layer(with_rollout_prefix(router())));
    [with_rollout_prefix(router().layer(layer)), around]
}

#[tokio::test]
async fn the_prefix_gives_the_id_to_both_spans_and_to_the_handler() {
    let cases = [
        (ServerType::ResourcesServers, "/verify", "gym.verify"),
        (ServerType::ResponsesApiAgents, "/v1/responses", "gym.agent.responses"),
        (ServerType::ResponsesApiModels, "/v1/responses", "gym.model.responses"),
    ];
    for (server_type, path, semantic) in cases {
        for form in ["", "/training-token-capture"] {
            for which in 0..2 {
                let rig = Rig::new("all", server_type.clone());
                let app = &apps(&rig)[which];
                let url = format!("/ng-rollout/3-0-a2{form}{path}");
                assert_eq!(answer(app, request("POST", &url)).await, "3-0-a2");
                let server = rig.server_span();
                assert_eq!(server.name, format!("POST /ng-rollout/{{rollout_id}}{form}{path}"));
                let inner = rig.span(semantic);
                for span in [&server, &inner] {
                    assert_eq!(text(span, "nemo.gym.rollout.id").as_deref(), Some("3-0-a2"));
                }
                assert_eq!(inner.parent_span_id, server.span_context.span_id());
                assert_eq!(text(&inner, "nemo.gym.server.name").as_deref(), Some("example_server"));
            }
        }
    }
}

#[tokio::test]
async fn a_path_parameter_stays_the_only_one_under_the_prefix() {
    let rig = Rig::resources();
    for app in &apps(&rig) {
        assert_eq!(answer(app, request("GET", "/ng-rollout/3-0/items/x")).await, "x");
    }
}

#[tokio::test]
async fn a_malformed_id_is_no_prefix() {
    let rig = Rig::resources();
    for app in &apps(&rig) {
        for path in ["/ng-rollout/-x/verify", "/ng-rollout/a%20b/verify", "/ng-rollout//verify", "/ng-rollout/a"] {
            let status = app.clone().oneshot(request("POST", path)).await.unwrap().status();
            assert_eq!(status, 404, "{path}");
        }
    }
    assert!(rig.spans().iter().all(|span| text(span, "nemo.gym.rollout.id").is_none()));
}

fn run(body: serde_json::Value) -> http::Request<axum::body::Body> {
    let mut request = request("POST", "/run");
    request.headers_mut().insert("content-type", "application/json".parse().unwrap());
    *request.body_mut() = body.to_string().into();
    request
}

#[tokio::test]
async fn the_id_of_a_run_body_reaches_the_spans_that_are_open_already() {
    let rig = Rig::new("all", ServerType::ResponsesApiAgents);
    let app = &apps(&rig)[0];
    let body = json!({"_ng_task_index": 3, "_ng_rollout_index": 1, "_ng_attempt_index": 2});
    assert_eq!(answer(app, run(body)).await, "3-1-a2");
    for span in [rig.server_span(), rig.span("gym.rollout")] {
        assert_eq!(text(&span, "nemo.gym.rollout.id").as_deref(), Some("3-1-a2"), "once, and the first");
    }
}

#[tokio::test]
async fn a_run_body_without_or_with_a_bad_id() {
    let rig = Rig::new("all", ServerType::ResponsesApiAgents);
    let app = &apps(&rig)[0];
    assert_eq!(answer(app, run(json!({}))).await, "");
    assert!(answer(app, run(json!({"_ng_rollout_id": "-bad/1"}))).await.contains("must match"));
    assert!(rig.spans().iter().all(|span| text(span, "nemo.gym.rollout.id").is_none()));
}

#[tokio::test]
async fn baggage_gives_the_id_where_the_path_does_not() {
    let rig = Rig::resources();
    let app = &apps(&rig)[0];
    let with_baggage = |path: &str, id: &str| {
        let mut request = request("POST", path);
        request.headers_mut().insert("baggage", format!("a=b,nemo.gym.rollout.id={id}").parse().unwrap());
        request
    };
    assert_eq!(answer(app, with_baggage("/verify", "7-7")).await, "7-7");
    assert_eq!(text(&rig.server_span(), "nemo.gym.rollout.id").as_deref(), Some("7-7"));
    assert_eq!(answer(app, with_baggage("/ng-rollout/3-0/verify", "7-7")).await, "3-0", "the path wins");
    assert_eq!(answer(app, with_baggage("/verify", "%2Fbad")).await, "", "a malformed id is none");
}

#[tokio::test]
async fn without_telemetry_the_prefix_still_answers() {
    let layer = GymTelemetryLayer::new(&nemo_gym_telemetry::Telemetry::disabled());
    let app = with_rollout_prefix(router().layer(layer));
    let response = app.oneshot(request("POST", "/ng-rollout/3-0/verify")).await.unwrap();
    assert_eq!(response.status(), 200);
}
