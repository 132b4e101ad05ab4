//! New connections are counted and timed.

mod egress_support;

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use egress_support::*;
use nemo_gym_telemetry::egress::{ConnectionMetricsLayer, DestinationServer};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

fn client(rig: &Rig, layer: ConnectionMetricsLayer) -> ClientWithMiddleware {
    let layer = layer.with_telemetry(&rig.telemetry);
    let client = reqwest::Client::builder().connector_layer(layer).build().unwrap();
    ClientBuilder::new(client).with(rig.middleware()).build()
}

const TOTAL: &str = "gym.http.connection_pool.connect_total";
const DURATION: &str = "gym.http.connection_pool.connect_duration_ms";
const SERVER: &str = "nemo.gym.http.destination.server.name";
const OUTCOME: &str = "nemo.gym.http.connection_pool.connect_outcome";

#[tokio::test]
async fn a_pooled_connection_is_counted_once() {
    let rig = Rig::new();
    let (address, _) = serve(Router::new().route("/", get(|| async { "x" }))).await;
    let client = client(&rig, ConnectionMetricsLayer::new());
    for _ in 0..3 {
        client.get(format!("http://{address}/")).send().await.unwrap().text().await.unwrap();
    }
    let points = rig.points();
    assert_eq!(total(&points, TOTAL, &format!("{SERVER}=external")), 1, "{points:?}");
    assert_eq!(total(&points, DURATION, &format!("{OUTCOME}=ok {SERVER}=external")), 1, "{points:?}");
}

#[tokio::test]
async fn connections_bear_the_name_of_the_server_they_are_for() {
    let rig = Rig::new();
    let (address, _) = serve(Router::new().route("/", get(|| async { "x" }))).await;
    let named = client(&rig, ConnectionMetricsLayer::new().with_destination_server("policy_model"));
    named.get(format!("http://{address}/")).send().await.unwrap().text().await.unwrap();
    let plain = client(&rig, ConnectionMetricsLayer::new());
    let request = plain.get(format!("http://{address}/")).with_extension(DestinationServer::new("verifier"));
    request.send().await.unwrap().text().await.unwrap();
    let points = rig.points();
    for name in ["policy_model", "verifier"] {
        assert_eq!(total(&points, TOTAL, &format!("{SERVER}={name}")), 1, "{points:?}");
    }
}

#[tokio::test]
async fn failed_and_abandoned_attempts_count() {
    struct Never;
    impl reqwest::dns::Resolve for Never {
        fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
            Box::pin(std::future::pending())
        }
    }
    let rig = Rig::new();
    client(&rig, ConnectionMetricsLayer::new()).get("http://127.0.0.1:1/").send().await.unwrap_err();
    let layer = ConnectionMetricsLayer::new().with_telemetry(&rig.telemetry);
    let stuck = reqwest::Client::builder().connector_layer(layer).dns_resolver(std::sync::Arc::new(Never));
    let call = stuck.build().unwrap().get("http://somewhere.invalid/").send();
    tokio::time::timeout(Duration::from_millis(50), call).await.unwrap_err();
    let points = rig.points();
    assert_eq!(total(&points, TOTAL, ""), 2, "{points:?}");
    assert_eq!(total(&points, DURATION, &format!("{OUTCOME}=failed")), 1, "{points:?}");
    assert_eq!(total(&points, DURATION, &format!("{OUTCOME}=abandoned")), 1, "{points:?}");
}

#[tokio::test]
async fn with_the_group_off_nothing_is_counted() {
    let rig = Rig::with_groups("server");
    let (address, _) = serve(Router::new().route("/", get(|| async { "x" }))).await;
    client(&rig, ConnectionMetricsLayer::new()).get(format!("http://{address}/")).send().await.unwrap();
    assert!(rig.points().is_empty());
}
