//! The `traceparent` field: 55 bytes in and out.

use std::fmt;

use opentelemetry::trace::{SpanId, TraceFlags, TraceId};

/// Version, trace-id, parent-id and flags of version 00, delimiters included.
pub(super) const LENGTH: usize = 55;

/// The caller made the trace id's right-most seven bytes at random.
pub(super) const RANDOM: TraceFlags = TraceFlags::new(0x02);

/// The flags that Level 2 defines; all others are read and sent as zero.
pub(super) const KNOWN_FLAGS: TraceFlags = TraceFlags::new(0x03);

/// What a valid field says. Both ids are non-zero, the flags are masked to the known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traceparent {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub flags: TraceFlags,
}

/// Reads a field value; `None` means that a new trace starts.
///
/// Rules: Trace Context Level 2, "traceparent Header Field Values" and "Versioning of traceparent".
pub(super) fn parse(value: &[u8]) -> Option<Traceparent> {
    let (fields, rest) = trim(value).split_first_chunk::<LENGTH>()?;
    if fields[2] != b'-' || fields[35] != b'-' || fields[52] != b'-' {
        return None;
    }
    match hex(&fields[0..2])? {
        0xff => return None,
        0 if !rest.is_empty() => return None,
        _ if !matches!(rest.first(), None | Some(b'-')) => return None,
        _ => {}
    }
    let trace_id = u128::from(hex(&fields[3..19])?) << 64 | u128::from(hex(&fields[19..35])?);
    let span_id = hex(&fields[36..52])?;
    let flags = hex(&fields[53..55])? as u8;
    if trace_id == 0 || span_id == 0 {
        return None;
    }
    Some(Traceparent {
        trace_id: TraceId::from(trace_id),
        span_id: SpanId::from(span_id),
        flags: TraceFlags::new(flags) & KNOWN_FLAGS,
    })
}

impl Traceparent {
    /// The field value, always as version 00.
    pub(super) fn format(&self) -> [u8; LENGTH] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut text[3..35], &self.trace_id.to_bytes());
        write_hex(&mut text[36..52], &self.span_id.to_bytes());
        write_hex(&mut text[53..55], &[(self.flags & KNOWN_FLAGS).to_u8()]);
        text
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.format()).map_err(|_| fmt::Error)?)
    }
}

/// Takes off what RFC 9110 calls optional white space. Servers do so, other carriers may not.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

const INVALID: u8 = 0xff;

/// The value of each lower-case hex digit. `from_str_radix` would take signs and upper case.
const DIGITS: [u8; 256] = {
    let mut table = [INVALID; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// Up to sixteen lower-case hex digits as a number.
fn hex(digits: &[u8]) -> Option<u64> {
    let (mut number, mut seen) = (0, 0);
    for &digit in digits {
        let value = DIGITS[digit as usize];
        seen |= value;
        number = number << 4 | u64::from(value & 0x0f);
    }
    (seen != INVALID).then_some(number)
}

fn write_hex(text: &mut [u8], bytes: &[u8]) {
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 0x0f)];
    }
}
