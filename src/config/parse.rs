//! Parsers for the values of variables.
//!
//! They get a stripped, non-blank text and never show it: what they say about a bad one tells what was
//! expected. Entries of lists of names are shown when they look like a name.

use std::path::PathBuf;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use opentelemetry_sdk::metrics::Temporality;
use percent_encoding::percent_decode_str;

use super::settings::{ExporterChoice, OtlpProtocol, PropagatorChoice, RootSampler, SamplerChoice};
use crate::span_group::SpanGroups;

/// What came of a text.
#[derive(Debug, PartialEq)]
pub(crate) enum Parsed<T> {
    /// Understood.
    Good(T),
    /// Understood in part or put within bounds; the text is what to say after the variable's name.
    Adjusted(T, String),
    /// Not understood; the text is what was expected.
    Bad(&'static str),
}

/// A parser for the values of a variable.
pub(crate) type Parser<T> = fn(&str) -> Parsed<T>;

/// Longest time for any interval, delay or timeout: a day.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest interval given in seconds: 10 ms. A shorter one would be a spin.
pub(crate) const MIN_SECONDS: f64 = 0.01;
/// Most elements in a queue or batch.
pub(crate) const MAX_QUEUE: usize = 1 << 20;
/// Most attributes, events or links of a span.
pub(crate) const MAX_COUNT: u32 = 1 << 16;

/// Cuts white space off as upstream does (Python's `str.strip`): Unicode's and the four separators
/// U+001C to U+001F.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c))
}

/// A text of any kind.
pub(crate) fn text(text: &str) -> Parsed<String> {
    Parsed::Good(text.to_owned())
}

/// The path of a file.
pub(crate) fn path(text: &str) -> Parsed<PathBuf> {
    Parsed::Good(PathBuf::from(text))
}

/// Upstream's booleans in the environment.
pub(crate) fn boolean_word(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(["1", "true", "yes", "on"]) {
        Some(true)
    } else if is(["0", "false", "no", "off"]) {
        Some(false)
    } else {
        None
    }
}

/// `1 true yes on` or `0 false no off`, in any case.
pub(crate) fn boolean(text: &str) -> Parsed<bool> {
    boolean_word(text).map_or(Parsed::Bad("one of 1, true, yes, on, 0, false, no, off"), Parsed::Good)
}

/// A switch of Gym's own: upstream takes every word but the true ones for false, without an error.
pub(crate) fn gym_switch(text: &str) -> Parsed<bool> {
    match boolean_word(text) {
        Some(value) => Parsed::Good(value),
        None => Parsed::Adjusted(false, "is none of 1, true, yes, on, 0, false, no, off; taken for false".to_owned()),
    }
}

/// The specification's boolean: only `true`, in any case, is true.
pub(crate) fn spec_boolean(text: &str) -> Parsed<bool> {
    if text.eq_ignore_ascii_case("true") {
        Parsed::Good(true)
    } else if text.eq_ignore_ascii_case("false") {
        Parsed::Good(false)
    } else {
        Parsed::Bad("true or false")
    }
}

/// Decimal digits as Python's `int` reads them: an optional plus, single underscores between digits.
/// Numbers past 64 bits are the greatest one: huge, and capped by the caller.
fn unsigned(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.split('_').any(|run| run.is_empty() || !run.bytes().all(|b| b.is_ascii_digit())) {
        return None;
    }
    let value = digits
        .bytes()
        .filter(u8::is_ascii_digit)
        .fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    Some(value)
}

fn capped(value: u64, least: u64, most: u64, expected: &'static str) -> Parsed<u64> {
    if value < least {
        Parsed::Bad(expected)
    } else if value > most {
        Parsed::Adjusted(most, format!("is too large; {most} is used"))
    } else {
        Parsed::Good(value)
    }
}

impl<T> Parsed<T> {
    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Parsed::Good(value) => Parsed::Good(f(value)),
            Parsed::Adjusted(value, what) => Parsed::Adjusted(f(value), what),
            Parsed::Bad(expected) => Parsed::Bad(expected),
        }
    }
}

/// A positive whole number of milliseconds, a day at most.
pub(crate) fn milliseconds(text: &str) -> Parsed<Duration> {
    const EXPECTED: &str = "a positive whole number of milliseconds";
    match unsigned(text) {
        Some(value) => capped(value, 1, MAX_TIME.as_millis() as u64, EXPECTED).map(Duration::from_millis),
        None => Parsed::Bad(EXPECTED),
    }
}

/// The size of a queue or a batch: at least 1, at most [`MAX_QUEUE`].
pub(crate) fn size(text: &str) -> Parsed<usize> {
    const EXPECTED: &str = "a positive whole number";
    match unsigned(text) {
        Some(value) => capped(value, 1, MAX_QUEUE as u64, EXPECTED).map(|v| v as usize),
        None => Parsed::Bad(EXPECTED),
    }
}

/// A limit on a count: 0 allows none; at most [`MAX_COUNT`].
pub(crate) fn count(text: &str) -> Parsed<u32> {
    const EXPECTED: &str = "a whole number, 0 or more";
    match unsigned(text) {
        Some(value) => capped(value, 0, u64::from(MAX_COUNT), EXPECTED).map(|v| v as u32),
        None => Parsed::Bad(EXPECTED),
    }
}

/// A limit on the length of a text, in characters.
pub(crate) fn length(text: &str) -> Parsed<usize> {
    match unsigned(text) {
        Some(value) => Parsed::Good(usize::try_from(value).unwrap_or(usize::MAX)),
        None => Parsed::Bad("a whole number, 0 or more"),
    }
}

/// A number as Python's `float` reads it: padding, underscores, `inf` and `nan` allowed.
pub(crate) fn python_float(text: &str) -> Option<f64> {
    let text = strip(text);
    if text.contains('_') {
        let between_digits = |(i, _): (usize, &str)| {
            let digit = |b: Option<&u8>| b.is_some_and(u8::is_ascii_digit);
            i > 0 && digit(text.as_bytes().get(i - 1)) && digit(text.as_bytes().get(i + 1))
        };
        return if text.match_indices('_').all(between_digits) { text.replace('_', "").parse().ok() } else { None };
    }
    text.parse().ok()
}

/// A positive number of seconds, infinity included: as upstream keeps it. What is out of bounds is said.
pub(crate) fn seconds(text: &str) -> Parsed<f64> {
    let longest = MAX_TIME.as_secs();
    match python_float(text) {
        Some(value) if value > longest as f64 => Parsed::Adjusted(value, format!("is too long; {longest} s is used")),
        Some(value) if value >= MIN_SECONDS => Parsed::Good(value),
        Some(value) if value > 0.0 => Parsed::Adjusted(value, format!("is too short; {MIN_SECONDS} s is used")),
        _ => Parsed::Bad("a positive number of seconds"),
    }
}

/// A positive number of seconds, put between [`MIN_SECONDS`] and [`MAX_TIME`].
pub(crate) fn interval(text: &str) -> Parsed<Duration> {
    seconds(text).map(interval_of)
}

/// Seconds as a duration between [`MIN_SECONDS`] and [`MAX_TIME`]; NaN is the shortest.
pub(crate) fn interval_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(MIN_SECONDS)).map_or(MAX_TIME, |time| time.min(MAX_TIME))
}

/// A ratio between 0 and 1.
pub(crate) fn ratio(text: &str) -> Parsed<f64> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Parsed::Good(value),
        _ => Parsed::Bad("a number between 0 and 1"),
    }
}

/// Names what does not belong into a list of names: at most eight of them, and only what looks like a
/// name, because anything may have been pasted there.
fn unknown_entries(entries: &[&str]) -> String {
    let looks_like_a_name = |e: &&&str| {
        e.len() <= 40 && e.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/'))
    };
    let shown: Vec<&str> = entries.iter().filter(looks_like_a_name).take(8).copied().collect();
    match (shown.is_empty(), shown.len() < entries.len()) {
        (true, _) => "has unknown entries, which are left out".to_owned(),
        (false, true) => format!("has unknown entries, which are left out: {} and others", shown.join(", ")),
        (false, false) => format!("has unknown entries, which are left out: {}", shown.join(", ")),
    }
}

/// Span groups and presets; unknown ones are dropped.
pub(crate) fn span_groups(text: &str) -> Parsed<SpanGroups> {
    let (groups, unknown) = SpanGroups::resolve(text);
    if unknown.is_empty() {
        Parsed::Good(groups)
    } else {
        Parsed::Adjusted(groups, unknown_entries(&unknown.iter().map(String::as_str).collect::<Vec<_>>()))
    }
}

/// `otlp` or `console`, exactly as upstream spells them.
pub(crate) fn gym_exporter(text: &str) -> Parsed<ExporterChoice> {
    match text {
        "otlp" => Parsed::Good(ExporterChoice::Otlp),
        "console" => Parsed::Good(ExporterChoice::Console),
        _ => Parsed::Bad("otlp or console"),
    }
}

/// The specification's exporter of one signal: `otlp`, `console` or `none`, in any case. Of a list the
/// first known one is taken.
pub(crate) fn signal_exporter(text: &str) -> Parsed<ExporterChoice> {
    let known = |word: &str| match word.to_ascii_lowercase().as_str() {
        "otlp" => Some(ExporterChoice::Otlp),
        "console" => Some(ExporterChoice::Console),
        "none" => Some(ExporterChoice::Off),
        _ => None,
    };
    let entries: Vec<_> = text.split(',').map(strip).filter(|e| !e.is_empty()).map(known).collect();
    match entries.iter().flatten().next() {
        None => Parsed::Bad("otlp, console or none"),
        Some(&first) if entries.iter().all(|e| *e == Some(first)) => Parsed::Good(first),
        Some(&first) => Parsed::Adjusted(first, "names more than one exporter; the first known one is used".to_owned()),
    }
}

/// `tracecontext` and `baggage`, or `none` alone; unknown ones are dropped.
pub(crate) fn propagators(text: &str) -> Parsed<PropagatorChoice> {
    let mut chosen = PropagatorChoice { trace_context: false, baggage: false };
    let mut none = false;
    let mut unknown = Vec::new();
    for entry in text.split(',').map(strip).filter(|e| !e.is_empty()) {
        match entry.to_ascii_lowercase().as_str() {
            "tracecontext" => chosen.trace_context = true,
            "baggage" => chosen.baggage = true,
            "none" => none = true,
            _ => unknown.push(entry),
        }
    }
    let any = chosen.trace_context || chosen.baggage;
    if !any && !none {
        Parsed::Bad("a list of tracecontext and baggage, or none")
    } else if !unknown.is_empty() {
        Parsed::Adjusted(chosen, unknown_entries(&unknown))
    } else if any && none {
        Parsed::Adjusted(chosen, "names none beside other propagators; none is left out".to_owned())
    } else {
        Parsed::Good(chosen)
    }
}

/// A sampler's name, in any case. Ratios are 1 until the argument is read.
pub(crate) fn sampler(text: &str) -> Parsed<SamplerChoice> {
    let lower = text.to_ascii_lowercase();
    let (parent_based, root) = match lower.strip_prefix("parentbased_") {
        Some(root) => (true, root),
        None => (false, lower.as_str()),
    };
    let root = match root {
        "always_on" => RootSampler::AlwaysOn,
        "always_off" => RootSampler::AlwaysOff,
        "traceidratio" => RootSampler::TraceIdRatio(1.0),
        _ => {
            return Parsed::Bad(
                "one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, \
                 parentbased_traceidratio",
            );
        }
    };
    Parsed::Good(SamplerChoice { parent_based, root })
}

/// A temporality preference, in any case.
pub(crate) fn temporality(text: &str) -> Parsed<Temporality> {
    match text.to_ascii_lowercase().as_str() {
        "cumulative" => Parsed::Good(Temporality::Cumulative),
        "delta" => Parsed::Good(Temporality::Delta),
        "lowmemory" => Parsed::Good(Temporality::LowMemory),
        _ => Parsed::Bad("cumulative, delta or lowmemory"),
    }
}

/// An OTLP protocol, in any case; JSON over HTTP is served by protobuf over HTTP, as upstream does.
pub(crate) fn protocol(text: &str) -> Parsed<OtlpProtocol> {
    match text.to_ascii_lowercase().as_str() {
        "grpc" => Parsed::Good(OtlpProtocol::Grpc),
        "http/protobuf" | "http/json" => Parsed::Good(OtlpProtocol::HttpProtobuf),
        _ => Parsed::Bad("grpc, http/protobuf or http/json"),
    }
}

/// Whether to compress.
pub(crate) fn compression(text: &str) -> Parsed<bool> {
    match text.to_ascii_lowercase().as_str() {
        "gzip" => Parsed::Good(true),
        "none" => Parsed::Good(false),
        _ => Parsed::Bad("gzip or none"),
    }
}

/// Decodes percent escapes; `None` when one is malformed or the result is not UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    let escapes_are_whole = text.split('%').skip(1).all(|rest| {
        let mut digits = rest.bytes();
        digits.next().is_some_and(|b| b.is_ascii_hexdigit()) && digits.next().is_some_and(|b| b.is_ascii_hexdigit())
    });
    if !escapes_are_whole {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(|decoded| decoded.into_owned())
}

/// `key=value` pairs separated by commas. Broken entries are dropped one by one; of a repeated key the
/// last value stays.
fn pairs(text: &str, entry: impl Fn(&str, &str) -> Option<(String, String)>) -> Parsed<Vec<(String, String)>> {
    let mut kept: Vec<(String, String)> = Vec::new();
    let mut broken = Vec::new();
    for (position, part) in text.split(',').enumerate().filter(|(_, part)| !strip(part).is_empty()) {
        match part.split_once('=').and_then(|(key, value)| entry(strip(key), strip(value))) {
            Some((key, value)) => match kept.iter_mut().find(|(known, _)| *known == key) {
                Some((_, old)) => *old = value,
                None => kept.push((key, value)),
            },
            None => broken.push((position + 1).to_string()),
        }
    }
    match broken.len() {
        0 => Parsed::Good(kept),
        1 => Parsed::Adjusted(kept, format!("has a malformed entry at position {}, which is left out", broken[0])),
        n => {
            let shown = broken[..n.min(8)].join(", ");
            let more = if n > 8 { format!(" and {} more", n - 8) } else { String::new() };
            Parsed::Adjusted(kept, format!("has malformed entries at positions {shown}{more}, which are left out"))
        }
    }
}

/// Headers of an OTLP exporter. Names are lowercase; a name or value that no HTTP header can hold is
/// malformed, and so are the headers that frame a message: they would break every export.
pub(crate) fn headers(text: &str) -> Parsed<Vec<(String, String)>> {
    const FRAMING: [&str; 6] = ["connection", "content-length", "host", "te", "transfer-encoding", "upgrade"];
    pairs(text, |key, value| {
        let name = HeaderName::from_bytes(key.as_bytes()).ok()?;
        let value = percent_decode(value)?;
        let sendable = HeaderValue::from_str(&value).is_ok() && !value.contains(char::REPLACEMENT_CHARACTER);
        (sendable && !FRAMING.contains(&name.as_str())).then(|| (name.as_str().to_owned(), value))
    })
}

/// Resource attributes: keys and values percent-decoded.
pub(crate) fn attributes(text: &str) -> Parsed<Vec<(String, String)>> {
    pairs(text, |key, value| Some((percent_decode(key).filter(|key| !key.is_empty())?, percent_decode(value)?)))
}
