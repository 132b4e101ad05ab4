//! JSON text as Python's `json.dumps` writes it: `", "` and `": "` between items, everything outside
//! printable ASCII escaped, floats as `repr` prints them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::logs::AnyValue;
use opentelemetry::{Array, Value};

/// One line under construction.
#[derive(Default)]
pub(super) struct Json {
    text: String,
}

impl Json {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes) }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Text that is JSON already.
    pub(super) fn raw(&mut self, json: &str) {
        self.text.push_str(json);
    }

    pub(super) fn object(&mut self, members: impl FnOnce(&mut Members<'_>)) {
        self.text.push('{');
        members(&mut Members { json: self, first: true });
        self.text.push('}');
    }

    pub(super) fn array<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Json, T)) {
        self.text.push('[');
        for (i, value) in items.into_iter().enumerate() {
            if i > 0 {
                self.text.push_str(", ");
            }
            item(self, value);
        }
        self.text.push(']');
    }

    pub(super) fn string(&mut self, value: &str) {
        self.text.push('"');
        for c in value.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                ' '..='~' => self.text.push(c),
                other => {
                    let mut units = [0; 2];
                    for unit in other.encode_utf16(&mut units) {
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
            }
        }
        self.text.push('"');
    }

    pub(super) fn null(&mut self) {
        self.text.push_str("null");
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.text.push_str(if value { "true" } else { "false" });
    }

    pub(super) fn integer(&mut self, value: impl Into<i128>) {
        let _ = write!(self.text, "{}", value.into());
    }

    /// A float as Python prints it. The values JSON has no word for become the strings that OTLP/JSON
    /// uses (`"NaN"`, `"Infinity"`, `"-Infinity"`), so that a line is always valid JSON.
    pub(super) fn float(&mut self, value: f64) {
        if value.is_nan() {
            return self.text.push_str("\"NaN\"");
        }
        if value.is_infinite() {
            return self.text.push_str(if value > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" });
        }
        // Rust's shortest digits are Python's; only the layout differs.
        let scientific = format!("{value:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if (-4..16).contains(&exponent) {
            let _ = write!(self.text, "{value}");
            if value.fract() == 0.0 {
                self.text.push_str(".0");
            }
        } else {
            let sign = if exponent < 0 { '-' } else { '+' };
            let _ = write!(self.text, "{digits}e{sign}{:02}", exponent.unsigned_abs());
        }
    }

    /// UTC with microseconds, cut off and not rounded: `2026-11-30T11:24:47.711965Z`.
    pub(super) fn time(&mut self, time: SystemTime) {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i128::try_from(after.as_micros()).unwrap_or(i128::MAX),
            Err(before) => -i128::try_from(before.duration().as_micros()).unwrap_or(i128::MAX),
        };
        let (seconds, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let _ = write!(self.text, "\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z\"");
    }

    pub(super) fn unix_nanos(&mut self, time: SystemTime) {
        self.integer(
            time.duration_since(UNIX_EPOCH).map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)),
        );
    }

    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::Bool(v) => self.boolean(*v),
            Value::I64(v) => self.integer(*v),
            Value::F64(v) => self.float(*v),
            Value::String(v) => self.string(v.as_str()),
            Value::Array(Array::Bool(v)) => self.array(v, |json, v| json.boolean(*v)),
            Value::Array(Array::I64(v)) => self.array(v, |json, v| json.integer(*v)),
            Value::Array(Array::F64(v)) => self.array(v, |json, v| json.float(*v)),
            Value::Array(Array::String(v)) => self.array(v, |json, v| json.string(v.as_str())),
            other => self.string(&other.as_str()),
        }
    }

    pub(super) fn any_value(&mut self, value: &AnyValue) {
        match value {
            AnyValue::Boolean(v) => self.boolean(*v),
            AnyValue::Int(v) => self.integer(*v),
            AnyValue::Double(v) => self.float(*v),
            AnyValue::String(v) => self.string(v.as_str()),
            AnyValue::Bytes(v) => self.base64(v),
            AnyValue::ListAny(v) => self.array(v.iter(), |json, v| json.any_value(v)),
            AnyValue::Map(v) => {
                let mut entries: Vec<_> = v.iter().collect();
                entries.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
                self.object(|members| {
                    for (key, value) in entries {
                        members.any_value(key.as_str(), value);
                    }
                });
            }
            other => self.string(&format!("{other:?}")),
        }
    }

    fn base64(&mut self, bytes: &[u8]) {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        self.text.push('"');
        for chunk in bytes.chunks(3) {
            let group =
                chunk.iter().enumerate().fold(0u32, |group, (i, byte)| group | u32::from(*byte) << (16 - 8 * i));
            for i in 0..4 {
                let digit = DIGITS[(group >> (18 - 6 * i) & 63) as usize];
                self.text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
            }
        }
        self.text.push('"');
    }
}

/// The members of an object under construction.
pub(super) struct Members<'a> {
    json: &'a mut Json,
    first: bool,
}

impl Members<'_> {
    /// Begins a member; the caller writes exactly one value.
    pub(super) fn member(&mut self, key: &str) -> &mut Json {
        if !self.first {
            self.json.text.push_str(", ");
        }
        self.first = false;
        self.json.string(key);
        self.json.text.push_str(": ");
        self.json
    }

    pub(super) fn string(&mut self, key: &str, value: &str) {
        self.member(key).string(value);
    }

    pub(super) fn any_value(&mut self, key: &str, value: &AnyValue) {
        self.member(key).any_value(value);
    }
}

/// Year, month and day of a day number (0 = 1970-01-01) in the proleptic Gregorian calendar, by
/// counting from a 1 March in 400-year cycles of 146 097 days.
fn civil_date(days: i128) -> (i128, i128, i128) {
    let shifted = days + 719_468;
    let (cycle, day_of_cycle) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (cycle * 400 + year_of_cycle + i128::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn json(write: impl FnOnce(&mut Json)) -> String {
        let mut json = Json::default();
        write(&mut json);
        json.into_text()
    }

    #[test]
    fn floats_are_laid_out_as_python_does() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (5.5, "5.5"),
            (0.1 + 0.2, "0.30000000000000004"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123456.789, "123456.789"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (9007199254740993.0, "9007199254740992.0"),
            (1.2345678901234568e17, "1.2345678901234568e+17"),
            (1e22, "1e+22"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (-2.5e-10, "-2.5e-10"),
            (f64::NAN, "\"NaN\""),
            (f64::INFINITY, "\"Infinity\""),
            (f64::NEG_INFINITY, "\"-Infinity\""),
        ] {
            assert_eq!(json(|j| j.float(value)), text);
        }
    }

    #[test]
    fn strings_are_ascii() {
        assert_eq!(
            json(|j| j.string("a\"b\\c\n\r\t\u{8}\u{c}\u{0}\u{1f}\u{7f}é\u{2028}😀/'")),
            r#""a\"b\\c\n\r\t\b\f\u0000\u001f\u007f\u00e9\u2028\ud83d\ude00/'""#
        );
    }

    #[test]
    fn times_are_utc_with_microseconds() {
        let at = |secs, nanos| json(|j| j.time(UNIX_EPOCH + Duration::new(secs, nanos)));
        assert_eq!(at(0, 0), r#""1970-01-01T00:00:00.000000Z""#);
        assert_eq!(at(951_782_400, 0), r#""2000-02-29T00:00:00.000000Z""#);
        assert_eq!(at(1_796_037_887, 711_965_999), r#""2026-11-30T11:24:47.711965Z""#);
        assert_eq!(at(4_107_542_399, 1_000), r#""2100-02-28T23:59:59.000001Z""#);
        assert_eq!(json(|j| j.time(UNIX_EPOCH - Duration::from_micros(1))), r#""1969-12-31T23:59:59.999999Z""#);
    }

    #[test]
    fn bytes_are_base64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(json(|j| j.base64(bytes.as_bytes())), format!("\"{text}\""));
        }
    }
}
