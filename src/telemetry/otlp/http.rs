//! OTLP over HTTP/1.1: protobuf in a POST.
//!
//! The client is made here, explicitly: features that other crates switch on in `reqwest` change neither
//! its kind nor its protocol.

use std::io::Write;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};

use super::endpoint::Target;
use super::failure::{Failure, MixUp, Outlook, chain};
use super::headers::USER_AGENT;
use crate::config::settings::OtlpSettings;

/// Responses hold a partial success at most; a longer one is not read to its end.
const MAX_RESPONSE: usize = 1024 * 1024;

/// The way to one signal's URL.
#[derive(Debug)]
pub(super) struct Http {
    client: Client,
    target: Target,
    headers: HeaderMap,
    gzip: bool,
}

impl Http {
    /// Must be called inside the export runtime's context. An error is a reason without secrets.
    pub(super) fn new(target: Target, mut headers: HeaderMap, settings: &OtlpSettings) -> Result<Self, String> {
        headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        if settings.gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let mut builder = Client::builder()
            // A redirect would take the data and its credentials to a place that nobody named.
            .redirect(Policy::none())
            .http1_only()
            .referer(false)
            .connect_timeout(settings.timeout.min(super::CONNECT_TIMEOUT))
            .tcp_keepalive(Duration::from_secs(30));
        if target.is_loopback() {
            builder = builder.no_proxy();
        }
        #[cfg(feature = "tls")]
        if target.is_tls() {
            builder = super::tls::configure_reqwest(builder, settings)?;
        }
        let client =
            builder.build().map_err(|error| Failure::of_connection(&error.without_url()).reason.into_owned())?;
        Ok(Self { client, target, headers, gzip: settings.gzip })
    }

    pub(super) async fn send(&self, message: Bytes) -> Result<Bytes, Failure> {
        let body = if self.gzip { compress(&message)? } else { message };
        // Also makes an `authorization` header of a user name in the URL, unless there is one.
        let request = self.client.post(self.target.url.clone()).headers(self.headers.clone()).body(body);
        let response = request.send().await.map_err(transport_failure)?;
        let status = response.status();
        if !status.is_success() {
            return Err(refusal(status, response.headers()));
        }
        read(response).await
    }
}

fn transport_failure(error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let hyper = chain(&error).find_map(|cause| cause.downcast_ref::<hyper::Error>());
    match hyper {
        // Frames of HTTP/2, or a TLS alert, where an HTTP/1 status line must be.
        Some(hyper) if hyper.is_parse() => Failure::mixed_up(MixUp::NotHttp1),
        // HTTP/2 servers speak first. hyper has no predicate for it.
        Some(hyper) if hyper.to_string().contains("unexpected message") => {
            Failure { outlook: Outlook::Transient, ..Failure::mixed_up(MixUp::NotHttp1) }
        }
        Some(hyper) if hyper.is_incomplete_message() => Failure::mixed_up(MixUp::PerhapsNotHttp1),
        _ if error.is_timeout() && error.is_connect() => Failure::network("connecting timed out"),
        _ => Failure::of_connection(&error),
    }
}

/// Which refusals are worth another attempt: OTLP specification, OTLP/HTTP response.
fn refusal(status: StatusCode, headers: &HeaderMap) -> Failure {
    let reason = format!("HTTP status code: {}", status.as_u16());
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => match retry_after(headers) {
            Some(pause) => Failure::throttled(reason, pause),
            None => Failure::transient(reason),
        },
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Failure::transient(reason),
        status if status.is_redirection() => Failure::permanent(format!("{reason} (redirects are not followed)")),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Failure::permanent(format!(
            "{reason}; is the path right? A base URL gets /v1/<signal> added, a signal's own URL is used as it is"
        )),
        _ => Failure::permanent(reason),
    }
}

fn compress(message: &[u8]) -> Result<Bytes, Failure> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(message.len() / 4), Compression::fast());
    let compressed = encoder.write_all(message).and_then(|()| encoder.finish());
    compressed.map(Bytes::from).map_err(|_| Failure::permanent("compressing failed"))
}

async fn read(mut response: Response) -> Result<Bytes, Failure> {
    let mut body = Vec::new();
    // The request was taken whatever becomes of the answer's rest.
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > MAX_RESPONSE {
            return Ok(Bytes::new());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

/// `Retry-After` as seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}
