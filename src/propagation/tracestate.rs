//! The `tracestate` list: read strictly, split into what [`TraceState`] can hold and what it cannot,
//! and put together again on the way out.

use bytes::Bytes;
use http::HeaderValue;
use opentelemetry::trace::TraceState;

/// The most list-members a tracestate may have.
const MAX_MEMBERS: usize = 32;

/// The longest key and the longest value, in bytes.
const MAX_LENGTH: usize = 256;

type Member<'a> = (&'a str, &'a str);

/// Valid list-members with distinct keys, in order, borrowed from where they were read.
pub(super) struct Members<'a> {
    list: [Member<'a>; MAX_MEMBERS],
    len: usize,
}

impl<'a> Members<'a> {
    fn new() -> Self {
        Self { list: [("", ""); MAX_MEMBERS], len: 0 }
    }

    /// Reads the lines of the field as one list. `None` where the list is not valid and has to be
    /// dropped whole: a bad member, or more than 32, repeats included. Of repeated keys the
    /// left-most, so most recent, stays. A line is `None` where it holds bytes outside ASCII.
    ///
    /// Rules: Trace Context Level 2, "tracestate Header Field Values".
    pub(super) fn parse(lines: impl Iterator<Item = Option<&'a str>>) -> Option<Self> {
        let mut members = Self::new();
        let mut count = 0;
        for line in lines {
            for text in line?.split(',') {
                let text = text.trim_matches([' ', '\t']);
                if text.is_empty() {
                    continue;
                }
                let (key, value) = text.split_once('=')?;
                count += 1;
                if count > MAX_MEMBERS || !is_valid(key, value) {
                    return None;
                }
                members.push(key, value);
            }
        }
        Some(members)
    }

    /// Adds a member unless its key is there already or the list is full.
    fn push(&mut self, key: &'a str, value: &'a str) {
        if self.len < MAX_MEMBERS && self.iter().all(|(known, _)| known != key) {
            self.list[self.len] = (key, value);
            self.len += 1;
        }
    }

    /// What of a [`TraceState`] may be sent: it is laxer than the specification about values.
    fn of(state: &'a TraceState) -> Self {
        let mut members = Self::new();
        state.into_iter().filter(|(key, value)| is_valid(key, value)).for_each(|(key, value)| members.push(key, value));
        members
    }

    /// `current`, the state of a span, with what of the `received` list the state could not show.
    ///
    /// States change by members added in front and by deletion. So the longest tail of `current` that
    /// runs in the received order is what is left of the received list, and what is before it is new.
    fn merged(current: &Self, received: &Self, held: Held) -> Self {
        let mut left = received.iter().enumerate().rev().filter(|(index, _)| held.has(*index));
        let mut kept = Held(0);
        let mut added = current.len;
        while added > 0 {
            let Some((index, _)) = left.find(|(_, member)| *member == current.list[added - 1]) else { break };
            kept.0 |= 1 << index;
            added -= 1;
        }
        let mut merged = Self::new();
        current.iter().take(added).for_each(|(key, value)| merged.push(key, value));
        for (index, (key, value)) in received.iter().enumerate() {
            if !held.has(index) || kept.has(index) {
                merged.push(key, value);
            }
        }
        merged
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = Member<'a>> + ExactSizeIterator + '_ {
        self.list[..self.len].iter().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The members that the SDK's type can hold, and a mask that says which they are.
    pub(super) fn trace_state(&self) -> (TraceState, Held) {
        let mut held = Held(0);
        for (index, (key, _)) in self.iter().enumerate() {
            held.0 |= u32::from(trace_state_takes(key)) << index;
        }
        let subset = self.iter().enumerate().filter(|(index, _)| held.has(*index)).map(|(_, member)| member);
        match TraceState::from_key_value(subset) {
            Ok(state) => (state, held),
            Err(_) => (TraceState::NONE, Held(0)),
        }
    }

    /// Whether the mask leaves none of the members out.
    pub(super) fn all_in(&self, held: Held) -> bool {
        held.0.count_ones() as usize == self.len
    }

    fn text_len(&self) -> usize {
        self.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>().saturating_sub(1)
    }

    /// The list as one field value; `None` when it is empty. `received`, the only line the list was
    /// read from, is shared instead of copied when it already is in this form.
    pub(super) fn header_value(&self, received: Option<&HeaderValue>) -> Option<HeaderValue> {
        if self.is_empty() {
            return None;
        }
        // Equal length means that nothing was left out: no blank, empty member or repeat.
        let length = self.text_len();
        if let Some(received) = received.filter(|received| received.len() == length) {
            return Some(received.clone());
        }
        let mut text = String::with_capacity(length);
        for (key, value) in self.iter() {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(key);
            text.push('=');
            text.push_str(value);
        }
        HeaderValue::from_maybe_shared(Bytes::from(text)).ok()
    }
}

/// Which members of a received list went into the span context's [`TraceState`], one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held(u32);

impl Held {
    fn has(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }
}

/// The field value to send for a span with this state; `None`: send no such field.
///
/// `received` is the whole list as it came in, where the state cannot show all of it. It goes on
/// unchanged while the state is what was taken from it. Where a sampler or the application changed
/// the state, what was put in front of it comes first, the rest keeps its place, and what was
/// deleted is gone.
pub(super) fn outgoing(state: &TraceState, received: Option<(&HeaderValue, Held)>) -> Option<HeaderValue> {
    let received = received.and_then(|(value, held)| Some((value, value.to_str().ok()?, held)));
    match received {
        None if state.into_iter().next().is_none() => None,
        None => Members::of(state).header_value(None),
        Some((value, text, held)) if is_shown(state, text, held) => Some(value.clone()),
        Some((_, text, held)) => {
            Members::merged(&Members::of(state), &Members::parse([Some(text)].into_iter())?, held).header_value(None)
        }
    }
}

/// Whether the state is still what was taken from this list.
fn is_shown(state: &TraceState, list: &str, held: Held) -> bool {
    let shown = list.split(',').enumerate().filter(|(index, _)| held.has(*index));
    shown.map(|(_, text)| text.split_once('=').unwrap_or((text, ""))).eq(state)
}

/// `key` and `value` of the specification's grammar.
fn is_valid(key: &str, value: &str) -> bool {
    let in_key = |b: &u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let in_value = |b: &u8| matches!(b, b' '..=b'~') && !matches!(b, b',' | b'=');
    matches!(key.as_bytes().first(), Some(b'a'..=b'z' | b'0'..=b'9'))
        && key.len() <= MAX_LENGTH
        && key.as_bytes().iter().all(in_key)
        && !value.is_empty()
        && value.len() <= MAX_LENGTH
        && !value.ends_with(' ')
        && value.as_bytes().iter().all(in_value)
}

/// Whether [`TraceState`] takes this valid key. It still has Level 1's form of keys with an `@`: one
/// only, at most 13 characters after it, of which the first is a letter or a digit.
fn trace_state_takes(key: &str) -> bool {
    match key.split_once('@') {
        None => true,
        Some((_, system)) => {
            system.len() <= 13
                && !system.contains('@')
                && system.bytes().next().is_none_or(|first| first.is_ascii_lowercase() || first.is_ascii_digit())
        }
    }
}
