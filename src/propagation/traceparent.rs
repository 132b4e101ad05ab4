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
#[inline]
pub(super) fn parse(value: &[u8]) -> Option<Traceparent> {
    let (fields, rest) = trim(value).split_first_chunk::<LENGTH>()?;
    if fields[2] != b'-' || fields[35] != b'-' || fields[52] != b'-' {
        return None;
    }
    match hex_pair(fields[0], fields[1])? {
        0xff => return None,
        0 if !rest.is_empty() => return None,
        _ if !matches!(rest.first(), None | Some(b'-')) => return None,
        _ => {}
    }
    let flags = hex_pair(fields[53], fields[54])?;
    let mut ids = [0; 48];
    ids[..32].copy_from_slice(&fields[3..35]);
    ids[32..].copy_from_slice(&fields[36..52]);
    let ids = bytes(ids)?;
    let (trace_id, span_id) = (TraceId::from_bytes(*ids.first_chunk()?), SpanId::from_bytes(*ids.last_chunk()?));
    if trace_id == TraceId::INVALID || span_id == SpanId::INVALID {
        return None;
    }
    Some(Traceparent { trace_id, span_id, flags: TraceFlags::new(flags) & KNOWN_FLAGS })
}

impl Traceparent {
    /// The field value, always as version 00.
    pub(super) fn format(&self) -> [u8; LENGTH] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut text[3..35], &self.trace_id.to_bytes());
        write_hex(&mut text[36..52], &self.span_id.to_bytes());
        text[54] += (self.flags & KNOWN_FLAGS).to_u8();
        text
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.format()).map_err(|_| fmt::Error)?)
    }
}

/// Takes off what RFC 9110 calls optional white space. Servers do so, other carriers may not.
#[inline]
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The bytes that 48 lower-case hex digits stand for. (`from_str_radix` would take signs and upper case.)
///
/// Without a branch and of a fixed length, so that the compiler takes sixteen digits at a time.
#[inline]
fn bytes(mut digits: [u8; 48]) -> Option<[u8; 24]> {
    let mut all = 0;
    for digit in &mut digits {
        let (number, letter) = (digit.wrapping_sub(b'0'), digit.wrapping_sub(b'a'));
        let number = if number < 10 { number } else { u8::MAX };
        let letter = if letter < 6 { letter + 10 } else { u8::MAX };
        *digit = number.min(letter);
        all |= *digit;
    }
    let mut bytes = [0; 24];
    for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks().0) {
        *byte = high << 4 | low;
    }
    (all < 0x10).then_some(bytes)
}

/// Two lower-case hex digits as a number.
fn hex_pair(high: u8, low: u8) -> Option<u8> {
    let digit = |byte| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}

fn write_hex(text: &mut [u8], bytes: &[u8]) {
    for (digits, four) in text.chunks_exact_mut(8).zip(bytes.chunks_exact(4)) {
        let four = four.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        digits.copy_from_slice(&eight_hex(four));
    }
}

/// The other way round: the eight digits of a number below 2^32.
#[inline]
fn eight_hex(number: u64) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let fours = (number | number << 16) & 0x0000_ffff_0000_ffff;
    let pairs = (fours | fours << 8) & 0x00ff_00ff_00ff_00ff;
    let values = (pairs | pairs << 4) & (0x0f * ONES);
    (values + 0x30 * ONES + 0x27 * ((values + 6 * ONES) >> 4 & ONES)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digit_in_every_place_is_written() {
        for place in 0..8 {
            for digit in 0..16_u64 {
                let number = 0x0123_4567 & !(0xf << (4 * place)) | digit << (4 * place);
                assert_eq!(eight_hex(number), format!("{number:08x}").as_bytes());
            }
        }
    }

    #[test]
    fn every_byte_in_every_place_is_a_digit_or_a_fault() {
        const GOOD: &[u8; LENGTH] = b"00-0123456789abcdeffedcba9876543210-89abcdef01234567-01";
        for place in 0..LENGTH {
            for byte in 0..=u8::MAX {
                let mut text = *GOOD;
                text[place] = byte;
                let read = parse(&text);
                if matches!(place, 2 | 35 | 52) {
                    assert_eq!(read.is_some(), byte == b'-', "{byte:#x} at {place}");
                    continue;
                }
                let is_digit = matches!(byte, b'0'..=b'9' | b'a'..=b'f');
                assert_eq!(read.is_some(), is_digit, "{byte:#x} at {place}");
                if let Some(read) = read {
                    assert_eq!(read.trace_id.to_string().as_bytes(), &text[3..35]);
                    assert_eq!(read.span_id.to_string().as_bytes(), &text[36..52]);
                }
            }
        }
        assert_eq!(parse(b"ff-0123456789abcdeffedcba9876543210-89abcdef01234567-01"), None);
    }
}
