//! One call: its span, its headers, and what the caller gets back.

mod egress_support;

use axum::Router;
use axum::routing::{get, post};
use egress_support::*;
use opentelemetry::trace::{FutureExt as _, SpanKind, Status};
use opentelemetry::{SpanId, TraceId, Value};

fn router() -> Router {
    Router::new().route("/verify", post(|| async { "done" })).route("/items/{id}", get(|| async { "item" }))
}

#[tokio::test]
async fn a_call_is_one_client_span_with_the_conventions_attributes() {
    let rig = Rig::new();
    let (address, seen) = serve(router()).await;
    let response =
        rig.client().post(format!("http://{address}/verify")).send().with_context(parent(true)).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "done");

    let span = rig.span();
    assert_eq!(span.span_kind, SpanKind::Client);
    assert_eq!(span.instrumentation_scope.name(), "nemo.gym");
    assert_eq!(span.span_context.trace_id(), TraceId::from_hex(T1).unwrap());
    assert_eq!(span.parent_span_id, SpanId::from_hex(S1).unwrap());
    assert_eq!(span.status, Status::Unset);
    assert_eq!(text(&span, "http.request.method").unwrap(), "POST");
    assert_eq!(text(&span, "url.full").unwrap(), format!("http://{address}/verify"));
    assert_eq!(text(&span, "server.address").unwrap(), "127.0.0.1");
    assert_eq!(attribute(&span, "server.port"), Some(Value::I64(address.port().into())));
    assert_eq!(attribute(&span, "http.response.status_code"), Some(Value::I64(200)));
    assert_eq!(attribute(&span, "error.type"), None);

    let sent = format!("00-{T1}-{}-01", span.span_context.span_id());
    assert_eq!(seen.values("traceparent"), [sent]);
    assert_eq!(seen.values("tracestate"), [""; 0]);
}
