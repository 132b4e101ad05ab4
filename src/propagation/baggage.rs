//! The `baggage` field: read member by member, written within the limits.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderValue;
use opentelemetry::baggage::{Baggage, BaggageMetadata};
use opentelemetry::{Key, StringValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};

use super::traceparent::trim;

/// W3C Baggage, "Limits": what a platform must propagate, and the most that this one does. The SDK's
/// type holds at most 64 members.
const MAX_BYTES: usize = 8192;

/// What is percent-encoded in values: all but the specification's `baggage-octet`s, and `%`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'/')
    .remove(b':')
    .remove(b'<')
    .remove(b'=')
    .remove(b'>')
    .remove(b'?')
    .remove(b'@')
    .remove(b'[')
    .remove(b']')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'{')
    .remove(b'|')
    .remove(b'}')
    .remove(b'~');

/// Reads the lines of the field as one list. Bad members are left out one by one, as are those past
/// the limits, which the SDK's type keeps; `None` where no member is left. Of repeated keys the last
/// stays.
pub(super) fn parse<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Baggage> {
    let mut baggage = Baggage::new();
    for text in lines.flat_map(|line| line.split(|&b| b == b',')) {
        if let Some((key, value, properties)) = member(trim(text)) {
            baggage.insert_with_metadata(
                Key::from(key.to_owned()),
                StringValue::from(value.into_owned()),
                BaggageMetadata::from(properties),
            );
        }
    }
    (!baggage.is_empty()).then_some(baggage)
}

/// One list-member: key, decoded value, properties as they came.
///
/// White space that was percent-encoded at the ends of a value is taken off, as the OpenTelemetry
/// propagators of Python and Rust do. A value that does not decode to UTF-8 gets replacement
/// characters, as the specification says.
fn member(text: &[u8]) -> Option<(&str, Cow<'_, str>, String)> {
    let mut parts = text.split(|&b| b == b';');
    let pair = parts.next()?;
    let equals = pair.iter().position(|&b| b == b'=')?;
    let key = token(trim(&pair[..equals]))?;
    let value = trim(&pair[equals + 1..]);
    if !value.iter().all(is_octet) {
        return None;
    }
    let value = match percent_decode(value).decode_utf8_lossy() {
        Cow::Borrowed(value) => Cow::Borrowed(value.trim()),
        Cow::Owned(value) => Cow::Owned(value.trim().to_owned()),
    };
    let mut properties = String::new();
    parts.filter_map(property).for_each(|text| push_property(&mut properties, text));
    Some((key, value, properties))
}

/// A property, `key` or `key=value`, in the specification's characters; `None` when it is bad.
fn property(text: &[u8]) -> Option<&str> {
    let text = trim(text);
    let good = match text.iter().position(|&b| b == b'=') {
        None => token(text).is_some(),
        Some(equals) => token(trim(&text[..equals])).is_some() && trim(&text[equals + 1..]).iter().all(is_octet),
    };
    if good { std::str::from_utf8(text).ok() } else { None }
}

fn push_property(properties: &mut String, text: &str) {
    if !properties.is_empty() {
        properties.push(';');
    }
    properties.push_str(text);
}

/// An RFC 9110 token, which a key is.
fn token(text: &[u8]) -> Option<&str> {
    let in_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if !text.is_empty() && text.iter().all(in_token) { std::str::from_utf8(text).ok() } else { None }
}

/// `baggage-octet`: visible ASCII but `"`, `,`, `;` and `\`.
fn is_octet(byte: &u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\')
}

/// The field value for this baggage, its members in the order of their keys; `None`: send no such
/// field. A member that would not fit within the limits is left out whole.
pub(super) fn header_value(baggage: &Baggage) -> Option<HeaderValue> {
    if baggage.is_empty() {
        return None;
    }
    let mut members: Vec<_> = baggage.iter().collect();
    members.sort_unstable_by(|a, b| a.0.cmp(b.0));
    let mut text = String::with_capacity(128);
    for (key, (value, metadata)) in members {
        let before = text.len();
        if before > 0 {
            text.push(',');
        }
        text.push_str(key.as_str());
        text.push('=');
        text.extend(utf8_percent_encode(value.as_str().trim(), ENCODED));
        for property in metadata.as_str().split(';').filter_map(|text| property(text.as_bytes())) {
            text.push(';');
            text.push_str(property);
        }
        if text.len() > MAX_BYTES {
            text.truncate(before);
        }
    }
    if text.is_empty() { None } else { HeaderValue::from_maybe_shared(Bytes::from(text)).ok() }
}
