//! The table `golden/trace_context.json`, and requests byte for byte.

#![allow(dead_code)]

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A header as it is on the wire.
pub type Header = (String, Vec<u8>);

pub struct Case {
    pub id: String,
    pub headers: Vec<Header>,
    expect: Value,
}

/// All 156 cases.
pub fn cases() -> Vec<Case> {
    let table: Value = serde_json::from_str(include_str!("../golden/trace_context.json")).unwrap();
    let cases: Vec<_> = table["cases"].as_array().unwrap().iter().map(Case::read).collect();
    assert_eq!(cases.len(), 156);
    cases
}

impl Case {
    fn read(case: &Value) -> Self {
        let header = |pair: &Value| {
            // Values in the table are Latin-1 text.
            let value = pair[1].as_str().unwrap().chars().map(|c| u8::try_from(c).unwrap()).collect();
            (pair[0].as_str().unwrap().to_owned(), value)
        };
        Self {
            id: case["id"].as_str().unwrap().to_owned(),
            headers: case["headers"].as_array().unwrap().iter().map(header).collect(),
            expect: case["expect"].clone(),
        }
    }

    pub fn header_map(&self) -> HeaderMap {
        header_map(&self.headers)
    }

    /// Whether a new trace is to start.
    pub fn is_new(&self) -> bool {
        self.expect["outcome"] == "new"
    }

    /// The known flags of the request, where its trace is to be continued.
    pub fn flags(&self) -> Option<usize> {
        let bit = |name: &str| self.expect[name].as_bool().map(usize::from);
        Some(bit("sampled")? | bit("random")? << 1)
    }

    /// Checks the headers of a call that a service makes while it handles the case's request.
    /// `new_flags`: what the service sends for a trace of its own.
    pub fn check(&self, sent: &[Header], new_flags: &str) {
        let id = &self.id;
        let all = |name: &str| -> Vec<&str> {
            let named = sent.iter().filter(|(sent, _)| sent.eq_ignore_ascii_case(name));
            named.map(|(_, value)| std::str::from_utf8(value).unwrap()).collect()
        };
        let traceparents = all("traceparent");
        let [traceparent] = traceparents[..] else { panic!("{id}: {traceparents:?}") };
        let fields: Vec<_> = traceparent.split('-').collect();
        let [version, trace_id, span_id, flags] = fields[..] else { panic!("{id}: {traceparent}") };
        assert_eq!((version, trace_id.len(), span_id.len()), ("00", 32, 16), "{id}: {traceparent}");
        assert_ne!(span_id.trim_matches('0'), "", "{id}");
        let received: Vec<_> = self.headers.iter().map(|(_, value)| String::from_utf8_lossy(value)).collect();
        if self.is_new() {
            assert_eq!(flags, new_flags, "{id}");
            assert_ne!(trace_id.trim_matches('0'), "", "{id}");
            assert!(!received.iter().any(|value| value.contains(trace_id)), "{id}: an id of the request was adopted");
        } else {
            assert_eq!(trace_id, self.expect["trace_id"], "{id}");
            assert_eq!(flags, format!("{:02x}", self.flags().unwrap()), "{id}");
        }
        assert!(!received.iter().any(|value| value.contains(span_id)), "{id}: no parent id of this service's own");
        assert_eq!(all("tracestate"), self.expect["tracestate"].as_str().into_iter().collect::<Vec<_>>(), "{id}");
    }
}

pub fn header_map(headers: &[Header]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap());
    }
    map
}

/// Sends a request over a plain socket; the response's status and body.
pub async fn post_raw(address: std::net::SocketAddr, path: &str, headers: &[Header], body: &[u8]) -> (u16, Vec<u8>) {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    )
    .into_bytes();
    for (name, value) in headers {
        request.extend_from_slice(name.as_bytes());
        request.extend_from_slice(b": ");
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    let head = response.windows(4).position(|w| w == b"\r\n\r\n").expect("a response");
    let status = std::str::from_utf8(&response[9..12]).unwrap().parse().unwrap();
    (status, response.split_off(head + 4))
}
