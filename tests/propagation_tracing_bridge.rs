//! What is kept when spans of `tracing` lie between what was received and what is sent.

use http::{HeaderMap, HeaderValue};
use nemo_gym_telemetry::GymPropagator;
use opentelemetry::Context;
use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

const T1: &str = "0af7651916cd43dd8448eb211c80319c";
const S1: &str = "b7ad6b7169203331";
const LIST: &str = "a=1,b@c@d=2";

fn received(flags: &str) -> Context {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_str(&format!("00-{T1}-{S1}-{flags}")).unwrap());
    headers.insert("tracestate", HeaderValue::from_static(LIST));
    headers.insert("baggage", HeaderValue::from_static("k=v"));
    GymPropagator::new().extract_headers(&Context::new(), &headers)
}

/// `traceparent`, `tracestate` and `baggage` of a call in this context.
fn sent(cx: &Context) -> [Option<String>; 3] {
    let mut headers = HeaderMap::new();
    GymPropagator::new().inject_headers(cx, &mut headers);
    ["traceparent", "tracestate", "baggage"].map(|name| Some(headers.get(name)?.to_str().unwrap().to_owned()))
}

/// Runs `test` under a subscriber with the bridge.
fn with_bridge(provider: &SdkTracerProvider, activation: bool, test: impl FnOnce()) {
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("bridge"));
    let subscriber = tracing_subscriber::registry().with(layer.with_context_activation(activation));
    tracing::subscriber::with_default(subscriber, test);
}

#[test]
fn a_bridge_span_keeps_flags_list_and_baggage() {
    let provider = SdkTracerProvider::builder().build();
    with_bridge(&provider, true, || {
        for flags in ["00", "01", "02", "03"] {
            let _received = received(flags).attach();
            tracing::info_span!("outer").in_scope(|| {
                tracing::info_span!("inner").in_scope(|| {
                    let cx = Context::current();
                    let span_id = cx.span().span_context().span_id().to_string();
                    assert_ne!(span_id, S1);
                    let [traceparent, tracestate, baggage] = sent(&cx);
                    let traceparent = traceparent.unwrap();
                    assert_eq!(
                        (&traceparent[..36], &traceparent[52..]),
                        (&*format!("00-{T1}-"), &*format!("-{flags}"))
                    );
                    if flags.ends_with(['1', '3']) {
                        assert_eq!(traceparent[36..52], span_id);
                    }
                    assert_eq!((tracestate.as_deref(), baggage.as_deref()), (Some(LIST), Some("k=v")));
                });
            });
        }
    });
}

#[test]
fn direct_spans_above_and_below_a_bridge_span_keep_it_too() {
    let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build();
    let tracer = provider.tracer("direct");
    with_bridge(&provider, true, || {
        let received = received("03");
        let _server = received.with_span(tracer.start_with_context("server", &received)).attach();
        tracing::info_span!("handler").in_scope(|| {
            let cx = Context::current_with_span(tracer.start("client"));
            let [traceparent, tracestate, _] = sent(&cx);
            let traceparent = traceparent.unwrap();
            assert!(traceparent.starts_with(&format!("00-{T1}-")) && traceparent.ends_with("-02"), "{traceparent}");
            assert_eq!(tracestate.as_deref(), Some(LIST));
        });
    });
}

#[test]
fn a_parent_that_is_set_by_hand_brings_it_along() {
    let provider = SdkTracerProvider::builder().build();
    for activation in [true, false] {
        with_bridge(&provider, activation, || {
            let span = tracing::info_span!("request");
            span.set_parent(received("02")).unwrap();
            let _entered = span.enter();
            let inner = tracing::info_span!("inner");
            let [traceparent, tracestate, baggage] = sent(&inner.context());
            let traceparent = traceparent.unwrap();
            assert!(traceparent.starts_with(&format!("00-{T1}-")) && traceparent.ends_with("-02"), "{traceparent}");
            assert_eq!((tracestate.as_deref(), baggage.as_deref()), (Some(LIST), Some("k=v")));
        });
    }
}

#[test]
fn bridge_spans_of_a_provider_that_is_shut_down_hide_nothing() {
    let provider = SdkTracerProvider::builder().build();
    with_bridge(&provider, true, || {
        provider.shutdown().unwrap();
        let _received = received("03").attach();
        tracing::info_span!("handler").in_scope(|| {
            let [traceparent, tracestate, baggage] = sent(&Context::current());
            assert_eq!(traceparent.unwrap(), format!("00-{T1}-{S1}-03"));
            assert_eq!((tracestate.as_deref(), baggage.as_deref()), (Some(LIST), Some("k=v")));
        });
    });
}

#[test]
fn suppressed_bridge_spans_hide_nothing() {
    let provider = SdkTracerProvider::builder().build();
    with_bridge(&provider, true, || {
        let _received = received("01").with_telemetry_suppressed().attach();
        tracing::info_span!("handler").in_scope(|| {
            assert_eq!(sent(&Context::current())[0], Some(format!("00-{T1}-{S1}-01")));
        });
    });
}

/// Its context cannot change once it has started, so nothing can say that its id is random.
#[test]
fn a_root_of_the_bridge_does_not_claim_a_random_id() {
    let provider = SdkTracerProvider::builder().build();
    with_bridge(&provider, true, || {
        // What was received before belongs to another trace.
        let _received = received("03").attach();
        tracing::info_span!(parent: None, "root").in_scope(|| {
            let cx = Context::current();
            let [traceparent, tracestate, _] = sent(&cx);
            let traceparent = traceparent.unwrap();
            assert!(!traceparent.contains(T1) && traceparent.ends_with("-01"), "{traceparent}");
            assert_eq!(tracestate, None);
            assert!(cx.baggage().is_empty());
        });
    });
}
