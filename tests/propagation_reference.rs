//! The propagator against a slow reference, which follows the text of Trace Context Level 2 word by
//! word, on headers that are nearly right.

use http::{HeaderMap, HeaderValue};
use nemo_gym_telemetry::GymPropagator;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags, TraceState};
use proptest::prelude::*;

/// What the specification's text makes of a request.
mod reference {
    /// Trace id, parent id, flags.
    pub type Parent = (String, String, u8);

    /// Latin-1, so that every byte is a character.
    fn text(value: &[u8]) -> String {
        value.iter().map(|b| char::from(*b)).collect()
    }

    /// RFC 9110: `OWS = *( SP / HTAB )` around a field value is no part of it.
    fn without_ows(value: &str) -> &str {
        value.trim_matches(|c| c == ' ' || c == '\t')
    }

    /// `HEXDIGLC = DIGIT / "a" / "b" / "c" / "d" / "e" / "f"`
    fn all_hexdiglc(text: &str) -> bool {
        text.chars().all(|c| "0123456789abcdef".contains(c))
    }

    /// `version "-" version-format`, `version-format = trace-id "-" parent-id "-" trace-flags`, and
    /// "Versioning of traceparent" for what may follow.
    pub fn traceparent(lines: &[Vec<u8>]) -> Option<Parent> {
        let [line] = lines else { return None };
        let line = text(line);
        let characters: Vec<char> = without_ows(&line).chars().collect();
        let part = |from: usize, to: usize| characters.get(from..to).map(|part| part.iter().collect::<String>());
        let version = part(0, 2)?;
        let trace_id = part(3, 35)?;
        let parent_id = part(36, 52)?;
        let flags = part(53, 55)?;
        for dash in [2, 35, 52] {
            if characters[dash] != '-' {
                return None;
            }
        }
        if ![&version, &trace_id, &parent_id, &flags].into_iter().all(|part| all_hexdiglc(part)) {
            return None;
        }
        if version == "ff" || trace_id == "0".repeat(32) || parent_id == "0".repeat(16) {
            return None;
        }
        if version == "00" && characters.len() != 55 {
            return None;
        }
        if characters.len() > 55 && characters[55] != '-' {
            return None;
        }
        let flags = u8::from_str_radix(&flags, 16).unwrap();
        // Bits other than sampled and random are unknown: neither read nor set.
        Some((trace_id, parent_id, flags % 4))
    }

    /// `key = ( lcalpha / DIGIT ) 0*255 ( keychar )`
    fn is_key(key: &str) -> bool {
        let first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let keychar = |c: char| first(c) || "_-*/@".contains(c);
        (1..=256).contains(&key.chars().count()) && key.starts_with(first) && key.chars().all(keychar)
    }

    /// `value = 0*255(chr) nblk-chr`, `nblk-chr = %x21-2B / %x2D-3C / %x3E-7E`, `chr = %x20 / nblk-chr`
    fn is_value(value: &str) -> bool {
        let nblk = |c: char| matches!(c, '\x21'..='\x2B' | '\x2D'..='\x3C' | '\x3E'..='\x7E');
        (1..=256).contains(&value.chars().count())
            && value.chars().all(|c| c == ' ' || nblk(c))
            && value.chars().next_back().is_some_and(nblk)
    }

    /// `list = list-member 0*31( OWS "," OWS list-member )`, `list-member = (key "=" value) / OWS`; one
    /// bad member, or too many, and nothing is kept; of repeated keys the first stays.
    pub fn tracestate(lines: &[Vec<u8>]) -> Vec<(String, String)> {
        let joined = lines.iter().map(|line| text(line)).collect::<Vec<_>>().join(",");
        let mut seen = 0;
        let mut kept: Vec<(String, String)> = Vec::new();
        for member in joined.split(',').map(without_ows).filter(|member| !member.is_empty()) {
            let Some((key, value)) = member.split_once('=') else { return Vec::new() };
            seen += 1;
            if !is_key(key) || !is_value(value) || seen > 32 {
                return Vec::new();
            }
            if kept.iter().all(|(known, _)| known != key) {
                kept.push((key.to_owned(), value.to_owned()));
            }
        }
        kept
    }
}

fn joined(list: &[(String, String)]) -> Option<String> {
    let members: Vec<_> = list.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (!members.is_empty()).then(|| members.join(","))
}

/// The propagation headers of `sent`, checked to be one line each at most.
fn sent(headers: &HeaderMap) -> (Option<String>, Option<String>) {
    let one = |name: &str| {
        let lines: Vec<_> = headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect();
        assert!(lines.len() <= 1, "{lines:?}");
        lines.into_iter().next()
    };
    (one("traceparent"), one("tracestate"))
}

/// A traceparent with a few bytes changed, cut or added.
fn traceparent() -> impl Strategy<Value = Vec<u8>> {
    let whole = (
        prop_oneof![4 => Just("00".to_owned()), 2 => "[0-9a-f]{2}", 1 => Just("ff".to_owned())],
        prop_oneof![6 => "[0-9a-f]{32}", 1 => Just("0".repeat(32)), 1 => "[0-9a-fA-F+]{31,33}"],
        prop_oneof![6 => "[0-9a-f]{16}", 1 => Just("0".repeat(16)), 1 => "[0-9a-fA-F+]{15,17}"],
        prop_oneof![6 => "[0-9a-f]{2}", 1 => "[0-9a-gA-F+ ]{0,3}"],
        prop_oneof![6 => Just(String::new()), 1 => "-[!-~]{0,9}", 1 => "[!-~]{1,3}", 1 => "[ \t]{1,3}"],
    );
    let text = whole.prop_map(|(v, t, p, f, rest)| format!("{v}-{t}-{p}-{f}{rest}").into_bytes());
    let byte = prop_oneof![b' '..=b'~', Just(b'\t'), 0x80..=0xffu8];
    (text, proptest::option::weighted(0.3, (any::<proptest::sample::Index>(), byte))).prop_map(|(mut text, change)| {
        if let Some((index, byte)) = change {
            let index = index.index(text.len());
            text[index] = byte;
        }
        text
    })
}

fn tracestate_line() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        8 => "[a-z0-9][a-z0-9_*/-]{0,4}",
        4 => "[a-z0-9]{1,3}@[a-z0-9@/-]{0,20}",
        1 => "[a-zA-Z@_.]{0,3}",
        1 => "[a-z]{255,257}",
    ];
    let value = prop_oneof![10 => "[!-+\\--<>-~ ]{0,5}[!-+\\--<>-~]", 1 => "[ -~\t]{0,4}", 1 => "[a-z]{255,257}"];
    let good = (key, value).prop_map(|(key, value)| format!("{key}={value}"));
    let member = prop_oneof![30 => good, 2 => "[ \t]{0,2}", 1 => "[ -~]{0,4}"];
    let line = proptest::collection::vec(("[ \t]{0,1}", member, "[ \t]{0,1}"), 0..9).prop_map(|members| {
        members.into_iter().map(|(before, member, after)| before + &member + &after).collect::<Vec<_>>().join(",")
    });
    (line, proptest::option::weighted(0.03, 0x80..=0xffu8)).prop_map(|(line, byte)| {
        let mut line = line.into_bytes();
        line.extend(byte);
        line
    })
}

fn request(traceparents: &[Vec<u8>], tracestates: &[Vec<u8>]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, lines) in [("traceparent", traceparents), ("tracestate", tracestates)] {
        for line in lines {
            headers.append(name, HeaderValue::from_bytes(line).unwrap());
        }
    }
    headers
}

proptest! {
    // `PROPTEST_CASES` asks for more than the default 256.
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn reads_and_sends_on_what_the_reference_does(
        traceparents in prop_oneof![8 => proptest::collection::vec(traceparent(), 1), 1 => proptest::collection::vec(traceparent(), 0..3)],
        tracestates in proptest::collection::vec(tracestate_line(), 0..6),
    ) {
        let headers = request(&traceparents, &tracestates);
        let propagator = GymPropagator::new();
        let cx = propagator.extract_headers(&Context::new(), &headers);
        let span = cx.span();
        let got = span.span_context();
        let mut call = headers.clone();
        propagator.inject_headers(&cx, &mut call);

        let Some((trace_id, parent_id, flags)) = reference::traceparent(&traceparents) else {
            prop_assert!(!cx.has_active_span());
            prop_assert_eq!(call, headers, "nothing to send: headers stay");
            return Ok(());
        };
        prop_assert_eq!(got.trace_id().to_string(), trace_id.clone());
        prop_assert_eq!(got.span_id().to_string(), parent_id.clone());
        prop_assert_eq!(got.trace_flags().to_u8(), flags);
        prop_assert!(got.is_remote());

        let list = reference::tracestate(&tracestates);
        for (key, value) in got.trace_state() {
            prop_assert!(list.contains(&(key.to_owned(), value.to_owned())));
        }
        let (traceparent, tracestate) = sent(&call);
        let traceparent = traceparent.unwrap();
        prop_assert_eq!(tracestate, joined(&list));
        prop_assert_eq!(&traceparent[..36], format!("00-{trace_id}-"));
        prop_assert_eq!(&traceparent[52..], format!("-{flags:02x}"));
        prop_assert_eq!(traceparent[36..52] == parent_id, flags & 1 == 1, "a fresh parent id when unsampled");
    }

    /// What a sampler or the application does to the span's `TraceState` happens to the whole list. (The
    /// first shown member set to the value it has already leaves no trace: new values only.)
    #[test]
    fn changes_of_the_state_are_merged_into_the_whole_list(
        keys in proptest::collection::btree_set("[a-z]|[a-c]@[a-c]|[a-c]@[a-c]@[a-c]|[a-c]@[a-c]{14}", 1..33),
        order in any::<u64>(),
        changes in proptest::collection::vec(("[a-z]|[a-c]@[a-c]", proptest::option::of("[1-9]")), 0..6),
    ) {
        let mut list: Vec<(String, String)> = keys.into_iter().map(|key| (key, "0".to_owned())).collect();
        let turn = (order % list.len() as u64) as usize;
        list.rotate_left(turn);
        let line = joined(&list).unwrap().into_bytes();
        let headers = request(&[b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_vec()], &[line]);
        let propagator = GymPropagator::new();
        let cx = propagator.extract_headers(&Context::new(), &headers);
        let mut state: TraceState = cx.span().span_context().trace_state().clone();
        for (key, value) in changes {
            list.retain(|(known, _)| *known != key);
            state = match value {
                Some(value) => {
                    list.insert(0, (key.clone(), value.clone()));
                    state.insert(key, value).unwrap()
                }
                None => state.delete(key).unwrap(),
            };
        }
        list.truncate(32);
        let parent = cx.span().span_context().clone();
        let span = SpanContext::new(parent.trace_id(), parent.span_id(), TraceFlags::SAMPLED, false, state);
        let mut call = headers;
        propagator.inject_headers(&cx.with_remote_span_context(span), &mut call);
        prop_assert_eq!(sent(&call).1, joined(&list));
    }
}
