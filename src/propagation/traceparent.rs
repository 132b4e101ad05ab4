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
    match hex_pair(fields[0], fields[1])? {
        0xff => return None,
        0 if !rest.is_empty() => return None,
        _ if !matches!(rest.first(), None | Some(b'-')) => return None,
        _ => {}
    }
    let flags = hex_pair(fields[53], fields[54])?;
    let trace_id = u128::from(hex_sixteen(&fields[3..19])?) << 64 | u128::from(hex_sixteen(&fields[19..35])?);
    let span_id = hex_sixteen(&fields[36..52])?;
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
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
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

/// Sixteen lower-case hex digits as a number. (`from_str_radix` would take signs and upper case.)
#[inline]
fn hex_sixteen(digits: &[u8]) -> Option<u64> {
    let (high, high_faults) = hex_eight(*digits.first_chunk()?);
    let (low, low_faults) = hex_eight(*digits.last_chunk()?);
    (high_faults | low_faults == 0).then_some(high << 32 | low)
}

/// Eight digits at once, a byte of a register each: a request has 48 of them, and digit by digit they cost four times
/// as much. The second number is zero if all of them are digits.
#[inline]
fn hex_eight(digits: [u8; 8]) -> (u64, u64) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let text = u64::from_be_bytes(digits);
    let letters = text >> 6 & ONES;
    let values = (text & (0x0f * ONES)) + 9 * letters;
    // Written out again they must be the same text: that leaves no other byte.
    let written = values + 0x30 * ONES + 0x27 * ((values + 6 * ONES) >> 4 & ONES);
    let faults = values & (0xf0 * ONES) | written ^ text;
    let pairs = (values | values >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    ((fours | fours >> 16) & 0xffff_ffff, faults)
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
        for place in 0..16 {
            for byte in 0..=u8::MAX {
                let mut digits = *b"0123456789abcdef";
                digits[place] = byte;
                let expected = match byte {
                    b'0'..=b'9' | b'a'..=b'f' => u64::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).ok(),
                    _ => None,
                };
                assert_eq!(hex_sixteen(&digits), expected, "{byte:#x} at {place}");
            }
        }
    }
}
