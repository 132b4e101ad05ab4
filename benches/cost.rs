//! What the layer and the middleware add to a request: instructions, allocations, nanoseconds.
//!
//! `cargo bench --bench cost` prints a table. Every scenario runs the same prebuilt requests by hand on one thread: no
//! socket is part of a request. The response body is read to its end as hyper does. Nanoseconds are of the thread's own clock of
//! wall time, the best of many segments, and only worth comparing with each other.
//!
//! `cost count SCENARIO` runs a fixed number of requests inside [`measured_segment`], for valgrind to count
//! (`.ci/costs`); `cost allocations SCENARIO` prints allocations a request.

#[path = "../tests/allocation_support/mod.rs"]
mod allocation_support;

use std::convert::Infallible;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use http::{HeaderValue, Method, Request, Response};
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use reqwest_middleware::{ClientWithMiddleware, Middleware, Next};
use tower_layer::Layer;
use tower_service::Service;

const REQUESTS: usize = 200;
const SEGMENTS: usize = 12;

/// Name, and what it is compared with.
const SCENARIOS: &[(&str, &str)] = &[
    ("bare", "bare"),
    ("off", "bare"),
    ("unsampled", "bare"),
    ("sampled", "bare"),
    ("layered-off", "bare"),
    ("layered-unsampled", "bare"),
    ("layered-sampled", "bare"),
    ("client-bare", "client-bare"),
    ("client-off", "client-bare"),
    ("client-unsampled", "client-bare"),
    ("client-sampled", "client-bare"),
];

fn main() {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", scenario] => run(scenario, &mut Count),
        ["allocations", scenario] => run(scenario, &mut Allocations),
        _ => table(),
    }
}

/// Each scenario in a process of its own, as a server has one telemetry.
fn table() {
    println!("{:<20} {:>12} {:>12} {:>12} {:>12}", "scenario", "ns", "added ns", "allocations", "added");
    let mut bases = std::collections::HashMap::new();
    for (name, base) in SCENARIOS {
        let output = std::process::Command::new(std::env::current_exe().expect("path of this program"))
            .args(["allocations", name])
            .output()
            .expect("this program runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut figures = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let (Some(allocations), Some(ns)) = (figures.next(), figures.next()) else { panic!("{name}: {text}") };
        bases.entry(name).or_insert((ns, allocations));
        let (base_ns, base_allocations) = bases[base];
        println!(
            "{name:<20} {ns:>12.0} {:>12.0} {allocations:>12.0} {:>12.0}",
            ns - base_ns,
            allocations - base_allocations
        );
    }
}

/// What is done with a scenario: it gets a function that runs a request to its end.
trait Measure {
    fn measure(&mut self, once: &mut dyn FnMut(usize), prepare: &mut dyn FnMut());
}

struct Count;

impl Measure for Count {
    fn measure(&mut self, once: &mut dyn FnMut(usize), prepare: &mut dyn FnMut()) {
        for segment in 0..=SEGMENTS {
            prepare();
            // The first one warms up and is not counted.
            if segment == 0 { segment_of(once) } else { measured_segment(once) }
        }
    }
}

/// Valgrind counts what runs inside of this function.
#[inline(never)]
fn measured_segment(once: &mut dyn FnMut(usize)) {
    segment_of(once);
    black_box(());
}

#[inline(always)]
fn segment_of(once: &mut dyn FnMut(usize)) {
    for index in 0..REQUESTS {
        once(index);
    }
}

struct Allocations;

impl Measure for Allocations {
    fn measure(&mut self, once: &mut dyn FnMut(usize), prepare: &mut dyn FnMut()) {
        let (mut allocations, mut best) = (0, f64::MAX);
        for _ in 0..20 * SEGMENTS {
            prepare();
            let (before, started) = (allocation_support::of_thread(), Instant::now());
            segment_of(once);
            best = best.min(started.elapsed().as_nanos() as f64);
            allocations = allocation_support::of_thread() - before;
        }
        println!("{} {}", (allocations as f64 / REQUESTS as f64).round(), best / REQUESTS as f64);
    }
}

fn run(scenario: &str, measure: &mut dyn Measure) {
    assert!(SCENARIOS.iter().any(|(name, _)| *name == scenario), "scenarios: {SCENARIOS:?}");
    let telemetry = telemetry(scenario);
    let layer = || GymTelemetryLayer::new(&telemetry);
    // A segment's spans fit the queue; what a full one costs, and when it is full, is not a request's doing.
    let drain = || drop(telemetry.tracer_provider().force_flush());
    let flags = if scenario.ends_with("unsampled") { "00" } else { "01" };
    match scenario {
        "bare" => server(router(), flags, &drain, measure),
        "off" | "unsampled" | "sampled" => server(layer().layer(router()), flags, &drain, measure),
        name if name.starts_with("layered") => server(router().layer(layer()), flags, &drain, measure),
        _ => client(scenario, &telemetry, &drain, measure),
    }
}

fn telemetry(scenario: &str) -> Telemetry {
    if scenario.ends_with("off") {
        return Telemetry::disabled();
    }
    // The SDK's own processor and reader, with an exporter that drops: nothing of a request waits for an export.
    let tracer_provider = SdkTracerProvider::builder().with_batch_exporter(Dropping).build();
    let reader = PeriodicReader::builder(InMemoryMetricExporter::default()).with_interval(Duration::from_secs(3600));
    let meter_provider = SdkMeterProvider::builder().with_reader(reader.build()).build();
    Telemetry::builder()
        .with_environment(Environment::from_iter([("NEMO_GYM_OTEL_SPAN_GROUPS", "all")]))
        .with_identity(ServerIdentity::new("example_server", ServerType::ResourcesServers))
        .with_tracer_provider(tracer_provider)
        .with_parent_based_sampler()
        .with_meter_provider(meter_provider)
        .build()
}

#[derive(Debug)]
struct Dropping;

impl SpanExporter for Dropping {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        drop(batch);
        Ok(())
    }
}

/// A server of about the size of a Gym server.
fn router() -> Router {
    let reply = || async {
        ([(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], r#"{"reward":1.0}"#)
    };
    let verify = move |_: Bytes| reply();
    let mut router = Router::new();
    for path in ["/verify", "/seed_session", "/aggregate_metrics", "/v1/responses", "/v1/chat/completions", "/run"] {
        router = router.route(path, post(verify));
    }
    for name in ["session", "item", "tool", "task", "state", "judge", "episode", "world", "asset", "log"] {
        router = router.route(&format!("/{name}"), post(verify)).route(&format!("/{name}/{{id}}"), get(reply));
    }
    router
}

fn request(flags: &str) -> Request<Body> {
    let mut request = Request::new(Body::from(Bytes::from_static(br#"{"response":{}}"#)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static("/verify");
    let traceparent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
    for (name, value) in [
        ("host", "127.0.0.1:8000"),
        ("accept", "*/*"),
        ("accept-encoding", "gzip, deflate"),
        ("user-agent", "Python/3.12 aiohttp/3.11"),
        ("content-type", "application/json"),
        ("content-length", "15"),
        ("traceparent", &traceparent),
    ] {
        request.headers_mut().insert(name, HeaderValue::from_str(value).expect("a header value"));
    }
    request
}

fn server<S, B>(service: S, flags: &str, drain: &dyn Fn(), measure: &mut dyn Measure)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Data = Bytes>,
{
    // The service is cloned for a request beforehand, as it is for a connection.
    let ready = std::cell::RefCell::new(Vec::new());
    let mut prepare = || {
        drain();
        ready.borrow_mut().clear();
        ready.borrow_mut().extend((0..REQUESTS).map(|_| (service.clone(), Some(request(flags)))));
    };
    let mut once = |index: usize| {
        let (service, request) = &mut ready.borrow_mut()[index];
        let Some(request) = request.take() else { return };
        let response = finish(pin!(service.call(request)));
        let Ok(response) = response;
        read_to_end(pin!(response.into_body()));
    };
    measure.measure(&mut once, &mut prepare);
}

fn finish<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// As hyper's HTTP/1 does: no poll at all if the body is at its end, and none after the frame that ends it.
fn read_to_end<B: http_body::Body>(mut body: Pin<&mut B>) {
    while !body.is_end_stream() {
        match finish(pin!(std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)))) {
            Some(Ok(frame)) => drop(black_box(frame)),
            _ => break,
        }
    }
}

/// Answers by itself: no socket is part of a call.
struct Canned;

#[async_trait::async_trait]
impl Middleware for Canned {
    async fn handle(
        &self,
        request: reqwest::Request,
        _: &mut http::Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        black_box(request);
        Ok(Response::new("{}").into())
    }
}

fn client(scenario: &str, telemetry: &Telemetry, drain: &dyn Fn(), measure: &mut dyn Measure) {
    let builder = reqwest_middleware::ClientBuilder::new(reqwest::Client::new());
    let builder = match scenario {
        "client-bare" => builder,
        _ => builder.with(TracePropagation::builder().with_telemetry(telemetry).build()),
    };
    let client: ClientWithMiddleware = builder.with(Canned).build();
    let flags = if scenario == "client-unsampled" { TraceFlags::NOT_SAMPLED } else { TraceFlags::SAMPLED };
    let caller = SpanContext::new(TraceId::from(7), SpanId::from(7), flags, false, Default::default());
    let _current = nemo_gym_telemetry::opentelemetry::Context::new().with_remote_span_context(caller).attach();
    let url: reqwest::Url = "http://127.0.0.1:8000/v1/responses".parse().expect("a URL");
    let ready = std::cell::RefCell::new(Vec::new());
    let mut prepare = || {
        drain();
        ready.borrow_mut().clear();
        ready.borrow_mut().extend((0..REQUESTS).map(|_| {
            let mut request = reqwest::Request::new(Method::POST, url.clone());
            request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
            Some(request)
        }));
    };
    let mut once = |index: usize| {
        let Some(request) = ready.borrow_mut()[index].take() else { return };
        let Ok(mut response) = finish(pin!(client.execute(request))) else { panic!("the canned answer") };
        while let Ok(Some(chunk)) = finish(pin!(response.chunk())) {
            black_box(chunk);
        }
    };
    measure.measure(&mut once, &mut prepare);
}
