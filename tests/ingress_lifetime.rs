//! When a request ends, and how (ING-07, ING-08, ING-11, ING-12).

mod ingress_support;

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use ingress_support::*;
use nemo_gym_telemetry::ServerType;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::{Layer, ServiceExt};
use tower_http::catch_panic::CatchPanicLayer;

/// Events, 30 ms apart.
fn events(count: usize, fail_after: Option<usize>) -> Response {
    let stream = stream::iter(0..count).then(move |n| async move {
        tokio::time::sleep(Duration::from_millis(30)).await;
        match fail_after {
            Some(limit) if n >= limit => Err(std::io::Error::other("broken")),
            _ => Ok(Bytes::from(format!("data: {n}\n\n"))),
        }
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}

async fn panics() -> Response {
    panic!("the handler panics, on purpose")
}

fn app() -> Router {
    Router::new()
        .route("/v1/chat/completions", post(|| async { events(10, None) }))
        .route("/broken", get(|| async { events(10, Some(3)) }))
        .route("/slow", get(|| async { tokio::time::sleep(Duration::from_secs(60)).await }))
        .route("/run", post(|| async { tokio::time::sleep(Duration::from_secs(60)).await }))
        .route("/panic", get(panics))
        .route("/verify", post(panics))
        .route(
            "/panic_in_body",
            get(|| async {
                let stream = stream::iter(0..3).map(|n| {
                    if n == 1 { panic!("the body panics, on purpose") } else { Ok::<_, Infallible>(Bytes::from("x")) }
                });
                Body::from_stream(stream)
            }),
        )
        .route("/exact", get(|| async { "exact" }))
        .route(
            "/declared",
            get(|| async {
                let stream = stream::iter([Ok::<_, Infallible>(Bytes::from("decl")), Ok(Bytes::from("ared"))]);
                ([(header::CONTENT_LENGTH, HeaderValue::from_static("8"))], Body::from_stream(stream))
            }),
        )
        .route("/empty", get(|| async {}))
        .route(
            "/no_content",
            get(|| async {
                (StatusCode::NO_CONTENT, Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()))
            }),
        )
        .route(
            "/not_modified",
            get(|| async {
                (StatusCode::NOT_MODIFIED, Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()))
            }),
        )
        .route("/error", get(|| async { (StatusCode::BAD_GATEWAY, "bad") }))
        .route(
            "/ws",
            get(|upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| async {
                match upgrade {
                    Ok(upgrade) => upgrade.on_upgrade(|mut socket| async move {
                        while let Some(Ok(message)) = socket.recv().await {
                            drop(socket.send(message).await);
                        }
                    }),
                    Err(rejection) => rejection.into_response(),
                }
            }),
        )
}

/// Sends a raw request and reads what comes until the connection is closed.
async fn raw(address: std::net::SocketAddr, text: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    drop(socket.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

async fn get_path(address: std::net::SocketAddr, method: &str, path: &str) -> String {
    raw(address, &format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")).await
}

#[tokio::test]
async fn a_stream_lasts_to_its_end() {
    let rig = Rig::new("all", ServerType::ResponsesApiModels);
    let address = serve(app().layer(GymTelemetryLayer::new(&rig.telemetry))).await;
    let answer = get_path(address, "POST", "/v1/chat/completions").await;
    assert!(answer.contains("data: 9"));
    let span = rig.ended(1).await.pop().unwrap();
    assert!(duration(&span) >= Duration::from_millis(300), "{:?}", duration(&span));
    let semantic = rig.span("gym.model.chat_completions");
    assert_eq!(semantic.parent_span_id, span.span_context.span_id());
    assert_eq!((semantic.start_time, semantic.end_time), (span.start_time, span.end_time));
    let waited = match attribute(&semantic, "nemo.gym.model.time_to_first_byte_ms") {
        Some(nemo_gym_telemetry::opentelemetry::Value::F64(ms)) => *ms,
        other => panic!("{other:?}"),
    };
    assert!((30.0..300.0).contains(&waited), "{waited}");
    let calls = rig.points("gym.model.call_duration_ms");
    let key = "nemo.gym.model.dialect=chat_completions nemo.gym.server.name=example_server";
    assert!(calls[key].1 >= 300.0, "{calls:?}");
    assert_eq!(rig.points("gym.model.time_to_first_byte_ms")[key].0, 1.0);
}

#[tokio::test]
async fn a_failing_stream_is_an_error_with_its_status_code() {
    let rig = Rig::resources();
    let address = serve(app().layer(GymTelemetryLayer::new(&rig.telemetry))).await;
    get_path(address, "GET", "/broken").await;
    let span = rig.ended(1).await.pop().unwrap();
    assert!(is_error(&span));
    assert_eq!(text(&span, "error.type").as_deref(), Some("body_error"));
    assert_eq!(text(&span, "http.response.status_code").as_deref(), Some("200"));
    assert!(duration(&span) >= Duration::from_millis(90));
}

#[tokio::test]
async fn bodies_that_are_not_read_to_none_are_complete() {
    for around in [true, false] {
        let rig = Rig::resources();
        let layer = GymTelemetryLayer::new(&rig.telemetry);
        let app = if around { Router::new().fallback_service(layer.layer(app())) } else { app().layer(layer) };
        let address = serve(app).await;
        let cases = [
            ("GET", "/exact"),
            ("GET", "/declared"),
            ("GET", "/empty"),
            ("HEAD", "/exact"),
            ("HEAD", "/declared"),
            ("GET", "/no_content"),
            ("GET", "/not_modified"),
        ];
        for (index, (method, path)) in cases.into_iter().enumerate() {
            get_path(address, method, path).await;
            let span = rig.ended(index + 1).await.pop().unwrap();
            assert!(!is_error(&span), "{method} {path}: {:?}", text(&span, "error.type"));
            assert!(attribute(&span, "error.type").is_none(), "{method} {path}");
        }
        assert_eq!(rig.total("http.server.active_requests"), 0.0);
        assert_eq!(rig.total("http.server.request.duration"), cases.len() as f64);
    }
}

#[tokio::test]
async fn clients_that_leave_are_seen() {
    let rig = Rig::new("all", ServerType::ResponsesApiAgents);
    let address = serve(app().layer(GymTelemetryLayer::new(&rig.telemetry))).await;
    for n in 0..50 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        // Half of them before the head, half within the stream.
        let path = if n % 2 == 0 { "GET /slow" } else { "POST /v1/chat/completions" };
        socket.write_all(format!("{path} HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes()).await.unwrap();
        if n % 2 == 1 {
            socket.read_exact(&mut [0; 16]).await.unwrap();
        } else {
            wait_until(|| rig.total("http.server.active_requests") > 0.0).await;
        }
    }
    let spans = rig.ended(50).await;
    for span in &spans {
        assert!(is_error(span));
        assert_eq!(text(span, "error.type").as_deref(), Some("cancelled"));
        let status = text(span, "http.response.status_code");
        assert_eq!(status.as_deref(), if span.name.contains("slow") { None } else { Some("200") }, "{}", span.name);
    }
    assert_eq!(rig.total("http.server.request.duration"), 50.0);
    assert_eq!(rig.total("http.server.active_requests"), 0.0);
    assert_eq!(rig.total("gym.server.requests.in_flight"), 0.0);
}

#[tokio::test]
async fn a_cancelled_rollout_is_a_failed_one() {
    let rig = Rig::new("all", ServerType::ResponsesApiAgents);
    let service = app().layer(GymTelemetryLayer::new(&rig.telemetry));
    let call = service.oneshot(request("POST", "/run"));
    assert!(tokio::time::timeout(Duration::from_millis(20), call).await.is_err());
    let rollout = rig.span("gym.rollout");
    assert_eq!(text(&rollout, "error.type").as_deref(), Some("cancelled"));
    assert_eq!(rig.points("gym.rollout.completed_total")["nemo.gym.rollout.outcome=failure"].0, 1.0);
    assert_eq!(rig.points("gym.rollout.duration_ms")[""].0, 1.0);
}

async fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("condition not met in time");
}

#[tokio::test]
async fn panics_are_errors_and_go_on() {
    // CatchPanic absent, inside and outside.
    for catch in ["absent", "inside", "outside"] {
        let rig = Rig::resources();
        let layer = GymTelemetryLayer::new(&rig.telemetry);
        let app = match catch {
            "absent" => app().layer(layer),
            "inside" => app().layer(CatchPanicLayer::new()).layer(layer),
            _ => app().layer(layer).layer(CatchPanicLayer::new()),
        };
        let address = serve(app).await;
        let answer = get_path(address, "POST", "/verify").await;
        assert_eq!(answer.contains("500"), catch != "absent", "{catch}: {answer}");
        let span = rig.ended(1).await.pop().unwrap();
        let verify = rig.span("gym.verify");
        for span in [&span, &verify] {
            assert!(is_error(span), "{catch}");
            let expected = if catch == "inside" { "500" } else { "panic" };
            assert_eq!(text(span, "error.type").as_deref(), Some(expected), "{catch}");
        }
        assert_eq!(span.name, "POST /verify");
        let status = text(&span, "http.response.status_code");
        assert_eq!(status.as_deref(), (catch == "inside").then_some("500"), "{catch}");
        assert_eq!(rig.points("gym.verify.success_rate")[""].0, 0.0);
        assert_eq!(rig.total("http.server.active_requests"), 0.0);
        assert!(get_path(address, "GET", "/exact").await.contains("exact"), "the next request is fine");
    }
}

#[tokio::test]
async fn a_panic_in_a_body_is_an_error() {
    let rig = Rig::resources();
    let address = serve(app().layer(GymTelemetryLayer::new(&rig.telemetry))).await;
    get_path(address, "GET", "/panic_in_body").await;
    let span = rig.ended(1).await.pop().unwrap();
    assert_eq!(text(&span, "error.type").as_deref(), Some("panic"));
    assert_eq!(text(&span, "http.response.status_code").as_deref(), Some("200"));
    assert_eq!(rig.total("http.server.active_requests"), 0.0);
}

#[tokio::test]
async fn server_errors_are_errors_and_client_errors_are_not() {
    let rig = Rig::resources();
    let service = app().layer(GymTelemetryLayer::new(&rig.telemetry));
    for path in ["/error", "/nope"] {
        drop(service.clone().oneshot(request("GET", path)).await.unwrap().into_body().collect().await);
    }
    let spans = rig.server_spans();
    assert!(is_error(&spans[0]));
    assert_eq!(text(&spans[0], "error.type").as_deref(), Some("502"));
    assert!(!is_error(&spans[1]));
    assert_eq!(attribute(&spans[1], "error.type"), None);
}

#[tokio::test]
async fn an_upgrade_ends_at_its_handshake() {
    let rig = Rig::resources();
    let address = serve(app().layer(GymTelemetryLayer::new(&rig.telemetry))).await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    let handshake = "GET /ws HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(handshake.as_bytes()).await.unwrap();
    let mut head = vec![0; 512];
    let read = socket.read(&mut head).await.unwrap();
    assert!(String::from_utf8_lossy(&head[..read]).starts_with("HTTP/1.1 101"));
    // The span has ended while the socket is open; an echo (a masked text frame "hi", mask 0) still works.
    let span = rig.ended(1).await.pop().unwrap();
    assert_eq!(text(&span, "http.response.status_code").as_deref(), Some("101"));
    assert!(!is_error(&span));
    socket.write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    let mut echo = [0; 4];
    socket.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, &[0x81, 0x02, b'h', b'i']);
}
