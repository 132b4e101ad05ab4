//! Text that goes on many spans: interned, so that a span takes it without copying or counting.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use opentelemetry::{StringValue, Value};

/// Interned text costs a span nothing; past the interner's bound it is counted, and copied into names.
#[derive(Clone)]
pub(crate) enum Text {
    Interned(&'static str),
    Shared(Arc<str>),
}

/// The interner's bound: routes and names come from code and are few, but a header value (Host, User-Agent) is a
/// client's choice, so both the number and the length of what is kept for ever are limited: 256 KiB at most.
const MAX_TEXTS: usize = 1024;
const MAX_LENGTH: usize = 256;

impl Text {
    pub(crate) fn new(text: &str) -> Self {
        static TEXTS: RwLock<Option<HashSet<&'static str>>> = RwLock::new(None);
        if text.len() > MAX_LENGTH {
            return Text::Shared(text.into());
        }
        let known = TEXTS.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(interned) = known.as_ref().and_then(|texts| texts.get(text)) {
            return Text::Interned(interned);
        }
        drop(known);
        let mut texts = TEXTS.write().unwrap_or_else(PoisonError::into_inner);
        let texts = texts.get_or_insert_default();
        if let Some(interned) = texts.get(text) {
            return Text::Interned(interned);
        }
        if texts.len() >= MAX_TEXTS {
            return Text::Shared(text.into());
        }
        let interned: &'static str = Box::leak(text.into());
        texts.insert(interned);
        Text::Interned(interned)
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Text::Interned(text) => text,
            Text::Shared(text) => text,
        }
    }

    #[inline]
    pub(crate) fn value(&self) -> Value {
        Value::String(match self {
            Text::Interned(text) => StringValue::from(*text),
            Text::Shared(text) => StringValue::from(text.clone()),
        })
    }

    #[inline]
    pub(crate) fn name(&self) -> Cow<'static, str> {
        match self {
            Text::Interned(text) => Cow::Borrowed(text),
            Text::Shared(text) => Cow::Owned(text.to_string()),
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_once_and_only_short_ones() {
        let (Text::Interned(a), Text::Interned(b)) = (Text::new("text of a test"), Text::new("text of a test")) else {
            panic!("not interned")
        };
        assert!(std::ptr::eq(a, b));
        assert!(matches!(Text::new(&"x".repeat(MAX_LENGTH + 1)), Text::Shared(_)));
    }
}
