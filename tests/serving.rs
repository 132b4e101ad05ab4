//! `serve` inside a process: triggers, several servers, services around a router.

mod otlp_support;

use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{Telemetry, serve};
use otlp_support::{Collector, environment};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tower_layer::Layer;

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hello", listener.local_addr().unwrap());
    (listener, url)
}

fn router() -> Router {
    Router::new()
        .route("/hello", get(|ConnectInfo(peer): ConnectInfo<std::net::SocketAddr>| async move { peer.to_string() }))
}

fn build(collector: &Collector) -> Telemetry {
    Telemetry::builder().with_environment(environment(&collector.url(), "grpc")).build()
}

/// Names of the SERVER spans; there are others, of the start-up.
fn requests(collector: &Collector) -> Vec<String> {
    collector.look(|r| r.spans.iter().filter(|name| name.starts_with("GET ")).cloned().collect())
}

#[tokio::test]
async fn a_router_and_a_service_around_one_are_served() {
    let collector = Collector::start();
    let telemetry = build(&collector);
    let layer = GymTelemetryLayer::builder().with_telemetry(&telemetry).with_route("/hello").build();
    let (first, first_url) = listener().await;
    let (second, second_url) = listener().await;
    let (end, ended) = oneshot::channel::<()>();
    let (end_too, ended_too) = oneshot::channel::<()>();
    let outside = serve(first, layer.layer(router()), &telemetry).with_graceful_shutdown(async { drop(ended.await) });
    let inside =
        serve(second, router().layer(layer), &telemetry).with_graceful_shutdown(async { drop(ended_too.await) });
    let (outside, inside) = (tokio::spawn(outside.into_future()), tokio::spawn(inside.into_future()));
    for url in [&first_url, &second_url] {
        let response = reqwest::get(url).await.unwrap();
        assert!(response.text().await.unwrap().starts_with("127.0.0.1:"), "the handler knows its peer");
    }
    // The first to end leaves telemetry to the other.
    drop(end);
    outside.await.unwrap().unwrap();
    assert!(telemetry.is_enabled());
    reqwest::get(&second_url).await.unwrap();
    drop(end_too);
    inside.await.unwrap().unwrap();
    assert!(!telemetry.is_enabled());
    assert_eq!(requests(&collector), ["GET /hello"; 3]);
}

/// A server that is dropped in the middle does not keep the others from ending telemetry.
#[tokio::test]
async fn a_dropped_server_does_not_count() {
    let collector = Collector::start();
    let telemetry = build(&collector);
    let never = serve(listener().await.0, router(), &telemetry).with_graceful_shutdown(std::future::pending());
    drop(tokio::time::timeout(Duration::from_millis(50), never.into_future()).await);
    assert!(telemetry.is_enabled());
    serve(listener().await.0, router(), &telemetry).with_graceful_shutdown(std::future::ready(())).await.unwrap();
    assert!(!telemetry.is_enabled());
}

/// Requests whose handlers panic or whose clients leave do not harm the server.
#[tokio::test]
async fn the_server_outlives_its_requests() {
    let collector = Collector::start();
    let telemetry = build(&collector);
    let app = router()
        .route(
            "/panic",
            get(|| async {
                if true {
                    panic!("in a handler")
                }
            }),
        )
        .layer(GymTelemetryLayer::new(&telemetry));
    let (listener, url) = listener().await;
    let (end, ended) = oneshot::channel::<()>();
    let server = serve(listener, app, &telemetry).with_graceful_shutdown(async { drop(ended.await) });
    let server = tokio::spawn(server.into_future());
    let base = url.strip_suffix("/hello").unwrap();
    for _ in 0..5 {
        assert!(reqwest::get(format!("{base}/panic")).await.is_err());
        drop(tokio::net::TcpStream::connect(base.strip_prefix("http://").unwrap()).await.unwrap());
        assert!(reqwest::get(&url).await.unwrap().status().is_success());
    }
    drop(end);
    server.await.unwrap().unwrap();
    let mut spans = requests(&collector);
    spans.sort();
    assert_eq!(spans, [["GET /hello"; 5], ["GET /panic"; 5]].concat());
}
