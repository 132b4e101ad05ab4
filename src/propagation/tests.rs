//! The golden tables, through the paths that the two middlewares take.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{SpanContext, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use serde_json::Value;

use super::*;
use crate::config::settings::PropagatorChoice;

const BOTH: PropagatorChoice = PropagatorChoice { trace_context: true, baggage: true };

fn golden() -> Vec<Value> {
    let table: Value = serde_json::from_str(include_str!("../../tests/golden/trace_context.json")).unwrap();
    let cases = table["cases"].as_array().unwrap().clone();
    assert_eq!(cases.len(), 156);
    cases
}

/// The request of a case, byte for byte: values in the table are Latin-1.
fn request(case: &Value) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for header in case["headers"].as_array().unwrap() {
        let name = HeaderName::from_bytes(header[0].as_str().unwrap().as_bytes()).unwrap();
        let value: Vec<u8> = header[1].as_str().unwrap().chars().map(|c| u8::try_from(c).unwrap()).collect();
        headers.append(name, HeaderValue::from_bytes(&value).unwrap());
    }
    headers
}

fn tracer(sampler: Sampler) -> SdkTracer {
    SdkTracerProvider::builder().with_sampler(sampler).build().tracer("test")
}

/// A server and a client span on top of what was received, then the headers of the call.
fn through_spans(tracer: &SdkTracer, cx: Context) -> HeaderMap {
    let new = !cx.span().span_context().is_valid();
    let span = tracer.start_with_context("server", &cx);
    let mut server = cx.with_span(span);
    if new {
        let trace_id = server.span().span_context().trace_id();
        server = mark_new_root(server, trace_id);
    }
    let client = server.with_span(tracer.start_with_context("client", &server));
    let mut headers = HeaderMap::new();
    // What a careless handler copied.
    headers.append("traceparent", HeaderValue::from_static("00-11111111111111111111111111111111-2222222222222222-01"));
    headers.append("traceparent", HeaderValue::from_static("junk"));
    headers.append("tracestate", HeaderValue::from_static("stale=1"));
    inject(client.span().span_context(), &client, &mut headers, BOTH);
    headers
}

/// Checks the headers of a call against what the case expects of a service that samples as `sampled` says.
fn check(case: &Value, sent: &HeaderMap, sampled: impl Fn(&Value) -> bool) {
    let id = case["id"].as_str().unwrap();
    let expect = &case["expect"];
    let traceparents: Vec<_> = sent.get_all("traceparent").iter().map(|v| v.to_str().unwrap()).collect();
    let [traceparent] = traceparents[..] else { panic!("{id}: {traceparents:?}") };
    let fields: Vec<_> = traceparent.split('-').collect();
    let [version, trace_id, span_id, flags] = fields[..] else { panic!("{id}: {traceparent}") };
    assert_eq!((version, trace_id.len(), span_id.len(), flags.len()), ("00", 32, 16, 2), "{id}");
    assert_ne!(span_id, "0000000000000000", "{id}");
    if expect["outcome"] == "new" {
        assert_eq!(flags, "03", "{id}");
        let headers = case["headers"].to_string();
        assert!(!headers.contains(trace_id), "{id}: {trace_id} came from the request");
    } else {
        assert_eq!(trace_id, expect["trace_id"], "{id}");
        assert_ne!(span_id, expect["parent_id"], "{id}");
        let random = expect["random"].as_bool().unwrap();
        let want = u8::from(sampled(expect)) | u8::from(random) << 1;
        assert_eq!(flags, format!("{want:02x}"), "{id}");
    }
    let states: Vec<_> = sent.get_all("tracestate").iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(states, expect["tracestate"].as_str().into_iter().collect::<Vec<_>>(), "{id}");
}

fn as_received(expect: &Value) -> bool {
    expect["sampled"].as_bool().unwrap()
}

#[test]
fn every_golden_case_is_read_as_the_table_says() {
    for case in golden() {
        let id = case["id"].as_str().unwrap();
        let headers = request(&case);
        for received in [
            TraceHeaders::scan(&headers).extract(&headers, BOTH, false),
            TraceHeaders::scan(&headers).extract(&headers, BOTH, true),
        ] {
            let expect = &case["expect"];
            let Some(parent) = received.span_context else {
                assert_eq!(expect["outcome"], "new", "{id}");
                continue;
            };
            assert!(parent.is_remote() && parent.is_valid(), "{id}");
            assert_eq!(parent.trace_id().to_string(), expect["trace_id"], "{id}");
            assert_eq!(parent.span_id().to_string(), expect["parent_id"], "{id}");
            let flags = u8::from(as_received(expect)) | u8::from(expect["random"].as_bool().unwrap()) << 1;
            assert_eq!(parent.trace_flags().to_u8(), flags, "{id}");
        }
    }
}

#[test]
fn every_golden_case_goes_through_parent_based_spans() {
    let tracer = tracer(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)));
    for case in golden() {
        let headers = request(&case);
        let found = TraceHeaders::scan(&headers);
        for retaining in [false, true] {
            let sent = through_spans(&tracer, found.context(&headers, BOTH, retaining));
            check(&case, &sent, as_received);
        }
    }
}

#[test]
fn samplers_that_ignore_the_parent_lose_neither_the_random_flag_nor_the_list() {
    for (sampler, sampled) in [(Sampler::AlwaysOff, false), (Sampler::AlwaysOn, true)] {
        let tracer = tracer(sampler);
        for case in golden().iter().filter(|case| case["expect"]["outcome"] != "new") {
            let headers = request(case);
            let sent = through_spans(&tracer, TraceHeaders::scan(&headers).context(&headers, BOTH, true));
            check(case, &sent, |_| sampled);
        }
    }
}

#[test]
fn the_sidecar_is_left_out_where_nothing_would_be_lost() {
    let needed = |lines: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        TraceHeaders::scan(&headers).extract(&headers, BOTH, false).sidecar.is_some()
    };
    const SAMPLED: (&str, &str) = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03");
    const UNSAMPLED: (&str, &str) = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    const RANDOM: (&str, &str) = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02");
    assert!(!needed(&[]));
    assert!(!needed(&[SAMPLED]));
    assert!(!needed(&[SAMPLED, ("tracestate", "a=1,b@c=2")]));
    assert!(!needed(&[UNSAMPLED]));
    assert!(needed(&[RANDOM]));
    assert!(needed(&[SAMPLED, ("tracestate", "a=1,b@c@d=2")]));
}

#[test]
fn fresh_ids_are_valid_and_differ() {
    let ids: std::collections::HashSet<_> = (0..1000).map(|_| fresh_span_id()).collect();
    assert_eq!(ids.len(), 1000);
    assert!(!ids.contains(&SpanContext::NONE.span_id()));
}

#[test]
fn a_root_is_marked_only_where_there_is_one() {
    let provider = SdkTracerProvider::builder().build();
    let tracer = provider.tracer("test");
    provider.shutdown().unwrap();
    let cx = Context::new().with_span(tracer.start("root"));
    let trace_id = cx.span().span_context().trace_id();
    let mut headers = HeaderMap::new();
    inject(&SpanContext::NONE, &mark_new_root(cx, trace_id), &mut headers, BOTH);
    assert!(headers.is_empty(), "{headers:?}");
}

#[test]
fn a_trace_of_ours_goes_on_when_its_provider_is_shut_down_meanwhile() {
    let provider = SdkTracerProvider::builder().build();
    let tracer = provider.tracer("test");
    let cx = Context::new().with_span(tracer.start("root"));
    let root = cx.span().span_context().clone();
    let cx = mark_new_root(cx, root.trace_id());
    provider.shutdown().unwrap();
    let cx = cx.with_span(tracer.start_with_context("inner", &cx));
    let mut headers = HeaderMap::new();
    inject(cx.span().span_context(), &cx, &mut headers, BOTH);
    assert_eq!(headers["traceparent"], format!("00-{}-{}-03", root.trace_id(), root.span_id()));
}

#[test]
fn a_calls_baggage_is_the_contexts() {
    let mut headers = HeaderMap::new();
    headers.insert("baggage", HeaderValue::from_static("by-hand=1"));
    inject(&SpanContext::NONE, &Context::new(), &mut headers, BOTH);
    assert_eq!(headers["baggage"], "by-hand=1");
    let cx = Context::new().with_baggage([KeyValue::new("k", "v")]);
    inject(&SpanContext::NONE, &cx, &mut headers, BOTH);
    assert_eq!(headers["baggage"], "k=v");
    inject_baggage(Context::new().baggage(), &mut headers);
    assert!(headers.is_empty());
}
