//! Three servers in a row: each server's parent is its caller's CLIENT span, whatever headers a handler copies.

mod egress_support;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use egress_support::*;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{ServerIdentity, ServerType};
use opentelemetry::SpanId;
use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::SpanData;
use reqwest_middleware::ClientWithMiddleware;

#[derive(Clone)]
struct Next {
    client: ClientWithMiddleware,
    url: String,
}

/// Calls the next server with a copy of every header it was called with, as proxies and careless handlers do.
async fn forward(State(next): State<Next>, request: Request) -> String {
    let mut headers = request.headers().clone();
    for own in ["host", "content-length", "transfer-encoding"] {
        headers.remove(own);
    }
    next.client.post(next.url).headers(headers).send().await.unwrap().text().await.unwrap()
}

fn one(spans: &[SpanData], kind: SpanKind) -> SpanData {
    let mut of_kind = spans.iter().filter(|span| span.span_kind == kind);
    let span = of_kind.next().unwrap_or_else(|| panic!("no {kind:?} in {spans:#?}")).clone();
    assert!(of_kind.next().is_none(), "{spans:#?}");
    span
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_with_the_parents_as_called() {
    let agent = Rig::of_server(ServerIdentity::new("agent", ServerType::ResponsesApiAgents));
    let model = Rig::of_server(ServerIdentity::new("model", ServerType::ResponsesApiModels));
    let resources = Rig::of_server(ServerIdentity::new("resources", ServerType::ResourcesServers));
    let layer = |rig: &Rig| GymTelemetryLayer::builder().with_telemetry(&rig.telemetry).build();
    let next = |rig: &Rig, address, path: &str| Next { client: rig.client(), url: format!("http://{address}{path}") };

    let router = Router::new().route("/verify", post(|| async { "verified" })).layer(layer(&resources));
    let (resources_at, at_resources) = serve(router).await;
    let state = next(&model, resources_at, "/verify");
    let router = Router::new().route("/v1/responses", post(forward)).with_state(state).layer(layer(&model));
    let (model_at, at_model) = serve(router).await;
    let state = next(&agent, model_at, "/v1/responses");
    let router = Router::new().route("/run", post(forward)).with_state(state).layer(layer(&agent));
    let (agent_at, _) = serve(router).await;

    let request = reqwest::Client::new().post(format!("http://{agent_at}/run"));
    let request = request.header("traceparent", format!("00-{T1}-{S1}-01")).header("tracestate", "vendor=1");
    assert_eq!(request.send().await.unwrap().text().await.unwrap(), "verified");

    let mut caller = SpanId::from_hex(S1).unwrap();
    for (rig, semantic) in [(&agent, "gym.rollout"), (&model, "gym.model.responses"), (&resources, "gym.verify")] {
        let last = semantic == "gym.verify";
        let spans = rig.wait_for_spans(if last { 2 } else { 3 }).await;
        assert!(spans.iter().all(|span| span.span_context.trace_id().to_string() == T1));
        let server = one(&spans, SpanKind::Server);
        assert_eq!(server.parent_span_id, caller);
        let inner = one(&spans, SpanKind::Internal);
        assert_eq!((inner.name.as_ref(), inner.parent_span_id), (semantic, server.span_context.span_id()));
        if !last {
            let client = one(&spans, SpanKind::Client);
            assert_eq!(client.parent_span_id, inner.span_context.span_id());
            caller = client.span_context.span_id();
        }
    }
    for seen in [at_model, at_resources] {
        assert_eq!(seen.values("traceparent").len(), 1);
        assert!(!seen.values("traceparent")[0].contains(S1));
        assert_eq!(seen.values("tracestate"), ["vendor=1"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_hang_under_the_span_of_a_tracing_user() {
    use opentelemetry::trace::TracerProvider as _;
    use tracing::Instrument as _;
    use tracing_subscriber::layer::SubscriberExt as _;
    let rig = Rig::new();
    let bridge = tracing_opentelemetry::layer().with_tracer(rig.telemetry.tracer_provider().tracer("user"));
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(bridge));
    let (address, seen) = serve(Router::new().route("/", post(|| async { "x" }))).await;
    let call = async { rig.client().post(format!("http://{address}/")).send().await.unwrap().text().await.unwrap() };
    call.instrument(tracing::info_span!("work")).await;
    let spans = rig.wait_for_spans(2).await;
    let client = one(&spans, SpanKind::Client);
    let work = spans.iter().find(|span| span.name == "work").unwrap();
    assert_eq!(client.parent_span_id, work.span_context.span_id());
    let (trace, parent, _) = fields(&seen.values("traceparent")[0]);
    assert_eq!((trace, parent), (work.span_context.trace_id().to_string(), client.span_context.span_id().to_string()));
}
