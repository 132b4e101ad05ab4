//! Names and routes of SERVER spans in every placement (ING-05, ING-06).

mod ingress_support;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use ingress_support::*;
use nemo_gym_telemetry::ServerIdentity;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::rollout::with_rollout_prefix;
use tower::{Layer, Service, ServiceExt};

fn routes() -> Router {
    Router::new()
        .route(
            "/items/{id}",
            get(|Path(id): Path<String>| async move {
                if id == "7" { (StatusCode::NOT_FOUND, "no such item") } else { (StatusCode::OK, "an item") }
            }),
        )
        .route("/verify", post(|| async { "verified" }))
        .route("/files/{*path}", get(|| async { "a file" }))
}

async fn send<S, B>(service: S, method: &str, path: &str) -> StatusCode
where
    S: Service<http::Request<axum::body::Body>, Response = http::Response<B>, Error = std::convert::Infallible>,
    B: http_body::Body,
{
    let response = service.oneshot(request(method, path)).await.unwrap();
    let status = response.status();
    drop(response.into_body().collect().await);
    status
}

/// Sends one request through a fresh app and tells the SERVER span's name and route.
async fn named(make: fn(GymTelemetryLayer) -> Router, method: &str, path: &str) -> (String, Option<String>) {
    let rig = Rig::resources();
    send(make(GymTelemetryLayer::new(&rig.telemetry)), method, path).await;
    let span = rig.server_span();
    (span.name.to_string(), text(&span, "http.route"))
}

fn is(name: &str, route: &str) -> (String, Option<String>) {
    (name.to_owned(), Some(route.to_owned()))
}

#[tokio::test]
async fn routes_of_a_layered_router() {
    let layered = |layer| routes().layer(layer);
    assert_eq!(named(layered, "GET", "/items/1").await, is("GET /items/{id}", "/items/{id}"));
    assert_eq!(named(layered, "GET", "/items/7").await, is("GET /items/{id}", "/items/{id}"), "a handler's 404");
    assert_eq!(named(layered, "DELETE", "/items/7").await, is("DELETE /items/{id}", "/items/{id}"), "405");
    assert_eq!(named(layered, "GET", "/files/a/b").await, is("GET /files/{*path}", "/files/{*path}"));
    assert_eq!(named(layered, "GET", "/nope/1").await, ("GET".to_owned(), None));
    assert_eq!(named(layered, "FOOBAR", "/items/1").await, is("HTTP /items/{id}", "/items/{id}"));
    assert_eq!(named(layered, "get", "/nope").await, ("HTTP".to_owned(), None));
    let route_layered = |layer| routes().route_layer(layer);
    assert_eq!(named(route_layered, "GET", "/items/1").await, is("GET /items/{id}", "/items/{id}"));
}

#[tokio::test]
async fn a_layer_inside_a_401_keeps_the_route() {
    let guarded = |layer| {
        let refuse = from_fn(|_: axum::extract::Request, _: Next| async { StatusCode::UNAUTHORIZED });
        routes().layer(refuse).layer(layer)
    };
    assert_eq!(named(guarded, "GET", "/items/1").await, is("GET /items/{id}", "/items/{id}"));
}

#[tokio::test]
async fn nested_merged_and_fallback() {
    fn nested(layer: GymTelemetryLayer) -> Router {
        let inner = routes().fallback(|| async { (StatusCode::NOT_FOUND, "inner") });
        let merged = Router::new().route("/merged/{x}", get(|| async { "merged" }));
        Router::new()
            .nest("/api", inner)
            .merge(merged)
            .fallback(|| async { (StatusCode::NOT_FOUND, "outer") })
            .layer(layer)
    }
    assert_eq!(named(nested, "GET", "/api/items/1").await, is("GET /api/items/{id}", "/api/items/{id}"));
    assert_eq!(named(nested, "GET", "/merged/1").await, is("GET /merged/{x}", "/merged/{x}"));
    for path in ["/api", "/api/", "/api/nope", "/nope", "/api/nope/x"] {
        assert_eq!(named(nested, "GET", path).await, ("GET".to_owned(), None), "{path}");
    }
    fn inner_only(layer: GymTelemetryLayer) -> Router {
        Router::new().nest("/api", routes().layer(layer))
    }
    assert_eq!(named(inner_only, "GET", "/api/items/1").await, is("GET /api/items/{id}", "/api/items/{id}"));
    fn service(layer: GymTelemetryLayer) -> Router {
        Router::new().nest_service("/api", routes()).layer(layer)
    }
    let (name, route) = named(service, "GET", "/api/items/1").await;
    assert_eq!((name.as_str(), route), ("GET", None), "behind nest_service no template can be known");
}

#[tokio::test]
async fn layered_twice_is_one_span_with_the_inner_route() {
    let rig = Rig::resources();
    let layer = GymTelemetryLayer::new(&rig.telemetry);
    let app = layer.layer(Router::new().nest("/api", routes().layer(layer.clone())).layer(layer.clone()));
    send(app, "GET", "/api/items/1").await;
    let span = rig.server_span();
    assert_eq!(
        (span.name.as_ref(), text(&span, "http.route").as_deref()),
        ("GET /api/items/{id}", Some("/api/items/{id}"))
    );
    assert_eq!(rig.total("http.server.request.duration"), 1.0);
    assert_eq!(rig.total("http.server.active_requests"), 0.0);
}

#[tokio::test]
async fn around_the_router() {
    let rig = Rig::resources();
    let layer = GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).with_route("/items/{id}").build();
    let app = layer.layer(routes());
    for (method, path) in
        [("POST", "/verify"), ("GET", "/verify"), ("GET", "/items/1"), ("GET", "/items/7"), ("GET", "/files/x")]
    {
        send(app.clone(), method, path).await;
    }
    let names: Vec<_> = rig.server_spans().iter().map(|span| span.name.to_string()).collect();
    assert_eq!(names, ["POST /verify", "GET /verify", "GET /items/{id}", "GET /items/{id}", "GET"]);
}

#[tokio::test]
async fn a_gym_route_that_the_router_lacks_is_unmatched() {
    let rig = Rig::with_identity("all", ServerIdentity::unknown());
    let app = GymTelemetryLayer::new(&rig.telemetry).layer(routes());
    assert_eq!(send(app.clone(), "POST", "/run").await, StatusCode::NOT_FOUND);
    let span = rig.server_span();
    assert_eq!((span.name.as_ref(), text(&span, "http.route")), ("POST", None));
    assert!(rig.points("http.server.request.duration").keys().all(|key| !key.contains("http.route")));
}

#[tokio::test]
async fn a_layer_that_cannot_see_the_route_is_told_by_the_prefixed_router() {
    for around in [true, false] {
        let rig = Rig::resources();
        let layer = GymTelemetryLayer::new(&rig.telemetry);
        let app = if around {
            Router::new().fallback_service(with_rollout_prefix(routes())).layer(layer)
        } else {
            with_rollout_prefix(routes().layer(layer))
        };
        for path in [
            "/items/1",
            "/ng-rollout/3-0/items/1",
            "/ng-rollout/3-0/training-token-capture/items/1",
            "/ng-rollout/-bad/items/1",
        ] {
            send(app.clone(), "GET", path).await;
        }
        let spans = rig.server_spans();
        let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
        let prefixed = "GET /ng-rollout/{rollout_id}/items/{id}";
        let captured = "GET /ng-rollout/{rollout_id}/training-token-capture/items/{id}";
        assert_eq!(names[..3], ["GET /items/{id}", prefixed, captured], "around: {around}");
        let ids: Vec<_> = spans.iter().map(|span| text(span, "nemo.gym.rollout.id")).collect();
        assert_eq!(ids[..3], [None, Some("3-0".to_owned()), Some("3-0".to_owned())]);
        assert_eq!(text(&spans[1], "url.path").as_deref(), Some("/ng-rollout/3-0/items/1"));
        if around {
            // A router that the layer is inside of has not stripped the prefix: 404 outside of every layer.
            assert_eq!(names[3], "GET");
        }
    }
}

#[tokio::test]
async fn unmatched_paths_are_one_series() {
    let rig = Rig::resources();
    let app = routes().layer(GymTelemetryLayer::new(&rig.telemetry));
    for n in 0..1000 {
        send(app.clone(), "GET", &format!("/scan/{n}.php?x={n}")).await;
    }
    send(app.clone(), "BREW", "/scan").await;
    let points = rig.points("http.server.request.duration");
    assert_eq!(points.len(), 2, "{points:?}");
    assert!(points.keys().any(|key| key.contains("http.request.method=_OTHER")));
    let span = rig.server_spans().pop().unwrap();
    assert_eq!(text(&span, "http.request.method").as_deref(), Some("_OTHER"));
    assert_eq!(text(&span, "http.request.method_original").as_deref(), Some("BREW"));
}
