//! Every case of the golden table over a plain socket: nothing between the client and the propagator
//! may hide bytes, fold lines or refuse a header.

mod propagation_support;

use axum::Router;
use axum::routing::post;
use http::HeaderMap;
use nemo_gym_telemetry::GymPropagator;
use opentelemetry::Context;
use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use propagation_support::{Header, cases, header_map, post_raw};

/// Answers with the headers of the call that a handler would make.
async fn handle(tracer: SdkTracer, request: HeaderMap) -> String {
    let propagator = GymPropagator::new();
    let received = propagator.extract_headers(&Context::new(), &request);
    let server = received.with_span(tracer.start_with_context("server", &received));
    let client = server.with_span(tracer.start_with_context("client", &server));
    // A handler that copies everything.
    let mut call = request;
    propagator.inject_headers(&client, &mut call);
    let sent = |name| call.get_all(name).iter().map(move |value| format!("{name}: {}\n", value.to_str().unwrap()));
    sent("traceparent").chain(sent("tracestate")).collect()
}

fn parse(body: &[u8]) -> Vec<Header> {
    let lines = std::str::from_utf8(body).unwrap().lines();
    lines.map(|line| line.split_once(": ").unwrap()).map(|(name, value)| (name.to_owned(), value.into())).collect()
}

#[tokio::test]
async fn every_golden_case_over_a_plain_socket() {
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    let app = Router::new().route("/test", post(move |headers: HeaderMap| handle(tracer.clone(), headers)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    for case in cases() {
        let (status, body) = post_raw(address, "/test", &case.headers, b"").await;
        assert_eq!(status, 200, "{}", case.id);
        // A trace of the SDK's own: only the middlewares can tell that its id is random.
        case.check(&parse(&body), "01");
    }
    server.abort();
}

#[tokio::test]
async fn every_golden_case_over_a_header_map() {
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    for case in cases() {
        let body = handle(tracer.clone(), header_map(&case.headers)).await;
        case.check(&parse(body.as_bytes()), "01");
    }
}
