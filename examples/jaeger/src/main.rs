//! Jaeger on a laptop: `cargo run --manifest-path examples/jaeger/Cargo.toml`
//!
//! The real Jaeger UI over an in-memory OTLP receiver (the crate `otlp-embedded`), on the loopback interface only. Point
//! servers at it, look at their traces, end it with Ctrl-C: nothing is kept. Metrics and logs are taken and dropped.
//!
//! `otlp-embedded` lists a trace under the service of its root, and not before the parents of all its spans have come; by
//! its id, it is shown at once.

mod tags;

use std::future::IntoFuture as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{DefaultBodyLimit, State as Extracted};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::post;
use http_body_util::{BodyExt as _, Full};
use otlp_embedded::proto::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use otlp_embedded::{Config, State, StateRef, TraceService, TraceServiceImpl, TraceServiceServer, ui_app};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_http::decompression::RequestDecompressionLayer;

const USAGE: &str = "usage: jaeger [--grpc PORT] [--http PORT] [--ui PORT]
  --grpc  OTLP over gRPC (4317)
  --http  OTLP as protobuf over HTTP (4318)
  --ui    the Jaeger UI (10188)
Port 0 takes any free one. The addresses are printed once all three are bound.";

const LARGEST_EXPORT: usize = 64 << 20;

#[tokio::main]
async fn main() -> ExitCode {
    let ports = match Ports::parse(std::env::args().skip(1)) {
        Ok(Some(ports)) => ports,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(ports).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jaeger: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(ports: Ports) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (grpc, grpc_at) = bind(ports.grpc).await?;
    let (http, http_at) = bind(ports.http).await?;
    let (ui, ui_at) = bind(ports.ui).await?;
    println!("OTLP gRPC          http://{grpc_at}");
    println!("OTLP http/protobuf http://{http_at}");
    println!("Jaeger UI          http://{ui_at}");

    // The oldest traces make room when either is reached.
    let state = State::new(Config { max_length: 10_000, max_memory_usage: 512 << 20 });
    let receiver = receiver(&state);
    // Open connections and what is in memory end with the process: there is nothing to wait for.
    tokio::select! {
        done = axum::serve(grpc, receiver.clone()).into_future() => done,
        done = axum::serve(http, receiver).into_future() => done,
        done = axum::serve(ui, user_interface(state)).into_future() => done,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

async fn bind(port: u16) -> std::io::Result<(TcpListener, SocketAddr)> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| std::io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// A rollout's tree is deep: its names need more than the UI's quarter of the width, until the user drags the border.
const SETTINGS: &str = r#"<script>localStorage.spanNameColumnWidth ??= "0.45"</script>"#;

fn user_interface(state: StateRef) -> Router {
    ui_app(state, "/").layer(axum::middleware::map_response(settle))
}

/// Adds the settings to pages of the application, which moreover come as 307 without a Location: not every client takes
/// that for a page.
async fn settle(response: Response) -> Response {
    let kind = response.headers().get(CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/html")) {
        return response;
    }
    match to_bytes(response.into_body(), usize::MAX).await {
        Ok(page) => {
            Html(String::from_utf8_lossy(&page).replacen("<head>", &format!("<head>{SETTINGS}"), 1)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Both protocols, on either port: axum speaks HTTP/1.1 and HTTP/2, and a gRPC method is a route like any other.
fn receiver(state: &StateRef) -> Router {
    let traces = Traces(Arc::new(TraceServiceImpl::new(state.clone())));
    let grpc_traces = TraceServiceServer::new(traces.clone())
        .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
        .max_decoding_message_size(LARGEST_EXPORT);
    let http = Router::new()
        .route("/v1/traces", post(http_traces))
        .route("/v1/metrics", post(http_drop))
        .route("/v1/logs", post(http_drop))
        .layer(RequestDecompressionLayer::new());
    let grpc = |service: &str| format!("/opentelemetry.proto.collector.{service}/Export");
    Router::new()
        .route_service(&grpc("trace.v1.TraceService"), grpc_traces)
        .route(&grpc("metrics.v1.MetricsService"), post(grpc_drop))
        .route(&grpc("logs.v1.LogsService"), post(grpc_drop))
        .merge(http)
        .layer(DefaultBodyLimit::max(LARGEST_EXPORT))
        .with_state(traces)
}

/// The trace service, with what the UI wants to see added to each span.
#[derive(Clone)]
struct Traces(Arc<TraceServiceImpl>);

#[tonic::async_trait]
impl TraceService for Traces {
    async fn export(
        &self,
        mut request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        tags::prepare(request.get_mut());
        self.0.export(request).await
    }
}

async fn http_traces(Extracted(traces): Extracted<Traces>, headers: HeaderMap, body: Bytes) -> Response {
    if headers.get(CONTENT_TYPE).is_none_or(|kind| kind != PROTOBUF) {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "only application/x-protobuf").into_response();
    }
    let request = match ExportTraceServiceRequest::decode(body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    match traces.export(tonic::Request::new(request)).await {
        Ok(reply) => protobuf(reply.into_inner().encode_to_vec()),
        Err(status) => (StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()).into_response(),
    }
}

const PROTOBUF: &str = "application/x-protobuf";

fn protobuf(message: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, PROTOBUF)], message).into_response()
}

/// Accepts metrics and logs, so that servers do not report a loss, and lets them go. An empty answer means success.
async fn http_drop(_: Bytes) -> Response {
    protobuf(Vec::new())
}

/// The same over gRPC: one uncompressed message of no bytes, then the status "OK".
async fn grpc_drop(_: Bytes) -> Response {
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let message = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
    ([(CONTENT_TYPE, "application/grpc")], Body::new(message)).into_response()
}

/// Where to listen.
struct Ports {
    grpc: u16,
    http: u16,
    ui: u16,
}

impl Ports {
    /// `None` when the usage is asked for.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut ports = Self { grpc: 4317, http: 4318, ui: 10188 };
        while let Some(name) = arguments.next() {
            let port = match name.as_str() {
                "--grpc" => &mut ports.grpc,
                "--http" => &mut ports.http,
                "--ui" => &mut ports.ui,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown argument {name:?}")),
            };
            let value = arguments.next().and_then(|value| value.parse().ok());
            *port = value.ok_or_else(|| format!("{name} needs a port number"))?;
        }
        Ok(Some(ports))
    }
}
