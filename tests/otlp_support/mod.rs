//! A collector for tests: OTLP over gRPC and HTTP on one port, on a thread of its own, with behaviours
//! that real collectors show on bad days.

#![allow(dead_code, unused_imports)] // each test binary uses a part of it

mod messages;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use nemo_gym_telemetry::Environment;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;

pub use messages::Messages;

pub const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];

/// Telemetry on, everything to this endpoint.
pub fn environment(endpoint: &str, protocol: &str) -> Environment {
    Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        // Absent: the machine would be asked.
        ("CUDA_VISIBLE_DEVICES", ""),
    ])
}

/// A port that refuses connections and is nobody else's: bound, and not listened to. A port that is merely free may be the
/// next test's collector.
pub struct ClosedPort {
    socket: tokio::net::TcpSocket,
    pub address: SocketAddr,
}

impl ClosedPort {
    pub fn reserve() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = socket.local_addr().unwrap();
        Self { socket, address }
    }

    /// From now on connections are accepted.
    pub fn open(self) -> TcpListener {
        drop(self.socket);
        TcpListener::bind(self.address).unwrap()
    }
}

/// One export request.
#[derive(Clone, Debug)]
pub struct Call {
    pub signal: &'static str,
    pub grpc: bool,
    pub path: String,
    pub headers: HeaderMap,
    /// Bytes as they came.
    pub size: usize,
    /// How many requests of this signal came before.
    pub before: usize,
}

/// What the collector does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Takes it.
    Take,
    /// Takes it and says that it rejected so many items.
    Partial(i64),
    /// An HTTP status, with `Retry-After`. Over gRPC: UNAVAILABLE, with RetryInfo of as many seconds.
    Refuse(u16, Option<&'static str>),
    /// A gRPC status.
    Grpc(i32),
    /// Takes the request and never answers.
    Hang,
    /// Closes the connection in the middle.
    Reset,
    /// Takes it after a while.
    Slow(Duration),
}

type Behaviour = Arc<dyn Fn(&Call) -> Reply + Send + Sync>;

#[derive(Debug, Default)]
pub struct Received {
    pub calls: Vec<Call>,
    /// Names of the spans of requests that were taken.
    pub spans: Vec<String>,
    pub traces: Vec<ExportTraceServiceRequest>,
    pub metrics: Vec<ExportMetricsServiceRequest>,
    pub logs: Vec<ExportLogsServiceRequest>,
}

impl Received {
    pub fn calls_of(&self, signal: &str) -> Vec<&Call> {
        self.calls.iter().filter(|call| call.signal == signal).collect()
    }

    /// Requests per path.
    pub fn paths(&self) -> BTreeMap<String, usize> {
        let mut paths = BTreeMap::new();
        for call in &self.calls {
            *paths.entry(call.path.clone()).or_default() += 1;
        }
        paths
    }

    /// The newest value of a sum or the newest count of a histogram.
    pub fn newest(&self, metric: &str) -> Option<u64> {
        use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point::Value};
        let metrics = self.metrics.iter().flat_map(|r| &r.resource_metrics).flat_map(|r| &r.scope_metrics);
        metrics.flat_map(|scope| &scope.metrics).rfind(|m| m.name == metric).and_then(|m| match &m.data {
            Some(Data::Sum(sum)) => Some(
                sum.data_points
                    .iter()
                    .map(|point| match point.value {
                        Some(Value::AsInt(value)) => value as u64,
                        Some(Value::AsDouble(value)) => value as u64,
                        None => 0,
                    })
                    .sum(),
            ),
            Some(Data::Histogram(histogram)) => Some(histogram.data_points.iter().map(|point| point.count).sum()),
            _ => None,
        })
    }
}

/// The collector. Ends when it is dropped.
pub struct Collector {
    pub address: SocketAddr,
    state: Arc<(Mutex<Received>, Condvar)>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Collector {
    /// A collector that takes everything.
    pub fn start() -> Self {
        Self::with(|_| Reply::Take)
    }

    pub fn with(behaviour: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), behaviour)
    }

    pub fn on(listener: TcpListener, behaviour: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve(listener, Arc::new(behaviour), Speaks::Both, None)
    }

    /// Speaks one HTTP version only, as most real ports do.
    pub fn speaking(speaks: Speaks) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(|_: &Call| Reply::Take), speaks, None)
    }

    /// Over TLS.
    pub fn with_tls(config: Arc<tokio_rustls::rustls::ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self::serve(listener, Arc::new(|_: &Call| Reply::Take), Speaks::Both, Some(config))
    }

    fn serve(
        listener: TcpListener,
        behaviour: Behaviour,
        speaks: Speaks,
        tls: Option<Arc<tokio_rustls::rustls::ServerConfig>>,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let state: Arc<(Mutex<Received>, Condvar)> = Arc::default();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let for_thread = Arc::clone(&state);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let accepting = async {
                    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                    loop {
                        let Ok((stream, _)) = listener.accept().await else { continue };
                        let (state, behaviour, tls) = (Arc::clone(&for_thread), Arc::clone(&behaviour), tls.clone());
                        tokio::spawn(async move {
                            match tls {
                                None => connection(TokioIo::new(stream), state, behaviour, speaks).await,
                                Some(config) => {
                                    let acceptor = tokio_rustls::TlsAcceptor::from(config);
                                    if let Ok(stream) = acceptor.accept(stream).await {
                                        connection(TokioIo::new(stream), state, behaviour, speaks).await;
                                    }
                                }
                            }
                        });
                    }
                };
                tokio::select! {
                    _ = stopped => {}
                    () = accepting => {}
                }
            });
        });
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn look<T>(&self, look: impl FnOnce(&Received) -> T) -> T {
        look(&self.state.0.lock().unwrap())
    }

    /// Waits until what was received satisfies the condition; panics after 20 s.
    #[track_caller]
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Received) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut received = self.state.0.lock().unwrap();
        while !condition(&received) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "not within 20 s: {what}; received {:?}", received.paths());
            received = self.state.1.wait_timeout(received, left).unwrap().0;
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    Http1,
    Http2,
    Both,
}

async fn connection<I>(io: TokioIo<I>, state: Arc<(Mutex<Received>, Condvar)>, behaviour: Behaviour, speaks: Speaks)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (reset, mut resetting) = tokio::sync::mpsc::channel::<()>(1);
    let service = hyper::service::service_fn(move |request| {
        answer(request, Arc::clone(&state), Arc::clone(&behaviour), reset.clone())
    });
    let builder = match speaks {
        Speaks::Both => Builder::new(TokioExecutor::new()),
        Speaks::Http1 => Builder::new(TokioExecutor::new()).http1_only(),
        Speaks::Http2 => Builder::new(TokioExecutor::new()).http2_only(),
    };
    tokio::select! {
        _ = builder.serve_connection(io, service) => {}
        Some(()) = resetting.recv() => {}
    }
}

type Body = BoxBody<Bytes, Infallible>;

async fn answer(
    request: Request<Incoming>,
    state: Arc<(Mutex<Received>, Condvar)>,
    behaviour: Behaviour,
    reset: tokio::sync::mpsc::Sender<()>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let content_type = parts.headers.get("content-type").cloned();
    let grpc = content_type.as_ref().is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    let Ok(body) = body.collect().await else { return Ok(status(400)) };
    let body = body.to_bytes();
    let path = parts.uri.path().to_owned();
    let lower = path.to_lowercase();
    let signal = ["trace", "metrics", "logs"].into_iter().find(|word| lower.contains(word)).unwrap_or("trace");
    let before = state.0.lock().unwrap().calls_of(signal).len();
    let call = Call { signal, grpc, path, headers: parts.headers.clone(), size: body.len(), before };
    let reply = behaviour(&call);
    if !grpc && content_type != Some(HeaderValue::from_static("application/x-protobuf")) {
        return Ok(status(415));
    }
    let message = decode(grpc, &parts.headers, body);
    {
        let mut received = state.0.lock().unwrap();
        received.calls.push(call);
        if matches!(reply, Reply::Take | Reply::Partial(_) | Reply::Slow(_)) {
            match signal {
                "metrics" => received.metrics.push(ExportMetricsServiceRequest::decode(message).unwrap()),
                "logs" => received.logs.push(ExportLogsServiceRequest::decode(message).unwrap()),
                _ => {
                    let request = ExportTraceServiceRequest::decode(message).unwrap();
                    let spans = request.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|s| &s.spans);
                    let names: Vec<_> = spans.map(|span| span.name.clone()).collect();
                    received.spans.extend(names);
                    received.traces.push(request);
                }
            }
        }
        state.1.notify_all();
    }
    Ok(match reply {
        Reply::Take => taken(signal, grpc, 0),
        Reply::Partial(count) => taken(signal, grpc, count),
        Reply::Slow(pause) => {
            tokio::time::sleep(pause).await;
            taken(signal, grpc, 0)
        }
        Reply::Hang => std::future::pending().await,
        Reply::Reset => {
            let _ = reset.send(()).await;
            std::future::pending().await
        }
        Reply::Refuse(code, retry_after) if !grpc => {
            let mut response = status(code);
            if let Some(value) = retry_after {
                response.headers_mut().insert("retry-after", HeaderValue::from_static(value));
            }
            response
        }
        Reply::Refuse(_, retry_after) => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("14"));
            if let Some(seconds) = retry_after.and_then(|text| text.parse().ok()) {
                trailers.insert("grpc-status-details-bin", retry_info(seconds));
            }
            grpc_response(None, trailers)
        }
        Reply::Grpc(code) => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from(code));
            trailers.insert("grpc-message", HeaderValue::from_static("token%20s3cret%20is%20wrong"));
            grpc_response(None, trailers)
        }
    })
}

fn decode(grpc: bool, headers: &HeaderMap, body: Bytes) -> Bytes {
    let (message, gzip) = if grpc {
        (body.slice(5..), body[0] == 1)
    } else {
        let gzip = headers.get("content-encoding").is_some_and(|value| value == "gzip");
        (body, gzip)
    };
    if !gzip {
        return message;
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(message.as_ref()).read_to_end(&mut plain).unwrap();
    plain.into()
}

fn taken(signal: &str, grpc: bool, rejected: i64) -> Response<Body> {
    let error_message = if rejected > 0 { "token s3cret".to_owned() } else { String::new() };
    let partial = rejected > 0;
    let message = match signal {
        "metrics" => ExportMetricsServiceResponse {
            partial_success: partial
                .then_some(ExportMetricsPartialSuccess { rejected_data_points: rejected, error_message }),
        }
        .encode_to_vec(),
        "logs" => ExportLogsServiceResponse {
            partial_success: partial
                .then_some(ExportLogsPartialSuccess { rejected_log_records: rejected, error_message }),
        }
        .encode_to_vec(),
        _ => ExportTraceServiceResponse {
            partial_success: partial.then_some(ExportTracePartialSuccess { rejected_spans: rejected, error_message }),
        }
        .encode_to_vec(),
    };
    if grpc {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        return grpc_response(Some(message), trailers);
    }
    let mut response = Response::new(Full::new(Bytes::from(message)).boxed());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/x-protobuf"));
    response
}

fn status(code: u16) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"token s3cret is wrong")).boxed());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}

fn grpc_response(message: Option<Vec<u8>>, trailers: HeaderMap) -> Response<Body> {
    let mut frames = Vec::new();
    if let Some(message) = message {
        let mut data = BytesMut::new();
        data.put_u8(0);
        data.put_u32(message.len() as u32);
        data.put_slice(&message);
        frames.push(Ok(Frame::data(data.freeze())));
    }
    frames.push(Ok(Frame::trailers(trailers)));
    let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)).boxed());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// `google.rpc.Status` with a `RetryInfo`, base64 as `-bin` metadata are.
fn retry_info(seconds: u64) -> HeaderValue {
    use tonic_types::{ErrorDetails, StatusExt};
    let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(seconds)));
    let status = tonic::Status::with_error_details(tonic::Code::Unavailable, "busy", details);
    let headers = tonic::Status::into_http::<String>(status);
    headers.headers()["grpc-status-details-bin"].clone()
}
