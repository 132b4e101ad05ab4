//! One attempt over either protocol.

use bytes::Bytes;

use super::failure::Failure;
#[cfg(feature = "otlp-grpc")]
use super::grpc::Grpc;
#[cfg(feature = "otlp-http")]
use super::http::Http;

/// The protocol that a signal uses.
#[derive(Debug)]
pub(super) enum Transport {
    #[cfg(feature = "otlp-grpc")]
    Grpc(Box<Grpc>),
    #[cfg(feature = "otlp-http")]
    Http(Box<Http>),
}

impl Transport {
    /// Sends the request once; runs on the export runtime.
    pub(super) async fn send(&self, message: Bytes) -> Result<Bytes, Failure> {
        match self {
            #[cfg(feature = "otlp-grpc")]
            Transport::Grpc(grpc) => grpc.send(message).await,
            #[cfg(feature = "otlp-http")]
            Transport::Http(http) => http.send(message).await,
        }
    }

    /// The connection gave no answer: the next attempt takes a new one. A path through the network that
    /// has silently gone would otherwise hold up exports for as long as TCP hopes for it.
    pub(super) fn abandon_connection(&self) {
        match self {
            #[cfg(feature = "otlp-grpc")]
            Transport::Grpc(grpc) => grpc.abandon_connection(),
            // An HTTP/1 connection is closed with the request that was given up on it.
            #[cfg(feature = "otlp-http")]
            Transport::Http(_) => {}
        }
    }

    pub(super) fn protocol(&self) -> &'static str {
        match self {
            #[cfg(feature = "otlp-grpc")]
            Transport::Grpc(_) => "gRPC",
            #[cfg(feature = "otlp-http")]
            Transport::Http(_) => "http/protobuf",
        }
    }
}
