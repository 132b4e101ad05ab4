//! What goes out in an outgoing request's headers, and what stands in its place.

use std::collections::HashMap;

use http::{HeaderMap, HeaderValue};
use nemo_gym_telemetry::GymPropagator;
use opentelemetry::baggage::BaggageExt;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, SdkTracer, SdkTracerProvider, ShouldSample};

const T1: &str = "0af7651916cd43dd8448eb211c80319c";
const S1: &str = "b7ad6b7169203331";

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn parent(flags: &str) -> String {
    format!("00-{T1}-{S1}-{flags}")
}

fn lines(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

fn received(lines: &[(&'static str, &str)]) -> Context {
    GymPropagator::new().extract_headers(&Context::new(), &headers(lines))
}

fn sent(cx: &Context) -> HeaderMap {
    let mut headers = HeaderMap::new();
    GymPropagator::new().inject_headers(cx, &mut headers);
    headers
}

fn span_in(cx: &Context, tracer: &SdkTracer) -> Context {
    cx.with_span(tracer.start_with_context("span", cx))
}

fn tracer() -> SdkTracer {
    SdkTracerProvider::builder().build().tracer("test")
}

#[test]
fn headers_that_user_code_copied_are_replaced() {
    let cx = span_in(&received(&[("traceparent", &parent("01"))]), &tracer());
    let mut call = headers(&[
        ("traceparent", &parent("01")),
        ("traceparent", "00-11111111111111111111111111111111-2222222222222222-01"),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
        ("accept", "*/*"),
    ]);
    GymPropagator::new().inject_headers(&cx, &mut call);
    let span_id = cx.span().span_context().span_id();
    assert_eq!(lines(&call, "traceparent"), [format!("00-{T1}-{span_id}-01")]);
    assert_eq!(lines(&call, "tracestate"), Vec::<String>::new());
    assert_eq!(lines(&call, "accept"), ["*/*"]);

    // The same request again, for another span.
    let next = span_in(&cx, &tracer());
    GymPropagator::new().inject_headers(&next, &mut call);
    let span_id = next.span().span_context().span_id();
    assert_eq!(lines(&call, "traceparent"), [format!("00-{T1}-{span_id}-01")]);
}

#[test]
fn with_no_trace_to_pass_on_headers_stay() {
    let before = headers(&[("traceparent", &parent("01")), ("tracestate", "a=1"), ("baggage", "k=v")]);
    let mut call = before.clone();
    GymPropagator::new().inject_headers(&Context::new(), &mut call);
    assert_eq!(call, before);
}

#[test]
fn an_unsampled_trace_gets_a_fresh_parent_id_for_every_call() {
    for flags in ["00", "02"] {
        let cx = received(&[("traceparent", &parent(flags))]);
        for cx in [cx.clone(), span_in(&cx, &tracer())] {
            let mut ids = std::collections::HashSet::from([S1.to_owned()]);
            for _ in 0..20 {
                let traceparent = lines(&sent(&cx), "traceparent").remove(0);
                assert!(traceparent.starts_with(&format!("00-{T1}-")) && traceparent.ends_with(&format!("-{flags}")));
                assert!(ids.insert(traceparent[36..52].to_owned()), "{traceparent}");
            }
        }
    }
}

#[test]
fn a_provider_that_is_shut_down_passes_the_received_context_on() {
    let provider = SdkTracerProvider::builder().build();
    let tracer = provider.tracer("test");
    provider.shutdown().unwrap();
    for (flags, list) in [("00", ""), ("01", "a=1,b@c@d=2"), ("02", "a=1"), ("03", "")] {
        let cx = received(&[("traceparent", &parent(flags)), ("tracestate", list), ("baggage", "k=v")]);
        let cx = span_in(&span_in(&cx, &tracer), &tracer);
        assert!(!cx.span().span_context().is_valid());
        let call = sent(&cx);
        let traceparent = lines(&call, "traceparent").remove(0);
        assert!(traceparent.starts_with(&format!("00-{T1}-")) && traceparent.ends_with(&format!("-{flags}")));
        assert_eq!(traceparent.contains(S1), flags.ends_with(['1', '3']), "sampled: the caller's span is the parent");
        assert_eq!(lines(&call, "tracestate").concat(), list);
        assert_eq!(lines(&call, "baggage"), ["k=v"]);
    }
}

#[test]
fn suppressed_telemetry_passes_the_received_context_on() {
    let cx = received(&[("traceparent", &parent("01")), ("tracestate", "a=1")]).with_telemetry_suppressed();
    let cx = span_in(&cx, &tracer());
    let call = sent(&cx);
    assert_eq!(lines(&call, "traceparent"), [parent("01")]);
    assert_eq!(lines(&call, "tracestate"), ["a=1"]);
}

#[test]
fn what_is_known_of_another_trace_is_not_used() {
    let cx = received(&[("traceparent", &parent("02")), ("tracestate", "a=1,b@c@d=2")]);
    let other = SpanContext::new(
        TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap(),
        SpanId::from_hex("00f067aa0ba902b7").unwrap(),
        TraceFlags::SAMPLED,
        false,
        TraceState::NONE,
    );
    let call = sent(&cx.with_remote_span_context(other));
    assert_eq!(lines(&call, "traceparent"), ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]);
    assert_eq!(lines(&call, "tracestate"), Vec::<String>::new());
}

/// Puts a member in front of the parent's list, and takes another away.
#[derive(Clone, Debug)]
struct Vendor;

impl ShouldSample for Vendor {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        _: TraceId,
        _: &str,
        _: &SpanKind,
        _: &[KeyValue],
        _: &[Link],
    ) -> SamplingResult {
        let state = parent.map(|cx| cx.span().span_context().trace_state().clone()).unwrap_or_default();
        let trace_state = state.insert("vendor", "p:8").unwrap().delete("gone").unwrap();
        SamplingResult { decision: SamplingDecision::RecordAndSample, attributes: Vec::new(), trace_state }
    }
}

#[test]
fn a_sampler_changes_the_whole_list() {
    let tracer = SdkTracerProvider::builder().with_sampler(Vendor).build().tracer("test");
    for (list, want) in [
        ("a=1,b@c@d=2,e=3", "vendor=p:8,a=1,b@c@d=2,e=3"),
        ("b@c@d=2,vendor=p:4,e=3", "vendor=p:8,b@c@d=2,e=3"),
        ("b@c@d=2,gone=1", "vendor=p:8,b@c@d=2"),
        ("gone=1", "vendor=p:8"),
        ("", "vendor=p:8"),
    ] {
        let cx = received(&[("traceparent", &parent("01")), ("tracestate", list)]);
        let cx = span_in(&span_in(&cx, &tracer), &tracer);
        assert_eq!(lines(&sent(&cx), "tracestate"), [want], "{list}");
    }
}

#[test]
fn a_full_list_loses_its_right_most_member_to_a_new_one() {
    let tracer = SdkTracerProvider::builder().with_sampler(Vendor).build().tracer("test");
    let members: Vec<_> = (0..32).map(|i| format!("k{i}@a@b={i}")).collect();
    let cx = received(&[("traceparent", &parent("01")), ("tracestate", &members.join(","))]);
    let want = format!("vendor=p:8,{}", members[..31].join(","));
    assert_eq!(lines(&sent(&span_in(&cx, &tracer)), "tracestate"), [want]);
}

#[test]
fn members_that_may_not_be_sent_are_left_out() {
    // The SDK's type takes such values.
    let state = TraceState::from_key_value([("a", "line\nbreak"), ("b", ""), ("c", "blank "), ("d", "é"), ("e", "1")]);
    let cx = received(&[("traceparent", &parent("01"))]);
    let span = cx.span().span_context().clone();
    let with = |state| SpanContext::new(span.trace_id(), span.span_id(), span.trace_flags(), false, state);
    let call = sent(&cx.with_remote_span_context(with(state.unwrap())));
    assert_eq!(lines(&call, "tracestate"), ["e=1"]);
    let none = TraceState::from_key_value([("b", "")]).unwrap();
    let call = sent(&cx.with_remote_span_context(with(none)));
    assert!(!call.contains_key("tracestate"));
}

#[test]
fn unknown_flags_of_a_span_context_are_not_sent() {
    let span = SpanContext::new(
        TraceId::from_hex(T1).unwrap(),
        SpanId::from_hex(S1).unwrap(),
        TraceFlags::new(0xfd),
        false,
        TraceState::NONE,
    );
    assert_eq!(lines(&sent(&Context::new().with_remote_span_context(span)), "traceparent"), [parent("01")]);
}

#[test]
fn what_is_not_chosen_is_neither_read_nor_written() {
    let request = headers(&[("traceparent", &parent("01")), ("tracestate", "a=1"), ("baggage", "k=v")]);
    let all = GymPropagator::default();
    let cases = [
        (all, true, true, vec!["traceparent", "tracestate", "baggage"]),
        (all.with_baggage(false), true, false, vec!["traceparent", "tracestate"]),
        (all.with_trace_context(false), false, true, vec!["baggage"]),
        (all.with_trace_context(false).with_baggage(false), false, false, vec![]),
    ];
    for (propagator, trace_context, baggage, fields) in cases {
        assert_eq!(propagator.fields().collect::<Vec<_>>(), fields);
        let cx = propagator.extract_headers(&Context::new(), &request);
        assert_eq!((cx.has_active_span(), !cx.baggage().is_empty()), (trace_context, baggage));
        let mut call = HeaderMap::new();
        propagator.inject_headers(&received(&[("traceparent", &parent("01")), ("baggage", "k=v")]), &mut call);
        assert_eq!((call.contains_key("traceparent"), call.contains_key("baggage")), (trace_context, baggage));
    }
}

#[test]
fn a_context_stays_as_it_is_where_a_message_says_nothing() {
    let propagator = GymPropagator::new();
    let base = span_in(&Context::new(), &tracer());
    for lines in [&[][..], &[("traceparent", "junk")], &[("tracestate", "a=1")], &[("baggage", "junk")]] {
        let cx = propagator.extract_headers(&base, &headers(lines));
        assert_eq!(cx.span().span_context(), base.span().span_context());
    }
}

/// A carrier that shows every line of a repeated field, as `HeaderExtractor` does.
struct Lines(Vec<(&'static str, String)>);

impl Extractor for Lines {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str())
    }
    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
    fn get_all(&self, key: &str) -> Option<Vec<&str>> {
        Some(self.0.iter().filter(|(name, _)| *name == key).map(|(_, value)| value.as_str()).collect())
    }
}

impl Injector for Lines {
    fn set(&mut self, key: &str, value: String) {
        let name = ["traceparent", "tracestate", "baggage"].into_iter().find(|name| *name == key).unwrap();
        self.0.push((name, value));
    }
}

#[test]
fn any_carrier_will_do() {
    let propagator = GymPropagator::new();
    let list = "a=1,b@c@d=2,e=3";
    let message = Lines(vec![
        ("tracestate", "a=1, b@c@d=2".to_owned()),
        ("traceparent", parent("03")),
        ("tracestate", "e=3".to_owned()),
        ("baggage", "k=v".to_owned()),
        ("baggage", "l=w;p".to_owned()),
    ]);
    let cx = propagator.extract_with_context(&Context::new(), &message);
    let mut next = Lines(Vec::new());
    propagator.inject_context(&cx, &mut next);
    let want = [("traceparent", parent("03")), ("tracestate", list.to_owned()), ("baggage", "k=v,l=w;p".to_owned())];
    assert_eq!(next.0, want);

    let twice = Lines(vec![("traceparent", parent("01")), ("traceparent", parent("01"))]);
    assert!(!propagator.extract_with_context(&Context::new(), &twice).has_active_span());
}

#[test]
fn empty_fields_are_not_set_in_a_carrier() {
    let propagator = GymPropagator::new();
    let cx = propagator.extract(&HashMap::from([("traceparent".to_owned(), parent("01"))]));
    let mut next = HashMap::new();
    propagator.inject_context(&cx, &mut next);
    assert_eq!(next, HashMap::from([("traceparent".to_owned(), parent("01"))]));
    let mut nothing: HashMap<String, String> = HashMap::new();
    propagator.inject_context(&Context::new(), &mut nothing);
    assert!(nothing.is_empty());
}

/// ING-03: whichever way a request repeats the field, the answer is the same every time.
#[test]
fn repeated_traceparents_always_start_a_new_trace() {
    let (one, other) = (parent("01"), parent("01").replace(T1, "4bf92f3577b34da6a3ce929d0e0e4736"));
    let folded = format!("{one}, {other}");
    for request in [vec![&one, &other], vec![&folded], vec![&one, &one]] {
        let request: Vec<_> = request.into_iter().map(|value| ("traceparent", value.as_str())).collect();
        for _ in 0..100 {
            assert!(!received(&request).has_active_span(), "{request:?}");
        }
    }
}

/// ING-01: junk starts a new trace, the two controls do not.
#[test]
fn junk_starts_a_new_trace() {
    let zero_trace = format!("00-{}-{S1}-01", "0".repeat(32));
    let zero_span = format!("00-{T1}-{}-01", "0".repeat(16));
    let junk = ["", "xz", &parent("01").replace("00-", "ff-"), &parent("01").to_uppercase(), &zero_trace, &zero_span];
    let lengths = [format!("00-{}-{S1}-01", &T1[1..]), format!("00-{T1}0-{S1}-01")];
    for value in junk.into_iter().chain(lengths.iter().map(String::as_str)) {
        assert!(!received(&[("traceparent", value)]).has_active_span(), "{value}");
    }
    let whole = parent("01").into_bytes();
    for at in 0..=whole.len() {
        let mut value = whole.clone();
        value.insert(at, 0xb2);
        let mut request = HeaderMap::new();
        request.insert("traceparent", HeaderValue::from_bytes(&value).unwrap());
        request.insert("user-agent", HeaderValue::from_bytes(b"Moto Z\xb2").unwrap());
        assert!(!GymPropagator::new().extract_headers(&Context::new(), &request).has_active_span(), "byte at {at}");
    }
    for value in [format!(" \t{} \t", parent("01")), format!("cc-{T1}-{S1}-01-extra")] {
        let cx = received(&[("traceparent", &value)]);
        assert_eq!(cx.span().span_context().span_id().to_string(), S1);
        assert_eq!(lines(&sent(&cx), "traceparent"), [parent("01")]);
    }
}

#[test]
fn repeats_count_and_empty_members_do_not() {
    let members: Vec<_> = (0..32).map(|i| format!("k{i}={i}")).collect();
    let list = members.join(",");
    for (line, want) in [
        (format!("{list},,"), Some(&list)),
        (format!("{list},k0=0"), None),
        (format!("k0=9,{}", members[..31].join(",")), Some(&format!("k0=9,{}", members[1..31].join(",")))),
    ] {
        let call = sent(&received(&[("traceparent", &parent("01")), ("tracestate", &line)]));
        assert_eq!(lines(&call, "tracestate").first(), want, "{line}");
    }
}

/// A sampler sees what the SDK's type can hold of a list, and no less.
#[test]
fn the_span_context_shows_what_it_can() {
    let list = "a@0123456789012=1,b@01234567890123=2,c@=3,d@-e=4,f@g@h=5,i=6";
    let cx = received(&[("traceparent", &parent("01")), ("tracestate", list)]);
    let span = cx.span();
    let shown: Vec<_> = span.span_context().trace_state().into_iter().map(|(_, value)| value).collect();
    assert_eq!(shown, ["1", "3", "6"]);
    assert_eq!(lines(&sent(&cx), "tracestate"), [list]);
}
