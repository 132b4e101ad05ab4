//! What the Python servers read and send on (`golden/propagation.json`), with the intended differences.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use nemo_gym_telemetry::GymPropagator;
use opentelemetry::Context;
use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{Span, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::{Value, json};

/// Cases where this crate differs on purpose: what it has instead, and why.
fn intended(name: &str) -> Option<(&'static str, Value)> {
    Some(match name {
        // Trace Context Level 2 says that unknown flags are not read.
        "flags '04'" | "flags '80'" => ("/extracted/flags", json!(0)),
        "flags 'ff'" => ("/extracted/flags", json!(3)),
        // Decision "strict W3C Level 2": of repeated keys the left-most stays (`golden/trace_context.json`).
        "tracestate dup" => ("/extracted/tracestate", json!([["a", "1"]])),
        // W3C Baggage: properties are no part of the value, and go on as such.
        "baggage props" => ("/baggage/k", json!("v")),
        _ => return None,
    })
}

fn intended_headers(name: &str) -> Option<(&'static str, Value)> {
    Some(match name {
        "tracestate dup" => ("tracestate", json!("a=1")),
        "baggage props" => ("baggage", json!("k=v;p=1")),
        _ => return None,
    })
}

#[test]
fn as_the_python_servers_do() {
    let table: Value = serde_json::from_str(include_str!("golden/propagation.json")).unwrap();
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    let propagator = GymPropagator::new();
    let mut differences = 0;
    for case in table["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let mut want = case.clone();
        if let Some((pointer, value)) = intended(name) {
            let place = want.pointer_mut(pointer).unwrap();
            assert_ne!(*place, value, "{name}: no difference any more");
            *place = value;
            differences += 1;
        }
        if let Some((header, value)) = intended_headers(name) {
            want["injected"][header] = value;
        }

        let mut request = HeaderMap::new();
        for (header, value) in case["headers"].as_object().unwrap() {
            let header = HeaderName::from_bytes(header.as_bytes()).unwrap();
            request.append(header, HeaderValue::from_str(value.as_str().unwrap()).unwrap());
        }
        let cx = propagator.extract_headers(&Context::new(), &request);
        let extracted = cx.has_active_span().then(|| {
            let span = cx.span();
            let parent = span.span_context();
            json!({
                "trace_id": parent.trace_id().to_string(),
                "span_id": parent.span_id().to_string(),
                "flags": parent.trace_flags().to_u8(),
                "remote": parent.is_remote(),
                "tracestate": parent.trace_state().into_iter().map(|(key, value)| json!([key, value])).collect::<Vec<_>>(),
            })
        });
        assert_eq!(extracted.unwrap_or_default(), want["extracted"], "{name}");
        let baggage: BTreeMap<_, _> = cx.baggage().iter().map(|(k, (v, _))| (k.as_str(), v.as_str())).collect();
        assert_eq!(json!(baggage), want["baggage"], "{name}");

        let child = tracer.start_with_context("child", &cx);
        assert_eq!(child.is_recording(), want["child"]["recording"], "{name}");
        let child = cx.with_span(child);
        let trace_id = child.span().span_context().trace_id().to_string();
        let same = want["extracted"]["trace_id"] == trace_id;
        assert_eq!(same, want["child"]["same_trace"], "{name}");

        let mut call = HeaderMap::new();
        propagator.inject_headers(&child, &mut call);
        let mut sent = serde_json::Map::new();
        for (header, value) in &call {
            sent.insert(header.to_string(), json!(value.to_str().unwrap()));
        }
        let traceparent = call["traceparent"].to_str().unwrap();
        let span_id = &traceparent[36..52];
        assert!(!request.values().any(|value| value.to_str().unwrap().contains(span_id)), "{name}");
        let shown = traceparent.replace(span_id, "<span>");
        // Only the middlewares know of a new trace's id that it is random.
        let shown = if same { shown } else { shown.replace(&trace_id, "<trace>").replace("-01", "-03") };
        sent.insert("traceparent".to_owned(), json!(shown));
        assert_eq!(Value::from(sent), want["injected"], "{name}");
    }
    assert_eq!(differences, 5);
}
