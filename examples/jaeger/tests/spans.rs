//! Hand-made requests: what exporters of other languages may send.

mod support;

use otlp_embedded::proto::collector::trace::v1::ExportTraceServiceRequest;
use otlp_embedded::proto::common::v1::{AnyValue, KeyValue, any_value::Value};
use otlp_embedded::proto::resource::v1::Resource;
use otlp_embedded::proto::trace::v1::span::{Link, SpanKind};
use otlp_embedded::proto::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message as _;
use reqwest::StatusCode;
use support::{Jaeger, client, tag};

const PROTOBUF: &str = "application/x-protobuf";

fn span(trace: u8, id: u8, parent: Option<u8>, kind: SpanKind) -> Span {
    Span {
        trace_id: vec![trace; 16],
        span_id: vec![id; 8],
        parent_span_id: parent.map(|parent| vec![parent; 8]).unwrap_or_default(),
        name: format!("span {id}"),
        kind: kind.into(),
        start_time_unix_nano: 1_700_000_000_000_000_000,
        end_time_unix_nano: 1_700_000_000_001_000_000,
        ..Span::default()
    }
}

fn link(trace: u8, id: u8) -> Link {
    Link { trace_id: vec![trace; 16], span_id: vec![id; 8], ..Link::default() }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::StringValue(value.to_owned())) }) }
}

async fn send(jaeger: &Jaeger, servers: &[(&[KeyValue], &[Span])]) {
    let resource_spans = servers.iter().map(|(attributes, spans)| ResourceSpans {
        resource: Some(Resource { attributes: attributes.to_vec(), ..Resource::default() }),
        scope_spans: vec![ScopeSpans { spans: spans.to_vec(), ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    });
    let body = ExportTraceServiceRequest { resource_spans: resource_spans.collect() }.encode_to_vec();
    let (status, _) = post(jaeger, "traces", PROTOBUF, body).await;
    assert_eq!(status, StatusCode::OK);
}

async fn post(jaeger: &Jaeger, signal: &str, kind: &str, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
    let request = client().post(format!("{}/v1/{signal}", jaeger.http)).header("content-type", kind).body(body);
    let answer = request.send().await.unwrap();
    (answer.status(), answer.bytes().await.unwrap().into())
}

#[tokio::test]
async fn kinds_and_errors_are_tags() {
    let jaeger = Jaeger::start();
    let kinds = [SpanKind::Server, SpanKind::Client, SpanKind::Internal, SpanKind::Producer, SpanKind::Consumer];
    let mut spans: Vec<Span> = (1..).zip(kinds).map(|(id, kind)| span(1, id, (id > 1).then_some(1), kind)).collect();
    spans[1].status = Some(Status { message: "refused".to_owned(), code: 2 });
    spans[2].status = Some(Status { message: String::new(), code: 1 });
    spans.push(span(1, 6, Some(1), SpanKind::Unspecified));
    send(&jaeger, &[(&[attribute("service.name", "one")], &spans)]).await;

    let trace = jaeger.trace(&"01".repeat(16)).await;
    for (id, kind) in (1..).zip(["server", "client", "internal", "producer", "consumer"]) {
        let span = trace.span(&format!("span {id}"), kind);
        assert_eq!(tag(span, "error").as_bool(), (id == 2).then_some(true));
        assert_eq!(tag(span, "otel.status_description").as_str(), (id == 2).then_some("refused"));
    }
    assert!(trace.spans().iter().any(|span| span["operationName"] == "span 6" && tag(span, "span.kind").is_null()));
}

#[tokio::test]
async fn links_do_not_displace_parents() {
    let jaeger = Jaeger::start();
    let mut spans = [1, 2, 3, 4].map(|id| span(1, id, (id > 1).then_some(1), SpanKind::Internal));
    spans[0].links = vec![link(2, 9)];
    spans[2].links = vec![link(1, 2)];
    spans[3].links = vec![link(2, 9)];
    send(&jaeger, &[(&[attribute("service.name", "one")], &spans)]).await;

    let trace = jaeger.trace(&"01".repeat(16)).await;
    assert_eq!(trace.orphans(), 0, "{trace:#?}");
    let [root, _, retry, linked] = [1, 2, 3, 4].map(|id| trace.span(&format!("span {id}"), "internal"));
    assert_eq!(trace.parent(root), None);
    assert_eq!(tag(root, "otel.link").as_str(), Some("02".repeat(16).as_str()));
    assert_eq!(trace.parent(retry), Some(root));
    assert_eq!(tag(retry, "otel.link").as_str(), Some("01".repeat(16).as_str()));
    // Out of the trace and beside a parent: a reference that the UI can follow.
    assert_eq!(trace.parent(linked), Some(root));
    assert_eq!(linked["references"][0]["traceID"].as_str(), Some("02".repeat(16).as_str()));
}

#[tokio::test]
async fn a_parent_that_never_came_is_missed() {
    let jaeger = Jaeger::start();
    send(&jaeger, &[(&[attribute("service.name", "one")], &[span(1, 2, Some(1), SpanKind::Server)])]).await;
    assert_eq!(jaeger.trace(&"01".repeat(16)).await.orphans(), 1);
    assert!(jaeger.traces("one").await.is_empty());
}

#[tokio::test]
async fn servers_with_one_instance_id_or_none_stay_apart() {
    let jaeger = Jaeger::start();
    let of = |service: &str| [attribute("service.name", service), attribute("service.instance.id", "run")];
    let (one, two) = (of("one"), of("two"));
    let spans = [1, 2, 3, 4].map(|id| [span(1, id, (id > 1).then_some(1), SpanKind::Internal)]);
    let servers: [(&[KeyValue], &[Span]); 4] =
        [(&one, &spans[0]), (&two, &spans[1]), (&two[..1], &spans[2]), (&[], &spans[3])];
    send(&jaeger, &servers).await;

    let trace = jaeger.trace(&"01".repeat(16)).await;
    for (id, service) in (1..).zip(["one", "two", "two", "unknown"]) {
        let span = trace.span(&format!("span {id}"), "internal");
        assert_eq!(trace.process(span)["serviceName"], service, "{trace:#?}");
    }
    assert_eq!(trace.0["processes"].as_object().unwrap().len(), 4);
    assert_eq!(jaeger.services().await, ["one"]);
}

#[tokio::test]
async fn broken_spans_break_nothing() {
    let jaeger = Jaeger::start();
    let without = |change: fn(&mut Span)| {
        let mut span = span(1, 1, None, SpanKind::Server);
        change(&mut span);
        span
    };
    let spans = [
        without(|span| span.trace_id.clear()),
        without(|span| span.span_id.clear()),
        without(|span| span.end_time_unix_nano = 1),
        span(2, 2, Some(2), SpanKind::Server),
        span(3, 3, Some(0), SpanKind::Server),
    ];
    send(&jaeger, &[(&[attribute("service.name", "one")], &spans)]).await;

    let traces = jaeger.traces("one").await;
    assert_eq!(traces.len(), 3, "{traces:#?}");
    for trace in traces {
        assert_eq!((trace.spans().len(), trace.orphans()), (1, 0), "{trace:#?}");
    }
    assert_eq!(jaeger.trace(&"01".repeat(16)).await.spans()[0]["duration"], 0);
}

#[tokio::test]
async fn other_signals_are_taken_and_other_formats_refused() {
    let jaeger = Jaeger::start();
    for signal in ["metrics", "logs"] {
        let (status, answer) = post(&jaeger, signal, PROTOBUF, vec![]).await;
        assert_eq!((status, answer.len()), (StatusCode::OK, 0));
    }
    let (status, said) = post(&jaeger, "traces", "application/json", b"{}".to_vec()).await;
    assert_eq!((status, said), (StatusCode::UNSUPPORTED_MEDIA_TYPE, b"only application/x-protobuf".to_vec()));
    let (status, _) = post(&jaeger, "traces", PROTOBUF, b"no protobuf".to_vec()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, _) = post(&jaeger, "profiles", PROTOBUF, vec![]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
