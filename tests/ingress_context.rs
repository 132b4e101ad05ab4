//! What a request's trace context becomes: adopted, passed on, refused; groups, sampling, attributes, secrets.

mod ingress_support;

use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use http::HeaderName;
use http_body_util::BodyExt;
use ingress_support::*;
use nemo_gym_telemetry::ServerType;
use nemo_gym_telemetry::ingress::{GymTelemetryLayer, InboundContext};
use nemo_gym_telemetry::opentelemetry::trace::{SpanId, TraceContextExt};
use nemo_gym_telemetry::opentelemetry::{Context, Value};
use tower::{Layer, ServiceExt};

/// The ids and the flag of the context that a handler runs in.
async fn handler() -> String {
    let cx = Context::current();
    let span = cx.span();
    let context = span.span_context();
    format!("{} {} {}", context.trace_id(), context.span_id(), context.is_sampled())
}

async fn answer(app: &Router, request: http::Request<axum::body::Body>) -> String {
    let response = app.clone().oneshot(request).await.unwrap();
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn app(layer: GymTelemetryLayer) -> Router {
    Router::new().route("/verify", post(handler)).route("/health", get(handler)).layer(layer)
}

fn with_parent(method: &str, path: &str, flags: &str) -> http::Request<axum::body::Body> {
    let mut request = request(method, path);
    request.headers_mut().insert("traceparent", traceparent(flags).parse().unwrap());
    request
}

#[tokio::test]
async fn the_callers_trace_is_continued() {
    let rig = Rig::resources();
    let app = app(GymTelemetryLayer::new(&rig.telemetry));
    let seen = answer(&app, with_parent("POST", "/verify", "01")).await;
    let (server, verify) = (rig.server_span(), rig.span("gym.verify"));
    assert_eq!(server.span_context.trace_id().to_string(), T1);
    assert_eq!(server.parent_span_id.to_string(), S1);
    assert!(server.parent_span_is_remote);
    assert_eq!(verify.parent_span_id, server.span_context.span_id());
    assert_eq!(seen, format!("{T1} {} true", verify.span_context.span_id()));
}

#[tokio::test]
async fn an_unsampled_trace_makes_no_spans_and_passes() {
    for groups in ["all", "server", "verify", "none"] {
        let rig = Rig::new(groups, ServerType::ResourcesServers);
        let app = app(GymTelemetryLayer::new(&rig.telemetry));
        for flags in ["00", "02"] {
            assert_eq!(answer(&app, with_parent("POST", "/verify", flags)).await, format!("{T1} {S1} false"));
        }
        assert!(rig.spans().is_empty());
    }
}

#[tokio::test]
async fn groups_drop_spans_and_never_the_context() {
    let rig = Rig::new("verify", ServerType::ResourcesServers);
    let seen = answer(&app(GymTelemetryLayer::new(&rig.telemetry)), with_parent("POST", "/verify", "01")).await;
    let verify = rig.span("gym.verify");
    assert_eq!(verify.parent_span_id.to_string(), S1, "under the remote parent");
    assert_eq!(seen, format!("{T1} {} true", verify.span_context.span_id()));
    assert!(rig.server_spans().is_empty());

    let rig = Rig::new("job", ServerType::ResourcesServers);
    let seen = answer(&app(GymTelemetryLayer::new(&rig.telemetry)), with_parent("POST", "/verify", "01")).await;
    assert_eq!(seen, format!("{T1} {S1} true"));
    assert!(rig.spans().is_empty());

    let rig = Rig::resources();
    let seen = answer(&app(GymTelemetryLayer::new(&rig.telemetry)), with_parent("GET", "/health", "01")).await;
    assert_eq!(seen, format!("{T1} {S1} true"), "excluded");
    assert!(rig.spans().is_empty());
}

#[tokio::test]
async fn a_context_that_is_not_wanted_becomes_a_link() {
    let rig = Rig::resources();
    let layer =
        GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).with_inbound_context(InboundContext::Never).build();
    let app = app(layer);
    for flags in ["01", "00"] {
        answer(&app, with_parent("POST", "/verify", flags)).await;
    }
    for server in rig.server_spans() {
        assert_ne!(server.span_context.trace_id().to_string(), T1);
        assert_eq!(server.parent_span_id, SpanId::INVALID);
        let linked = &server.links.links[0].span_context;
        assert_eq!((linked.trace_id().to_string().as_str(), linked.span_id().to_string().as_str()), (T1, S1));
    }
    assert_eq!(rig.server_spans().len(), 2, "an untrusted caller cannot hide its requests");
}

#[tokio::test]
async fn requests_without_context_are_traces_of_their_own() {
    let rig = Rig::resources();
    let app = app(GymTelemetryLayer::new(&rig.telemetry));
    // Something else's span is current where the server happens to be polled.
    let elsewhere =
        Context::new().with_remote_span_context(nemo_gym_telemetry::opentelemetry::trace::SpanContext::new(
            nemo_gym_telemetry::opentelemetry::trace::TraceId::from(7),
            SpanId::from(7),
            nemo_gym_telemetry::opentelemetry::trace::TraceFlags::SAMPLED,
            true,
            Default::default(),
        ));
    let _current = elsewhere.attach();
    for _ in 0..5 {
        answer(&app, request("POST", "/verify")).await;
    }
    let mut traces: Vec<_> = rig.server_spans().iter().map(|span| span.span_context.trace_id()).collect();
    traces.sort_by_key(|id| id.to_string());
    traces.dedup();
    assert_eq!(traces.len(), 5);
    assert!(rig.server_spans().iter().all(|span| span.parent_span_id == SpanId::INVALID));
}

#[tokio::test]
async fn attributes_follow_the_conventions() {
    let rig = Rig::resources();
    let layer = GymTelemetryLayer::builder()
        .with_telemetry(&rig.telemetry)
        .with_captured_request_header(HeaderName::from_static("x-request-id"))
        .with_captured_request_header(HeaderName::from_static("authorization"))
        .build();
    let app = layer.layer(Router::new().route("/verify", post(handler)));
    let mut request = request("POST", "/verify?access_token=K5");
    for (name, value) in [
        ("user-agent", "python/3"),
        ("authorization", "Bearer K6"),
        ("cookie", "session=K7"),
        ("x-api-key", "K8"),
        ("x-request-id", "r1"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 9], 4711))));
    app.oneshot(request).await.unwrap();
    let span = rig.server_span();
    for (key, expected) in [
        ("http.request.method", Value::from("POST")),
        ("url.path", "/verify".into()),
        ("url.scheme", "http".into()),
        ("network.protocol.version", "1.1".into()),
        ("server.address", "127.0.0.1".into()),
        ("server.port", 8000.into()),
        ("user_agent.original", "python/3".into()),
        ("client.address", "127.0.0.9".into()),
        ("client.port", 4711.into()),
        ("http.route", "/verify".into()),
        ("http.response.status_code", 200.into()),
    ] {
        assert_eq!(attribute(&span, key), Some(&expected), "{key}");
    }
    assert_eq!(text(&span, "http.request.header.x-request-id").as_deref(), Some(r#"["r1"]"#));
    let everything = format!("{:?}", rig.spans());
    for secret in ["K5", "K6", "K7", "K8"] {
        assert!(!everything.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn a_query_is_recorded_on_request_and_without_credentials() {
    let rig = Rig::resources();
    let layer = GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).with_query(true).build();
    app(layer).oneshot(request("POST", "/verify?page=2&access_token=K5&API_KEY=K6")).await.unwrap();
    let query = text(&rig.server_span(), "url.query").unwrap();
    assert_eq!(query, "page=2&access_token=REDACTED&API_KEY=REDACTED");
}

#[tokio::test]
async fn http2_names_its_authority_and_version() {
    let rig = Rig::resources();
    let app = app(GymTelemetryLayer::new(&rig.telemetry));
    let address = serve(app).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let calls = (0..50).map(|n| {
        let parent = format!("00-{T1}-{:016x}-01", n + 1);
        client.post(format!("http://{address}/verify")).header("traceparent", parent).send()
    });
    for response in futures_util::future::join_all(calls).await {
        assert_eq!(response.unwrap().status(), 200);
    }
    let spans = rig.ended(50).await;
    let mut parents: Vec<_> = spans.iter().map(|span| span.parent_span_id.to_string()).collect();
    parents.sort();
    parents.dedup();
    assert_eq!(parents.len(), 50);
    for span in &spans {
        assert_eq!(text(span, "network.protocol.version").as_deref(), Some("2"));
        assert_eq!(text(span, "server.address").as_deref(), Some("127.0.0.1"));
        assert_eq!(attribute(span, "server.port"), Some(&Value::I64(i64::from(address.port()))));
        assert!(span.attributes.iter().all(|a| !a.value.as_str().is_empty()));
    }
}

#[tokio::test]
async fn junk_in_headers_changes_no_answer() {
    let rig = Rig::resources();
    let app = app(GymTelemetryLayer::new(&rig.telemetry));
    let junk: [&[u8]; 9] = [
        b"",
        b"xz",
        b"ff",
        b"00-0-0-00",
        b"\xb2",
        b"Moto Z\xb2",
        b",,,",
        b"=;=",
        b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
    ];
    for name in ["traceparent", "tracestate", "baggage", "host", "user-agent"] {
        for value in junk {
            let mut request = request("POST", "/verify");
            request.headers_mut().insert(HeaderName::from_static(name), http::HeaderValue::from_bytes(value).unwrap());
            let seen = answer(&app, request).await;
            assert!(seen.ends_with("true") && !seen.starts_with(T1), "{name}: {value:?}: {seen}");
        }
    }
    assert!(rig.server_spans().iter().all(|span| span.parent_span_id == SpanId::INVALID));
}
