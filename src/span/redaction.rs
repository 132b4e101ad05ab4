//! Attribute values that are withheld by their key.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use opentelemetry::trace::SpanRef;
use opentelemetry::{Array, KeyValue, StringValue, Value};

const REDACTED: &str = "[REDACTED]";

/// Upstream's keys: the whole key, in any case.
const CONTENT_KEYS: [&str; 8] = ["input_text", "key", "output_text", "password", "prompt", "secret", "text", "token"];

/// Endings of the last part of a key, without `_` and `-`, that name a credential: `hf_token`, `db.password`,
/// `http.request.header.x-api-key`.
const CREDENTIAL_ENDINGS: [&str; 16] = [
    "token",
    "apikey",
    "secret",
    "secretkey",
    "accesskey",
    "accesskeyid",
    "privatekey",
    "password",
    "passwd",
    "passphrase",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "jwt",
    "signature",
];

/// Keys that the application has added, in lower case.
static ADDED: RwLock<Option<HashSet<Box<str>>>> = RwLock::new(None);

/// Withholds the values of these attribute keys too, in any case, from now on and in the whole process.
/// What is withheld anyway (see the [module](crate::span)) cannot be let through.
pub fn redact_attribute_keys<I>(keys: I)
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let added = added.get_or_insert_default();
    added.extend(keys.into_iter().map(|key| key.as_ref().to_lowercase().into_boxed_str()));
}

/// Sets attributes on a span as [`managed_span`](super::managed_span) does: text and lists of text under a key that
/// names content or a credential become `[REDACTED]`, an attribute without a key is left out.
///
/// Nothing happens, and a lazy iterator is not even started, when the span does not record.
///
/// ```
/// use nemo_gym_telemetry::opentelemetry::trace::TraceContextExt as _;
/// use nemo_gym_telemetry::opentelemetry::{Context, KeyValue};
/// use nemo_gym_telemetry::span::safe_set_span_attributes;
///
/// safe_set_span_attributes(&Context::current().span(), [KeyValue::new("prompt", "withheld"), KeyValue::new("n", 1)]);
/// ```
pub fn safe_set_span_attributes(span: &SpanRef<'_>, attributes: impl IntoIterator<Item = KeyValue>) {
    if span.is_recording() {
        for attribute in attributes.into_iter().filter_map(redacted) {
            span.set_attribute(attribute);
        }
    }
}

/// The attribute as it may be shown; `None` without a key.
pub(super) fn redacted(mut attribute: KeyValue) -> Option<KeyValue> {
    let key = attribute.key.as_str();
    if key.is_empty() {
        return None;
    }
    match &mut attribute.value {
        Value::String(text) if is_withheld(key) => *text = REDACTED.into(),
        Value::Array(Array::String(texts)) if is_withheld(key) => texts.fill(StringValue::from(REDACTED)),
        _ => {}
    }
    Some(attribute)
}

fn is_withheld(key: &str) -> bool {
    let key = lowercase(key);
    if CONTENT_KEYS.contains(&key.as_ref()) {
        return true;
    }
    let last = key.rsplit_once('.').map_or(key.as_ref(), |(_, last)| last);
    let last = if last.contains(['_', '-']) { Cow::Owned(last.replace(['_', '-'], "")) } else { Cow::Borrowed(last) };
    CREDENTIAL_ENDINGS.iter().any(|ending| last.ends_with(ending))
        || ADDED
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .is_some_and(|added| added.contains(key.as_ref()))
}

fn lowercase(key: &str) -> Cow<'_, str> {
    if key.chars().any(char::is_uppercase) { Cow::Owned(key.to_lowercase()) } else { Cow::Borrowed(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(key: &'static str, value: impl Into<Value>) -> Option<Value> {
        redacted(KeyValue::new(key, value)).map(|attribute| attribute.value)
    }

    #[test]
    fn credentials_are_withheld_in_every_spelling() {
        for key in [
            "api_key",
            "apiKey",
            "API-KEY",
            "x-api-key",
            "access_token",
            "accessToken",
            "authorization",
            "Authorization",
            "proxy-authorization",
            "cookie",
            "Set-Cookie",
            "client_secret",
            "db.password",
            "credential",
            "credentials",
            "hf_token",
            "WANDB_API_KEY",
            "aws_secret_access_key",
            "http.request.header.x-auth-token",
            "private_key",
        ] {
            assert_eq!(shown(key, "hi"), Some(REDACTED.into()), "{key}");
        }
    }

    #[test]
    fn lists_of_text_lose_every_element_and_numbers_stay() {
        let texts = Value::Array(vec![StringValue::from("a"), "b".into()].into());
        let withheld = Value::Array(vec![StringValue::from(REDACTED), REDACTED.into()].into());
        assert_eq!(shown("prompt", texts.clone()), Some(withheld));
        assert_eq!(shown("a", texts.clone()), Some(texts));
        assert_eq!(shown("token", 5), Some(Value::I64(5)));
        assert_eq!(shown("key", true), Some(Value::Bool(true)));
    }

    #[test]
    fn keys_can_be_added_in_any_case() {
        assert_eq!(shown("badge_no_7", "m"), Some("m".into()));
        redact_attribute_keys(["Badge_No_7"]);
        assert_eq!(shown("badge_no_7", "m"), Some(REDACTED.into()));
        assert_eq!(shown("BADGE_NO_7", "m"), Some(REDACTED.into()));
        assert_eq!(shown("badge_no_77", "m"), Some("m".into()));
    }
}
