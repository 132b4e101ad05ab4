//! From a request through `GymTelemetryLayer` and a handler's `TracePropagation` to the next server.

mod propagation_support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::HeaderMap;
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::Context;
use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use propagation_support::{Header, cases, post_raw};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

/// A server under test, and the next one, which keeps what it is sent.
struct Chain {
    address: SocketAddr,
    received: Arc<Mutex<Vec<HeaderMap>>>,
    telemetry: Telemetry,
}

#[derive(Clone)]
struct Handler {
    client: ClientWithMiddleware,
    next: String,
    telemetry: Telemetry,
    between: Between,
}

/// What is between the layer and the call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    Span,
    Suppressed,
    SuppressedSpan,
    /// Telemetry is shut down while the request is served.
    ShutDown,
}

impl Chain {
    /// With spans of a provider made from the environment, or of one handed in.
    async fn start(provider: Option<SdkTracerProvider>, groups: &str, between: Between) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let keep = received.clone();
        let next = post(move |headers: HeaderMap| async move { keep.lock().unwrap().push(headers) });
        let next = serve(Router::new().route("/", next)).await;

        let environment = Environment::from_iter([
            ("NEMO_GYM_OTEL_ENABLED", "1"),
            ("NEMO_GYM_OTEL_SPAN_GROUPS", groups),
            ("OTEL_METRICS_EXPORTER", "none"),
            // Nobody listens there.
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"),
        ]);
        let mut telemetry = Telemetry::builder().with_environment(environment);
        if let Some(provider) = provider {
            telemetry = telemetry.with_tracer_provider(provider);
        }
        let telemetry = telemetry.build();
        let propagation = TracePropagation::builder().with_telemetry(&telemetry).build();
        let client =
            ClientBuilder::new(reqwest::Client::builder().no_proxy().build().unwrap()).with(propagation).build();
        let handler = Handler { client, next: format!("http://{next}/"), telemetry: telemetry.clone(), between };
        let app = Router::new().route("/test", post(call)).with_state(handler);
        Self { address: serve(app.layer(GymTelemetryLayer::new(&telemetry))).await, received, telemetry }
    }

    /// The headers of the call that this request brings about.
    async fn forward(&self, headers: &[Header]) -> Vec<Header> {
        let (status, _) = post_raw(self.address, "/test", headers, b"").await;
        assert_eq!(status, 200);
        let call = self.received.lock().unwrap().pop().expect("one call");
        call.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_owned())).collect()
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A handler that copies all it got onto its call, unless it is asked not to.
async fn call(State(handler): State<Handler>, mut headers: HeaderMap) {
    for name in ["host", "connection", "content-length"] {
        headers.remove(name);
    }
    if headers.contains_key("x-do-not-copy") {
        headers.clear();
    }
    if handler.between == Between::ShutDown {
        handler.telemetry.shutdown().await;
    }
    let mut cx = Context::current();
    if matches!(handler.between, Between::Suppressed | Between::SuppressedSpan) {
        cx = cx.with_telemetry_suppressed();
    }
    if matches!(handler.between, Between::Span | Between::SuppressedSpan) {
        cx = cx.with_span(handler.telemetry.tracer_provider().tracer("handler").start_with_context("handler", &cx));
    }
    let request = handler.client.post(&handler.next).headers(headers);
    opentelemetry::context::FutureExt::with_context(request.send(), cx).await.unwrap();
}

fn value<'a>(headers: &'a [Header], name: &str) -> &'a str {
    let (_, value) = headers.iter().find(|(sent, _)| sent == name).unwrap_or_else(|| panic!("no {name}: {headers:?}"));
    std::str::from_utf8(value).unwrap()
}

/// Both kinds of provider, and what is sent of their new traces: only of a generator of its own does the
/// crate know that its ids are random.
fn providers() -> [(Option<SdkTracerProvider>, &'static str); 2] {
    [(None, "03"), (Some(SdkTracerProvider::builder().build()), "01")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_golden_case_end_to_end() {
    for between in [Between::Nothing, Between::Span] {
        for (provider, new_flags) in providers() {
            let chain = Chain::start(provider, "all", between).await;
            for case in cases() {
                case.check(&chain.forward(&case.headers).await, new_flags);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_golden_case_end_to_end_without_a_server_span() {
    for (provider, new_flags) in providers() {
        let chain = Chain::start(provider, "http_client", Between::Nothing).await;
        for case in cases() {
            case.check(&chain.forward(&case.headers).await, new_flags);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_golden_case_end_to_end_without_a_client_span() {
    for (provider, new_flags) in providers() {
        let chain = Chain::start(provider, "server", Between::Nothing).await;
        for case in cases() {
            case.check(&chain.forward(&case.headers).await, new_flags);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sampler_that_drops_everything_loses_no_flag_but_sampled() {
    let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build();
    let chain = Chain::start(Some(provider), "all", Between::Span).await;
    for case in cases() {
        let sent = chain.forward(&case.headers).await;
        let random = case.flags().is_some_and(|flags| flags & 2 == 2);
        assert_eq!(&value(&sent, "traceparent")[53..], if random { "02" } else { "00" }, "{}", case.id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_received_context_is_passed_on_whatever_becomes_of_the_spans() {
    let request: [Header; 4] = [
        ("x-do-not-copy".to_owned(), b"1".to_vec()),
        ("traceparent".to_owned(), b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03".to_vec()),
        ("tracestate".to_owned(), b"a=1,b@c@d=2".to_vec()),
        ("baggage".to_owned(), b"k=v".to_vec()),
    ];
    use Between::*;
    for between in [Nothing, Span, Suppressed, SuppressedSpan, ShutDown] {
        for (provider, _) in providers() {
            for down in [false, true] {
                let own = provider.is_none();
                let chain = Chain::start(provider.clone(), "all", between).await;
                if down && own {
                    chain.telemetry.shutdown().await;
                } else if down {
                    chain.telemetry.tracer_provider().shutdown().unwrap();
                }
                for tracestate in [true, false] {
                    if between == SuppressedSpan && own && !down && !tracestate {
                        // The one gap, documented: see "What is not known" in docs/propagation.md.
                        continue;
                    }
                    let request: Vec<_> =
                        request.iter().filter(|(n, _)| tracestate || n != "tracestate").cloned().collect();
                    let sent = chain.forward(&request).await;
                    let what =
                        format!("{between:?}, own: {own}, shut down: {down}, tracestate: {tracestate}, {sent:?}");
                    let traceparent = value(&sent, "traceparent");
                    assert!(traceparent.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{what}");
                    assert!(traceparent.ends_with("-03"), "{what}");
                    assert_eq!(value(&sent, "baggage"), "k=v", "{what}");
                    if tracestate {
                        assert_eq!(value(&sent, "tracestate"), "a=1,b@c@d=2", "{what}");
                    }
                }
            }
        }
    }
}
