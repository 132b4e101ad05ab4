//! OTLP over gRPC: unary calls on one HTTP/2 connection.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use tonic::client::Grpc as GrpcClient;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Extensions, Request, Status};
use tonic_types::StatusExt;
use tower::ServiceExt as _;

use super::Signal;
use super::endpoint::Target;
use super::failure::{Failure, MixUp, chain};
use super::first_bytes::{FirstBytes, FirstWord, Watched};
use super::headers::USER_AGENT;
use crate::config::settings::OtlpSettings;

/// The way to one signal's service.
#[derive(Debug)]
pub(super) struct Grpc {
    endpoint: Endpoint,
    channel: Mutex<Channel>,
    path: PathAndQuery,
    metadata: MetadataMap,
    gzip: bool,
    tls: bool,
    first_bytes: Arc<FirstBytes>,
}

impl Grpc {
    /// Must be called inside the export runtime's context: the channel starts a task. Connects later.
    /// An error is a reason without secrets.
    pub(super) fn new(
        signal: Signal,
        target: &Target,
        mut headers: HeaderMap,
        settings: &OtlpSettings,
    ) -> Result<Self, String> {
        // The channel sets its own; a user's would come second, and some servers refuse that.
        let user_agent = headers.remove(http::header::USER_AGENT);
        let user_agent = user_agent.as_ref().and_then(|value| value.to_str().ok()).unwrap_or(USER_AGENT);
        let endpoint = Endpoint::from_shared(target.url.as_str().to_owned())
            .map_err(|_| "the endpoint is not usable for gRPC".to_owned())?
            .user_agent(user_agent)
            .map_err(|_| "the user-agent header is not usable".to_owned())?
            .connect_timeout(settings.timeout.min(super::CONNECT_TIMEOUT))
            .tcp_keepalive(Some(Duration::from_secs(30)));
        #[cfg(feature = "tls")]
        let endpoint = if target.is_tls() {
            let config = super::tls::tonic_config(settings)?;
            endpoint.tls_config(config).map_err(|error| format!("TLS cannot be set up: {}", innermost(&error)))?
        } else {
            endpoint
        };
        let first_bytes = Arc::new(FirstBytes::default());
        Ok(Self {
            channel: Mutex::new(connect_lazily(&endpoint, &first_bytes)),
            endpoint,
            path: PathAndQuery::from_static(signal.grpc_path()),
            metadata: MetadataMap::from_headers(headers),
            gzip: settings.gzip,
            tls: target.is_tls(),
            first_bytes,
        })
    }

    pub(super) async fn send(&self, message: Bytes) -> Result<Bytes, Failure> {
        let channel = self.channel.lock().unwrap_or_else(|e| e.into_inner()).clone();
        let mut client = GrpcClient::new(channel).accept_compressed(CompressionEncoding::Gzip);
        if self.gzip {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        client.ready().await.map_err(|error| self.transport_failure(&error))?;
        let request = Request::from_parts(self.metadata.clone(), Extensions::default(), message);
        let response = client.unary(request, self.path.clone(), RawCodec).await;
        response.map(tonic::Response::into_inner).map_err(|status| self.refusal(&status))
    }

    pub(super) fn abandon_connection(&self) {
        let fresh = connect_lazily(&self.endpoint, &self.first_bytes);
        *self.channel.lock().unwrap_or_else(|e| e.into_inner()) = fresh;
    }

    /// Which codes are worth another attempt: OTLP specification, OTLP/gRPC response.
    fn refusal(&self, status: &Status) -> Failure {
        if let Some(source) = status.source() {
            // Made on this side: there was no answer.
            return self.transport_failure(source);
        }
        let reason = format!("gRPC code: {:?}", status.code());
        let pause = status.get_details_retry_info().and_then(|info| info.retry_delay);
        match (status.code(), pause) {
            (Code::Unavailable | Code::ResourceExhausted, Some(pause)) if !pause.is_zero() => {
                Failure::throttled(reason, pause)
            }
            (Code::ResourceExhausted, None) => Failure::permanent(reason),
            (
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
                | Code::ResourceExhausted,
                _,
            ) => Failure::transient(reason),
            _ => Failure::permanent(reason),
        }
    }

    fn transport_failure(&self, error: &(dyn Error + 'static)) -> Failure {
        if chain(error).any(|cause| cause.to_string().contains("HTTP/2 was not negotiated")) {
            return Failure::mixed_up(MixUp::NotGrpc);
        }
        if chain(error).any(|cause| cause.is::<tonic::TimeoutExpired>() || cause.to_string() == "deadline has elapsed")
        {
            return Failure::network("connecting timed out");
        }
        match self.first_bytes.verdict() {
            // Behind TLS the first bytes say nothing.
            _ if self.tls => {}
            FirstWord::Tls => return Failure::mixed_up(MixUp::NotClear),
            FirstWord::Other => return Failure::mixed_up(MixUp::NotGrpc),
            FirstWord::HungUp => return Failure::mixed_up(MixUp::PerhapsNotGrpc),
            FirstWord::None | FirstWord::Http2 => {}
        }
        Failure::of_connection(error)
    }
}

#[cfg(feature = "tls")]
fn innermost(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(|cause| cause.to_string()).unwrap_or_default()
}

/// A channel that connects when it is used, and again after a failure.
fn connect_lazily(endpoint: &Endpoint, first_bytes: &Arc<FirstBytes>) -> Channel {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(Duration::from_secs(30)));
    connector.set_connect_timeout(endpoint.get_connect_timeout());
    let (before, after) = (Arc::clone(first_bytes), Arc::clone(first_bytes));
    let connector = connector
        .map_request(move |uri: Uri| {
            before.forget();
            uri
        })
        .map_response(move |stream| Watched::new(stream, &after));
    endpoint.connect_with_connector_lazy(connector)
}

/// Messages are encoded before they come here, once for all attempts.
#[derive(Clone, Copy, Debug)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
