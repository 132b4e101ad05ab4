//! What a strict collector asks of attributes: each key once, and no text above the configured length.

use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SpanData;

/// Makes a finished span fit to be exported: the last value of a repeated key wins (the SDK's
/// `set_attribute` appends), and texts are cut to `max_chars` characters.
pub(super) fn tidy(span: &mut SpanData, max_chars: Option<usize>) {
    let lists = std::iter::once(&mut span.attributes)
        .chain(span.events.events.iter_mut().map(|event| &mut event.attributes))
        .chain(span.links.links.iter_mut().map(|link| &mut link.attributes));
    for attributes in lists {
        keep_last_of_each_key(attributes);
        if let Some(max_chars) = max_chars {
            attributes.iter_mut().for_each(|attribute| cut_value(&mut attribute.value, max_chars));
        }
    }
}

fn keep_last_of_each_key(attributes: &mut Vec<KeyValue>) {
    if !has_repeated_key(attributes) {
        return;
    }
    // Back to front: the first occurrence met is the last value; it takes the place of the first one.
    let mut kept: Vec<KeyValue> = Vec::with_capacity(attributes.len());
    for attribute in attributes.drain(..) {
        match kept.iter_mut().find(|known| known.key == attribute.key) {
            Some(known) => known.value = attribute.value,
            None => kept.push(attribute),
        }
    }
    *attributes = kept;
}

/// Compares lengths and last bytes before whole keys: keys differ there more often than at their
/// common prefixes (`http.request.…`).
fn has_repeated_key(attributes: &[KeyValue]) -> bool {
    // One bit per hash of (length, last byte): without a bit met twice no key can repeat.
    let mut seen = 0u128;
    let mut suspect = false;
    for attribute in attributes {
        let key = attribute.key.as_str().as_bytes();
        let hash = key.len().wrapping_mul(31) + key.last().map_or(0, |byte| *byte as usize) * 7;
        let bit = 1 << (hash % 128);
        suspect |= seen & bit != 0;
        seen |= bit;
    }
    suspect
        && attributes
            .iter()
            .enumerate()
            .any(|(i, attribute)| attributes[..i].iter().any(|earlier| earlier.key == attribute.key))
}

fn cut_value(value: &mut Value, max_chars: usize) {
    match value {
        Value::String(text) => cut(text, max_chars),
        Value::Array(Array::String(texts)) => texts.iter_mut().for_each(|text| cut(text, max_chars)),
        _ => {}
    }
}

fn cut(text: &mut StringValue, max_chars: usize) {
    if text.as_str().len() > max_chars
        && let Some((end, _)) = text.as_str().char_indices().nth(max_chars)
    {
        *text = text.as_str()[..end].to_owned().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tidied(attributes: &[(&'static str, Value)], max_chars: Option<usize>) -> Vec<(String, Value)> {
        let mut list: Vec<_> = attributes.iter().map(|(key, value)| KeyValue::new(*key, value.clone())).collect();
        keep_last_of_each_key(&mut list);
        if let Some(max_chars) = max_chars {
            list.iter_mut().for_each(|attribute| cut_value(&mut attribute.value, max_chars));
        }
        list.into_iter().map(|kv| (kv.key.to_string(), kv.value)).collect()
    }

    #[test]
    fn the_last_value_wins_in_the_place_of_the_first() {
        let attributes = [("a", 1.into()), ("b", 2.into()), ("a", 3.into()), ("c", "x".into()), ("b", 4.into())];
        let expected: Vec<(String, Value)> =
            vec![("a".into(), 3.into()), ("b".into(), 4.into()), ("c".into(), "x".into())];
        assert_eq!(tidied(&attributes, None), expected);
    }

    #[test]
    fn keys_that_only_look_alike_stay() {
        let attributes = [("ab", 1.into()), ("bb", 2.into()), ("cb", 3.into()), ("", 4.into())];
        assert_eq!(tidied(&attributes, None).len(), 4);
    }

    #[test]
    fn length_is_counted_in_characters() {
        let strings = Value::Array(Array::String(vec!["äöüß".into(), "ab".into()]));
        let cut = tidied(&[("s", "héllo".into()), ("l", strings), ("i", 123_456.into())], Some(3));
        let expected = Value::Array(Array::String(vec!["äöü".into(), "ab".into()]));
        assert_eq!(cut, [("s".into(), "hél".into()), ("l".into(), expected), ("i".into(), 123_456.into())]);
        assert_eq!(tidied(&[("s", "héllo".into())], Some(0)), [("s".into(), "".into())]);
        assert_eq!(tidied(&[("s", "héllo".into())], Some(5)), [("s".into(), "héllo".into())]);
    }
}
