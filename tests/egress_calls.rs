//! One call: its span, its headers, and what the caller gets back.

mod egress_support;

use axum::Router;
use axum::routing::{any, get, post};
use egress_support::*;
use nemo_gym_telemetry::egress::{DestinationServer, TraceOptOut, TracePropagation, UrlTemplate};
use nemo_gym_telemetry::job::Job;
use opentelemetry::baggage::BaggageExt as _;
use opentelemetry::trace::{FutureExt as _, SpanKind, Status, TraceContextExt as _};
use opentelemetry::{Context, KeyValue, SpanId, TraceId, Value};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

fn router() -> Router {
    Router::new()
        .route("/verify", post(|| async { "done" }))
        .route("/items/{id}", get(|| async { "item" }))
        .fallback(any(|| async { "any" }))
}

fn client(middleware: impl reqwest_middleware::Middleware) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(middleware).build()
}

#[tokio::test]
async fn a_call_is_one_client_span_with_the_conventions_attributes() {
    let rig = Rig::new();
    let (address, seen) = serve(router()).await;
    let request = rig.client().post(format!("http://{address}/verify"));
    let response = request.send().with_context(parent(true)).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "done");

    let span = rig.span();
    assert_eq!(span.name, "POST /verify");
    assert_eq!(span.span_kind, SpanKind::Client);
    assert_eq!(span.instrumentation_scope.name(), "nemo.gym");
    assert_eq!(span.span_context.trace_id(), TraceId::from_hex(T1).unwrap());
    assert_eq!(span.parent_span_id, SpanId::from_hex(S1).unwrap());
    assert_eq!(span.status, Status::Unset);
    assert_eq!(text(&span, "http.request.method").unwrap(), "POST");
    assert_eq!(text(&span, "url.full").unwrap(), format!("http://{address}/verify"));
    assert_eq!(text(&span, "url.template").unwrap(), "/verify");
    assert_eq!(text(&span, "server.address").unwrap(), "127.0.0.1");
    assert_eq!(attribute(&span, "server.port"), Some(Value::I64(address.port().into())));
    assert_eq!(attribute(&span, "http.response.status_code"), Some(Value::I64(200)));
    assert_eq!(text(&span, "network.protocol.version").unwrap(), "1.1");
    assert!(matches!(attribute(&span, "nemo.gym.http.time_to_headers_ms"), Some(Value::F64(ms)) if ms > 0.0));
    assert_eq!(attribute(&span, "error.type"), None);
    assert_eq!(attribute(&span, "http.request.resend_count"), None);

    let sent = format!("00-{T1}-{}-01", span.span_context.span_id());
    assert_eq!(seen.values("traceparent"), [sent]);
    assert_eq!(seen.values("tracestate"), [""; 0]);
    let points = rig.points();
    let attributes = format!(
        "http.request.method=POST http.response.status_code=200 network.protocol.version=1.1 \
         server.address=127.0.0.1 server.port={}",
        address.port()
    );
    assert_eq!(points.len(), 1, "{points:?}");
    assert_eq!(points[&("http.client.request.duration".to_owned(), attributes)].0, 1);
}

#[tokio::test]
async fn names_are_methods_and_templates_and_never_paths() {
    let rig = Rig::new();
    let (address, _) = serve(router()).await;
    let built = TracePropagation::builder()
        .with_telemetry(&rig.telemetry)
        .with_url_template("/items/{item_id}")
        .with_url_template("/items/{other_name}")
        .with_url_template("/broken/{")
        .build();
    let client = client(built);
    let url = |path: &str| format!("http://{address}{path}");
    let method = |name: &str| reqwest::Method::from_bytes(name.as_bytes()).unwrap();
    client.get(url("/items/7")).send().await.unwrap().text().await.unwrap();
    client.get(url("/secret/path/42")).send().await.unwrap().text().await.unwrap();
    client.post(url("/ng-rollout/3-0/v1/responses")).send().await.unwrap().text().await.unwrap();
    client.post(url("/ng-rollout/3-0/training-token-capture/verify")).send().await.unwrap().text().await.unwrap();
    client.request(method("FOOBAR"), url("/x")).send().await.unwrap().text().await.unwrap();
    client.request(method("get"), url("/x")).send().await.unwrap().text().await.unwrap();
    let named = client.get(url("/users/9")).with_extension(UrlTemplate::new("/users/{id}"));
    named.send().await.unwrap().text().await.unwrap();

    let spans = rig.spans();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
    assert_eq!(
        names,
        [
            "GET /items/{item_id}",
            "GET",
            "POST /ng-rollout/{rollout_id}/v1/responses",
            "POST /ng-rollout/{rollout_id}/training-token-capture/verify",
            "HTTP",
            "HTTP",
            "GET /users/{id}",
        ]
    );
    assert_eq!(text(&spans[4], "http.request.method").unwrap(), "_OTHER");
    assert_eq!(text(&spans[4], "http.request.method_original").unwrap(), "FOOBAR");
    assert_eq!(text(&spans[5], "http.request.method_original").unwrap(), "get");
    assert_eq!(attribute(&spans[1], "url.template"), None);
    assert_eq!(text(&spans[6], "url.template").unwrap(), "/users/{id}");
}

#[tokio::test]
async fn exactly_one_traceparent_of_our_own_goes_out() {
    let rig = Rig::new();
    let (address, seen) = serve(router()).await;
    let url = format!("http://{address}/verify");
    let foreign = "00-11111111111111111111111111111111-2222222222222222-01";
    let client = rig.client();
    async {
        client.post(&url).header("Traceparent", foreign).send().await.unwrap();
        client.post(&url).header("tracestate", "a=1").send().await.unwrap();
        let twice = client.post(&url).header("traceparent", foreign).header("traceparent", foreign);
        twice.header("tracestate", "a=1").header("tracestate", "b=2").send().await.unwrap();
        let request = reqwest::Client::new().post(&url).header("traceparent", foreign).build().unwrap();
        for _ in 0..5 {
            client.execute(request.try_clone().unwrap()).await.unwrap();
        }
    }
    .with_context(parent(true))
    .await;

    let all = seen.all();
    assert_eq!(all.len(), 8);
    let mut parents = std::collections::HashSet::new();
    for (_, headers) in &all {
        let lines: Vec<_> = headers.get_all("traceparent").iter().collect();
        assert_eq!(lines.len(), 1);
        let (trace, parent, flags) = fields(lines[0].to_str().unwrap());
        assert_eq!((trace.as_str(), flags.as_str()), (T1, "01"));
        parents.insert(parent);
        assert_eq!(headers.get("tracestate"), None);
    }
    let spans = rig.spans();
    let own: std::collections::HashSet<_> = spans.iter().map(|s| s.span_context.span_id().to_string()).collect();
    assert_eq!(parents, own);
    assert_eq!(own.len(), 8);
}

#[tokio::test]
async fn no_secret_of_a_url_or_header_is_recorded() {
    let rig = Rig::new();
    let (address, _) = serve(router()).await;
    let secrets = ["PW1", "K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K9", "H1", "H2"];
    let url = format!(
        "http://user:PW1@{address}/v1?api_key=K1&sig=K2&X-Amz-Signature=K3&token=K4&ACCESS_TOKEN=K5&%61pi%5Fkey=K6\
         &client_secret=K7&code=K8&password=K9&q=ok#K1"
    );
    let request = rig.client().get(&url).header("authorization", "Bearer H1").header("x-api-key", "H2");
    request.send().await.unwrap().text().await.unwrap();
    // The error of a call holds its URL.
    let nobody = url.replace(&address.to_string(), "127.0.0.1:1");
    rig.client().get(nobody).send().await.unwrap_err();

    let spans = rig.spans();
    assert_eq!(spans.len(), 2);
    let recorded = format!("{spans:?} {:?}", rig.points());
    for secret in secrets {
        assert!(!recorded.contains(secret), "{secret} in {recorded}");
    }
    let full = text(&spans[0], "url.full").unwrap();
    assert!(full.starts_with(&format!("http://{address}/v1?api_key=REDACTED&sig=REDACTED&")), "{full}");
    assert!(full.ends_with("&q=ok"), "{full}");
}

#[tokio::test]
async fn ipv6_addresses_have_no_brackets_and_ports_default_by_scheme() {
    let rig = Rig::new();
    let client = rig.client();
    for url in ["http://[::1]:1/", "https://localhost/", "http://127.0.0.1:1/a"] {
        _ = client.get(url).timeout(std::time::Duration::from_secs(5)).send().await;
    }
    let spans = rig.spans();
    let servers: Vec<_> =
        spans.iter().map(|s| (text(s, "server.address").unwrap(), attribute(s, "server.port").unwrap())).collect();
    let server = |address: &str, port: i64| (address.to_owned(), Value::I64(port));
    assert_eq!(servers, [server("::1", 1), server("localhost", 443), server("127.0.0.1", 1)]);
}

#[tokio::test]
async fn with_the_group_off_no_span_is_made_and_the_callers_context_goes_out() {
    let rig = Rig::with_groups("server");
    let (address, seen) = serve(router()).await;
    let request = rig.client().get(format!("http://{address}/"));
    request.send().with_context(parent(true)).await.unwrap();
    assert_eq!(seen.values("traceparent"), [format!("00-{T1}-{S1}-01")]);
    assert!(rig.spans().is_empty());
    assert!(rig.points().is_empty());
}

#[tokio::test]
async fn in_an_unsampled_trace_every_call_has_a_parent_id_of_its_own() {
    let (address, seen) = serve(router()).await;
    for groups in ["default", "server"] {
        let rig = Rig::with_groups(groups);
        for _ in 0..2 {
            let request = rig.client().get(format!("http://{address}/"));
            request.send().with_context(parent(false)).await.unwrap().text().await.unwrap();
        }
        assert!(rig.spans().is_empty());
        // Metrics do not depend on sampling.
        let expected = if groups == "default" { 2 } else { 0 };
        assert_eq!(total(&rig.points(), "http.client.request.duration", "status_code=200"), expected);
    }
    let sent = seen.values("traceparent");
    let ids: std::collections::HashSet<_> = sent.iter().map(|line| fields(line).1).collect();
    assert_eq!((sent.len(), ids.len()), (4, 4));
    assert!(!ids.contains(S1));
    assert!(sent.iter().all(|line| fields(line).0 == T1 && fields(line).2 == "00"), "{sent:?}");
}

#[tokio::test]
async fn a_sampler_that_does_not_follow_the_parent_is_asked() {
    use nemo_gym_telemetry::{Environment, Telemetry};
    use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider};
    let (address, seen) = serve(router()).await;
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).with_sampler(Sampler::AlwaysOn);
    let telemetry = Telemetry::builder()
        .with_environment(Environment::from_iter([("NEMO_GYM_OTEL_METRICS_ENABLED", "0")]))
        .with_tracer_provider(provider.build())
        .build();
    let client = client(TracePropagation::builder().with_telemetry(&telemetry).build());
    let request = client.get(format!("http://{address}/"));
    request.send().with_context(parent(false)).await.unwrap().text().await.unwrap();
    let spans = spans.get_finished_spans().unwrap();
    let sent = format!("00-{T1}-{}-01", spans[0].span_context.span_id());
    assert_eq!(seen.values("traceparent"), [sent]);
}

#[tokio::test]
async fn one_request_can_opt_out_of_the_span_of_the_headers_or_of_both() {
    let rig = Rig::new();
    let (address, seen) = serve(router()).await;
    let spans_of = async |opt_out: TraceOptOut| {
        let before = rig.spans().len();
        let request = rig.client().get(format!("http://{address}/")).with_extension(opt_out);
        request.send().with_context(parent(true)).await.unwrap().text().await.unwrap();
        let sent = seen.all().last().unwrap().1.get("traceparent").cloned();
        (rig.spans().len() - before, sent.map(|line| line.to_str().unwrap().to_owned()))
    };
    assert_eq!(spans_of(TraceOptOut::Span).await, (0, Some(format!("00-{T1}-{S1}-01"))));
    assert_eq!(spans_of(TraceOptOut::Headers).await, (1, None));
    assert_eq!(spans_of(TraceOptOut::All).await, (0, None));
}

#[tokio::test]
async fn a_suppressed_context_makes_no_span_and_no_sample() {
    let rig = Rig::new();
    let (address, seen) = serve(router()).await;
    let exporters = Context::new().with_telemetry_suppressed();
    let in_a_request = parent(true).with_telemetry_suppressed();
    for context in [exporters, in_a_request] {
        let request = rig.client().get(format!("http://{address}/"));
        request.send().with_context(context).await.unwrap().text().await.unwrap();
    }
    assert!(rig.spans().is_empty());
    assert!(rig.points().is_empty());
    assert_eq!(seen.values("traceparent"), [format!("00-{T1}-{S1}-01")]);
}

#[tokio::test]
async fn after_shutdown_the_received_context_goes_on() {
    let rig = Rig::new();
    let (address, seen) = serve(router()).await;
    rig.telemetry.shutdown().await;
    let request = rig.client().get(format!("http://{address}/"));
    request.send().with_context(parent(true)).await.unwrap().text().await.unwrap();
    assert_eq!(seen.values("traceparent"), [format!("00-{T1}-{S1}-01")]);
    assert!(rig.spans().is_empty());
}

#[tokio::test]
async fn wholly_off_the_bytes_on_the_wire_are_those_of_plain_reqwest() {
    let (address, heads) = raw_server(vec![OK]).await;
    let send = async |client: ClientWithMiddleware| {
        let request = client.post(format!("http://{address}/verify?token=a")).header("X-Mixed", "1");
        let request = request.header("traceparent", "kept as it is").body("{}");
        request.send().with_context(parent(true)).await.unwrap().text().await.unwrap();
        heads.lock().unwrap().pop().unwrap()
    };
    let plain = send(ClientBuilder::new(reqwest::Client::new()).build()).await;
    // The process-wide handle was never initialised here.
    assert_eq!(send(client(TracePropagation)).await, plain);
    let disabled = nemo_gym_telemetry::Telemetry::disabled();
    assert_eq!(send(client(TracePropagation::builder().with_telemetry(&disabled).build())).await, plain);
    assert!(plain.contains("traceparent: kept as it is"), "{plain}");
}

#[tokio::test]
async fn the_response_is_what_it_would_be_without_the_middleware() {
    let rig = Rig::new();
    let body = "x".repeat(100_000);
    let served = body.clone();
    let router = Router::new()
        .route("/big", get(move || async { ([("x-a", "1"), ("x-b", "2")], served) }))
        .route("/empty", get(|| async { http::StatusCode::NO_CONTENT }))
        .route("/moved", get(|| async { axum::response::Redirect::temporary("/big?moved=1") }));
    let (address, _) = serve(router).await;
    let plain = ClientBuilder::new(reqwest::Client::new()).build();
    let ours = rig.client();
    for (method, path) in [("GET", "/big"), ("HEAD", "/big"), ("GET", "/empty"), ("GET", "/moved"), ("GET", "/none")] {
        let mut seen = Vec::new();
        for client in [&plain, &ours] {
            let request = client.request(method.parse().unwrap(), format!("http://{address}{path}"));
            let response = request.send().with_context(parent(true)).await.unwrap();
            let mut headers = response.headers().clone();
            headers.remove("date");
            let head = (response.status(), response.version(), headers, response.url().clone());
            let rest = (response.content_length(), response.remote_addr(), response.bytes().await.unwrap());
            seen.push((head, rest));
        }
        assert_eq!(seen[0], seen[1], "{method} {path}");
    }
    assert_eq!(rig.spans().len(), 5);
}

#[tokio::test]
async fn a_rollouts_call_is_a_root_with_a_link_to_the_job() {
    let rig = Rig::with_groups("job,http_client");
    let (address, seen) = serve(router()).await;
    let job = Job::start(&rig.telemetry);
    let job_span = job.context().span().span_context().clone();
    job.rollout(rig.client().post(format!("http://{address}/run")).send()).await.unwrap().text().await.unwrap();
    let span = rig.span();
    assert_eq!(span.parent_span_id, SpanId::INVALID);
    assert_ne!(span.span_context.trace_id(), job_span.trace_id());
    let links: Vec<_> = span.links.iter().map(|link| link.span_context.clone()).collect();
    assert_eq!(links, [job_span]);
    assert_eq!(fields(&seen.values("traceparent")[0]).0, span.span_context.trace_id().to_string());
}

#[tokio::test]
async fn a_new_root_of_a_provider_of_ours_is_sent_with_the_random_flag() {
    let (address, seen) = serve(router()).await;
    let client = client(TracePropagation::builder().with_telemetry(&own_provider("http_client")).build());
    client.get(format!("http://{address}/")).send().await.unwrap().text().await.unwrap();
    assert_eq!(fields(&seen.values("traceparent")[0]).2, "03");
}

#[tokio::test]
async fn the_rollout_id_is_on_the_span_and_goes_as_baggage_to_internal_hosts_only() {
    let rig = Rig::new();
    let (address, seen) = serve(router()).await;
    let context = parent(true).with_baggage([KeyValue::new("nemo.gym.rollout.id", "3-0"), KeyValue::new("user", "a")]);
    let send = async |middleware, extension: Option<DestinationServer>| {
        let mut request = client(middleware).get(format!("http://{address}/"));
        if let Some(extension) = extension {
            request = request.with_extension(extension);
        }
        request.send().with_context(context.clone()).await.unwrap().text().await.unwrap();
        let baggage = seen.all().last().unwrap().1.get("baggage").unwrap().to_str().unwrap().to_owned();
        let span = rig.spans().pop().unwrap();
        assert_eq!(text(&span, "nemo.gym.rollout.id").unwrap(), "3-0");
        (baggage, text(&span, "nemo.gym.http.destination.server.name"))
    };
    let builder = || TracePropagation::builder().with_telemetry(&rig.telemetry);
    let external = ("user=a".to_owned(), None);
    let both = "nemo.gym.rollout.id=3-0,user=a".to_owned();
    assert_eq!(send(builder().build(), None).await, external);
    assert_eq!(send(builder().with_internal_host("127.0.0.1:1").build(), None).await, external);
    assert_eq!(send(builder().with_internal_host("not a host").build(), None).await, external);
    assert_eq!(send(builder().with_internal_host("127.0.0.1").build(), None).await, (both.clone(), None));
    let named = builder().with_server("policy_model", address.to_string()).build();
    assert_eq!(send(named, None).await, (both.clone(), Some("policy_model".to_owned())));
    let extension = DestinationServer::new("verifier");
    assert_eq!(send(builder().build(), Some(extension)).await, (both, Some("verifier".to_owned())));
}

#[tokio::test]
async fn over_http_2_the_version_says_so() {
    let rig = Rig::new();
    let (address, _) = serve(router()).await;
    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let client = ClientBuilder::new(http2).with(rig.middleware()).build();
    for _ in 0..2 {
        let response = client.post(format!("http://{address}/verify")).send().await.unwrap();
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(response.text().await.unwrap(), "done");
    }
    let spans = rig.spans();
    assert_eq!(spans.len(), 2);
    assert!(spans.iter().all(|span| text(span, "network.protocol.version").as_deref() == Some("2")));
    assert_eq!(total(&rig.points(), "http.client.request.duration", "network.protocol.version=2"), 2);
}
