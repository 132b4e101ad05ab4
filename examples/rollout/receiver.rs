//! An OTLP receiver on a free port: gRPC and http/protobuf on the same one, so that it understands the servers whichever
//! protocol the user's environment tells them to speak.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message;
use tokio::task::JoinHandle;

use crate::span::Span;

const LARGEST_EXPORT: usize = 64 << 20;

/// A running receiver.
#[derive(Debug)]
pub struct Receiver {
    url: String,
    store: Store,
    server: JoinHandle<std::io::Result<()>>,
}

/// What has been received. Spans are kept; metrics and logs are accepted and let go.
#[derive(Clone, Debug, Default)]
struct Store(Arc<Mutex<Vec<Span>>>);

impl Receiver {
    /// Starts one on the loopback interface.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start() -> std::io::Result<Self> {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let store = Store::default();
        // axum::serve speaks HTTP/1.1 and HTTP/2 on one port; a gRPC method is a route of its own.
        let grpc = |service: &str| format!("/opentelemetry.proto.collector.{service}/Export");
        let traces = TraceServiceServer::new(store.clone()).max_decoding_message_size(LARGEST_EXPORT);
        let app = Router::new()
            .route_service(&grpc("trace.v1.TraceService"), traces)
            .route_service(&grpc("metrics.v1.MetricsService"), MetricsServiceServer::new(store.clone()))
            .route_service(&grpc("logs.v1.LogsService"), LogsServiceServer::new(store.clone()))
            .route("/v1/traces", post(http_traces))
            .route("/v1/metrics", post(http_accept))
            .route("/v1/logs", post(http_accept))
            .layer(DefaultBodyLimit::max(LARGEST_EXPORT))
            .with_state(store.clone());
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self { url, store, server })
    }

    /// The endpoint to tell servers.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Forgets the spans that ended before this.
    pub fn forget_before(&self, oldest: SystemTime) {
        let oldest = oldest.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let mut spans = self.store.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans.retain(|span| u128::from(span.end) >= oldest || span.name.contains(".startup"));
    }

    /// Stops receiving; the spans received so far.
    pub fn finish(self) -> Vec<Span> {
        self.server.abort();
        std::mem::take(&mut self.store.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store {
    fn add(&self, request: ExportTraceServiceRequest) {
        let spans = request.resource_spans.into_iter().flat_map(Span::of);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
    }
}

fn protobuf() -> Response {
    // An empty message has no bytes.
    ([(CONTENT_TYPE, "application/x-protobuf")], Bytes::new()).into_response()
}

async fn http_traces(State(store): State<Store>, body: Bytes) -> Response {
    match ExportTraceServiceRequest::decode(body) {
        Ok(request) => {
            store.add(request);
            protobuf()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

async fn http_accept(_body: Bytes) -> Response {
    protobuf()
}

type Reply<T> = Result<tonic::Response<T>, tonic::Status>;

#[async_trait::async_trait]
impl TraceService for Store {
    async fn export(&self, request: tonic::Request<ExportTraceServiceRequest>) -> Reply<ExportTraceServiceResponse> {
        self.add(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[async_trait::async_trait]
impl MetricsService for Store {
    async fn export(&self, _: tonic::Request<ExportMetricsServiceRequest>) -> Reply<ExportMetricsServiceResponse> {
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[async_trait::async_trait]
impl LogsService for Store {
    async fn export(&self, _: tonic::Request<ExportLogsServiceRequest>) -> Reply<ExportLogsServiceResponse> {
        Ok(tonic::Response::new(ExportLogsServiceResponse::default()))
    }
}
