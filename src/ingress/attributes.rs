//! The attributes of a SERVER span, read from a request's head.

use std::cell::RefCell;
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Uri};
use opentelemetry::{Array, KeyValue, StringValue, Value};

use super::http::{Method, Scheme};
use super::layer::CapturedHeader;
use super::text::Text;
use crate::propagation::TraceHeaders;

/// Longest header text that goes on a span, in bytes.
const MAX_HEADER: usize = 1024;

/// The headers a request's telemetry needs, found in one pass.
#[derive(Default)]
pub(super) struct Head<'a> {
    pub(super) trace: TraceHeaders<'a>,
    host: Option<&'a HeaderValue>,
    user_agent: Option<&'a HeaderValue>,
}

impl<'a> Head<'a> {
    #[inline]
    pub(super) fn scan(headers: &'a HeaderMap) -> Self {
        let mut head = Self::default();
        for (name, value) in headers {
            if *name == HOST {
                head.host.get_or_insert(value);
            } else if *name == USER_AGENT {
                head.user_agent.get_or_insert(value);
            } else {
                head.trace.visit(name, value);
            }
        }
        head
    }

    /// `server.address`, `server.port` from the target's authority or `Host`, and `user_agent.original`.
    #[inline]
    pub(super) fn push(&self, attributes: &mut Vec<KeyValue>, uri: &Uri, scheme: Scheme) {
        match uri.authority() {
            Some(authority) => push_server(attributes, authority.as_str(), scheme),
            None => with_recent(&HOSTS, self.host, Recent::host, |host| {
                if let Some(address) = &host.text {
                    attributes.push(KeyValue::new("server.address", address.value()));
                    attributes
                        .push(KeyValue::new("server.port", i64::from(host.port.unwrap_or(scheme.default_port()))));
                }
            }),
        }
        with_recent(&USER_AGENTS, self.user_agent, Recent::plain, |agent| {
            attributes.extend(agent.text.as_ref().map(|text| KeyValue::new("user_agent.original", text.value())));
        });
    }
}

fn push_server(attributes: &mut Vec<KeyValue>, authority: &str, scheme: Scheme) {
    let Some((address, port)) = split_authority(authority) else { return };
    attributes.push(KeyValue::new("server.address", address.to_owned()));
    attributes.push(KeyValue::new("server.port", i64::from(port.unwrap_or(scheme.default_port()))));
}

/// Host and port of an authority, without userinfo and the brackets of an IPv6 address. `None` when no host is left or
/// the port is none.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':').unwrap_or(rest))
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
    let plausible = !host.is_empty()
        && host.len() <= 255
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'%'));
    plausible.then_some((host, port))
}

/// The last value of a header on this thread, and what became of it: a server's clients send few different ones.
struct Recent {
    raw: Box<[u8]>,
    text: Option<Text>,
    port: Option<u16>,
}

impl Recent {
    fn host(raw: &HeaderValue) -> Self {
        let parsed = raw.to_str().ok().and_then(split_authority);
        Self {
            raw: raw.as_bytes().into(),
            text: parsed.map(|(host, _)| Text::new(host)),
            port: parsed.and_then(|(_, port)| port),
        }
    }

    fn plain(raw: &HeaderValue) -> Self {
        Self { raw: raw.as_bytes().into(), text: header_text(raw).map(Text::new), port: None }
    }
}

fn header_text(raw: &HeaderValue) -> Option<&str> {
    raw.to_str().ok().filter(|text| !text.is_empty() && text.len() <= MAX_HEADER)
}

thread_local! {
    static HOSTS: RefCell<Option<Recent>> = const { RefCell::new(None) };
    static USER_AGENTS: RefCell<Option<Recent>> = const { RefCell::new(None) };
}

#[inline]
fn with_recent(
    cache: &'static std::thread::LocalKey<RefCell<Option<Recent>>>,
    raw: Option<&HeaderValue>,
    parse: fn(&HeaderValue) -> Recent,
    then: impl FnOnce(&Recent),
) {
    let Some(raw) = raw else { return };
    // A thread that is going away has no cache; its spans do without these attributes.
    _ = cache.try_with(|cache| {
        let mut cache = cache.borrow_mut();
        match &mut *cache {
            Some(recent) if *recent.raw == *raw.as_bytes() => then(recent),
            slot => then(slot.insert(parse(raw))),
        }
    });
}

/// What semantic conventions ask of a request beyond what every request has.
#[cold]
pub(super) fn push_unusual(attributes: &mut Vec<KeyValue>, method: Method, raw_method: &http::Method) {
    if method == Method::Other {
        let original: String = raw_method.as_str().chars().take(64).collect();
        attributes.push(KeyValue::new("http.request.method_original", original));
    }
}

/// `client.address`, `client.port` when the server knows its peer.
pub(super) fn push_client(attributes: &mut Vec<KeyValue>, extensions: &http::Extensions) {
    if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() {
        attributes.push(KeyValue::new("client.address", peer.ip().to_string()));
        attributes.push(KeyValue::new("client.port", i64::from(peer.port())));
    }
}

/// Headers on the allow-list; all values of each.
pub(super) fn push_captured(attributes: &mut Vec<KeyValue>, captured: &[CapturedHeader], headers: &HeaderMap) {
    for header in captured {
        let values: Vec<StringValue> =
            headers.get_all(&header.name).iter().filter_map(header_text).map(|text| text.to_owned().into()).collect();
        if !values.is_empty() {
            attributes.push(KeyValue::new(header.key.clone(), Value::Array(Array::String(values))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        for (text, expected) in [
            ("127.0.0.1:8000", Some(("127.0.0.1", Some(8000)))),
            ("example.org", Some(("example.org", None))),
            ("example.org:", Some(("example.org", None))),
            ("[::1]:80", Some(("::1", Some(80)))),
            ("[fe80::1%25eth0]", Some(("fe80::1%25eth0", None))),
            ("user:pw@h:1", Some(("h", Some(1)))),
            ("", None),
            (":80", None),
            ("h:99999", None),
            ("h:x", None),
            ("a b", None),
            ("[::1", None),
            ("h/..", None),
        ] {
            assert_eq!(split_authority(text), expected, "{text}");
        }
    }
}
