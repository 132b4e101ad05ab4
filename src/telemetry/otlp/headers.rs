//! The headers that the operator asks for, made safe for both protocols.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// How the exporter names itself (OTLP exporter specification, User Agent).
pub(super) const USER_AGENT: &str = concat!("OTel-OTLP-Exporter-Rust-nemo-gym-telemetry/", env!("CARGO_PKG_VERSION"));

/// Headers that belong to the transport; to set them would break every request.
fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [HeaderName; 8] = [
        header::CONTENT_TYPE,
        header::CONTENT_LENGTH,
        header::CONTENT_ENCODING,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
        header::UPGRADE,
        header::HOST,
        header::TE,
    ];
    RESERVED.contains(name) || name.as_str().starts_with("grpc-")
}

/// The usable headers, and a line for each that is left out. Lines name no value, and no name that is not
/// a header name either: it may be a piece of a value.
pub(super) fn usable(headers: &[(String, String)]) -> (HeaderMap, Vec<String>) {
    let mut map = HeaderMap::new();
    let mut notes = Vec::new();
    for (name, value) in headers {
        let Ok(name) = HeaderName::try_from(name.as_str()) else {
            notes.push("an OTLP header is left out: its name is not valid".to_owned());
            continue;
        };
        // gRPC metadata is ASCII, and some servers refuse the whole request for anything else. The same rule
        // for both protocols keeps them interchangeable.
        let value = Some(value.as_str()).filter(|value| value.is_ascii());
        let Some(mut value) = value.and_then(|value| HeaderValue::from_str(value).ok()) else {
            notes
                .push(format!("the OTLP header {name} is left out: its value has characters that headers cannot have"));
            continue;
        };
        if is_reserved(&name) {
            notes.push(format!("the OTLP header {name} is left out: the exporter sets it"));
            continue;
        }
        value.set_sensitive(true);
        map.insert(name, value);
    }
    (map, notes)
}
