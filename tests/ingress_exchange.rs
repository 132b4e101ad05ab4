//! The layer does not change the exchange (ING-10): raw answers with and without it are the same bytes.

mod ingress_support;

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use ingress_support::*;
use nemo_gym_telemetry::Telemetry;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt};
use tower_http::compression::CompressionLayer;

fn router() -> Router {
    Router::new()
        .route("/json", get(|| async { ([(header::CONTENT_TYPE, "application/json")], r#"{"ok":true}"#) }))
        .route("/big", get(|| async { vec![b'x'; 10 << 20] }))
        .route("/echo", post(|body: Bytes| async move { body }))
        .route("/no_content", get(|| async { StatusCode::NO_CONTENT }))
        .route("/not_modified", get(|| async { (StatusCode::NOT_MODIFIED, [(header::ETAG, "\"1\"")]) }))
        .route(
            "/sse",
            get(|| async {
                let events = stream::iter(0..3).map(|n| Ok::<_, Infallible>(format!("data: {n}\n\n")));
                ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
            }),
        )
        .route(
            "/trailers",
            get(|| async {
                let trailers =
                    HeaderMap::from_iter([(header::HeaderName::from_static("x-sum"), HeaderValue::from_static("3"))]);
                let frames =
                    stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("abc"))), Ok(Frame::trailers(trailers))]);
                ([(header::TRAILER, "x-sum")], Body::new(StreamBody::new(frames))).into_response()
            }),
        )
        .layer(CompressionLayer::new())
}

async fn exchange(address: std::net::SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let without_date = text.split("\r\n").filter(|line| !line.starts_with("date:"));
    without_date.collect::<Vec<_>>().join("\r\n")
}

#[tokio::test]
async fn answers_are_the_same_bytes() {
    let rig = Rig::resources();
    let on = GymTelemetryLayer::new(&rig.telemetry);
    let off = GymTelemetryLayer::new(&Telemetry::disabled());
    let plain = serve(router()).await;
    let layered = [
        serve(router().layer(on.clone())).await,
        serve(Router::new().fallback_service(on.layer(router()))).await,
        serve(router().layer(off)).await,
    ];
    let requests = [
        "GET /json HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "HEAD /json HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "GET /json HTTP/1.0\r\n\r\n",
        "GET /big HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "HEAD /big HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "GET /json HTTP/1.1\r\nhost: h\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n",
        "GET /no_content HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "GET /not_modified HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "GET /sse HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "HEAD /sse HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "GET /trailers HTTP/1.1\r\nhost: h\r\nte: trailers\r\nconnection: close\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc",
        "GET /nope HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
        "DELETE /json HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n",
    ];
    for request in requests {
        let expected = exchange(plain, request).await;
        for (which, address) in layered.into_iter().enumerate() {
            let actual = exchange(address, request).await;
            assert!(actual == expected, "{which}: {request}: {:.300} instead of {:.300}", actual, expected);
        }
    }
    rig.ended(2 * requests.len()).await;
}

#[tokio::test]
async fn readiness_and_back_pressure_are_the_inner_services() {
    let rig = Rig::resources();
    let layer = GymTelemetryLayer::new(&rig.telemetry);
    // A limit that panics if a clone is called that was not ready, inside and outside of the layer.
    let inside = layer.layer(ConcurrencyLimitLayer::new(1).layer(router()));
    let outside = ConcurrencyLimitLayer::new(1).layer(layer.layer(router()));
    let calls = (0..100).map(|n| {
        let (inside, outside) = (inside.clone(), outside.clone());
        async move {
            let call = request("GET", "/json");
            let response = if n % 2 == 0 { inside.oneshot(call).await } else { outside.oneshot(call).await }.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        }
    });
    for body in futures_util::future::join_all(calls).await {
        assert_eq!(body, r#"{"ok":true}"#);
    }
    let mut buffered = BufferLayer::new(8).layer(layer.layer(router()));
    let response = buffered.ready().await.unwrap().call(request("GET", "/json")).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), r#"{"ok":true}"#);
    assert_eq!(rig.ended(101).await.len(), 101);
}
