//! Baggage within its limits, member by member (ING-14).

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};
use nemo_gym_telemetry::GymPropagator;
use opentelemetry::baggage::{Baggage, BaggageExt};
use opentelemetry::{Context, StringValue};

fn received(lines: &[&[u8]]) -> Context {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append("baggage", HeaderValue::from_bytes(line).unwrap());
    }
    GymPropagator::new().extract_headers(&Context::new(), &headers)
}

fn sent(cx: &Context) -> Option<String> {
    let mut headers = HeaderMap::new();
    GymPropagator::new().inject_headers(cx, &mut headers);
    let lines: Vec<_> = headers.get_all("baggage").iter().map(|value| value.to_str().unwrap().to_owned()).collect();
    assert!(lines.len() <= 1, "{lines:?}");
    lines.into_iter().next()
}

fn members(cx: &Context) -> BTreeMap<String, String> {
    cx.baggage().iter().map(|(key, (value, _))| (key.to_string(), value.to_string())).collect()
}

#[test]
fn members_are_read_and_sent_on_one_by_one() {
    for (line, values, on) in [
        ("k=v,k2=v2", vec![("k", "v"), ("k2", "v2")], "k=v,k2=v2"),
        (" k = v ,\tk2\t=\tv2 ", vec![("k", "v"), ("k2", "v2")], "k=v,k2=v2"),
        // Whole, not cut to `a`.
        ("token=a=b=c,k=v", vec![("k", "v"), ("token", "a=b=c")], "k=v,token=a=b=c"),
        ("k=,l=1", vec![("k", ""), ("l", "1")], "k=,l=1"),
        // Not percent-coding, so it stands for itself.
        ("x=%zz,k=v", vec![("k", "v"), ("x", "%zz")], "k=v,x=%25zz"),
        ("x=%C3%A9%2C%3B%22%5C%20.", vec![("x", "é,;\"\\ .")], "x=%C3%A9%2C%3B%22%5C%20."),
        ("x=%ff.", vec![("x", "\u{fffd}.")], "x=%EF%BF%BD."),
        ("x=100%25", vec![("x", "100%")], "x=100%25"),
        ("x=%61+b", vec![("x", "a+b")], "x=a+b"),
        // Keys are no percent-coding.
        ("%C3%A9=1", vec![("%C3%A9", "1")], "%C3%A9=1"),
        ("k=1,k=2", vec![("k", "2")], "k=2"),
        // Bad ones go alone.
        ("novalue,k=v", vec![("k", "v")], "k=v"),
        ("=v,k=v", vec![("k", "v")], "k=v"),
        ("a b=v,k=v", vec![("k", "v")], "k=v"),
        ("a=b c,k=v", vec![("k", "v")], "k=v"),
        ("a=\"b\",k=v", vec![("k", "v")], "k=v"),
        ("a/b=1,k=v,,", vec![("k", "v")], "k=v"),
        // Properties go on as they came, bad ones alone do not.
        ("k=v;p;q=1;r = %41=", vec![("k", "v")], "k=v;p;q=1;r = %41="),
        ("k=v ; p ;;b d;=1;q=\"x\",l=w", vec![("k", "v"), ("l", "w")], "k=v;p,l=w"),
    ] {
        let cx = received(&[line.as_bytes()]);
        let values = values.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(members(&cx), values, "{line}");
        assert_eq!(sent(&cx).as_deref(), Some(on), "{line}");
    }
}

#[test]
fn nothing_good_is_nothing() {
    for line in [&b""[..], b",", b"novalue", b"=", b";", b"k\xe9=v", b"k=\xe9"] {
        let cx = received(&[line]);
        assert!(cx.baggage().is_empty(), "{line:?}");
        assert_eq!(sent(&cx), None, "{line:?}");
    }
}

#[test]
fn bytes_outside_ascii_spoil_their_member_only() {
    let cx = received(&[b"a=1,b=\xff,c=3", b"d=4;p=\xe9"]);
    assert_eq!(sent(&cx).unwrap(), "a=1,c=3,d=4");
}

#[test]
fn lines_are_one_list() {
    assert_eq!(sent(&received(&[b"a=1,b=2", b"", b"c=3"])).unwrap(), "a=1,b=2,c=3");
}

#[test]
fn at_most_64_members() {
    let list: Vec<_> = (0..200).map(|i| format!("k{i:03}=v")).collect();
    let cx = received(&[list.join(",").as_bytes()]);
    assert_eq!(sent(&cx).unwrap(), list[..64].join(","));
    let bad_first = format!("{},{}", vec!["bad"; 100].join(","), list.join(","));
    assert_eq!(sent(&received(&[bad_first.as_bytes()])).unwrap(), list[..64].join(","));
}

#[test]
fn at_most_8192_bytes() {
    let long = |key: &str, length: usize| format!("{key}={}", "v".repeat(length - key.len() - 1));
    let full = [long("a", 4000), long("b", 4191)].join(",");
    assert_eq!(full.len(), 8192);
    assert_eq!(sent(&received(&[full.as_bytes()])).unwrap(), full);

    let over = [long("a", 4000), long("b", 4192), "c=1".to_owned()];
    assert_eq!(sent(&received(&[over.join(",").as_bytes()])).unwrap(), format!("{},c=1", over[0]), "what fits goes on");
    assert_eq!(sent(&received(&[over[0].as_bytes(), over[1].as_bytes()])).unwrap(), over[0], "over all lines");
    let huge = format!("{},k=v", long("a", 9000));
    assert_eq!(sent(&received(&[huge.as_bytes()])).unwrap(), "k=v");
}

#[test]
fn what_grows_by_encoding_stays_within_the_limits() {
    let mut baggage = Baggage::new();
    for key in ["a", "b", "c"] {
        baggage.insert(key, "é".repeat(600));
    }
    baggage.insert("d", "v");
    let text = sent(&Context::new().with_baggage(baggage)).unwrap();
    assert!(text.len() <= 8192);
    let keys: Vec<_> = text.split(',').map(|member| &member[..2]).collect();
    assert_eq!(keys, ["a=", "b=", "d="], "whole members only");
}

#[test]
fn an_applications_metadata_cannot_break_the_header() {
    let mut baggage = Baggage::new();
    baggage.insert_with_metadata("k", StringValue::from("a\r\nb"), "p=1,evil=2;ok;x\r\ny: z");
    assert_eq!(sent(&Context::new().with_baggage(baggage)).unwrap(), "k=a%0D%0Ab;ok");
}

#[test]
fn baggage_is_read_without_a_trace() {
    let cx = received(&[b"k=v"]);
    assert_eq!(cx.baggage().get("k"), Some(&StringValue::from("v")));
}

#[test]
fn the_contexts_baggage_replaces_a_copied_header() {
    let mut call = HeaderMap::new();
    call.append("baggage", HeaderValue::from_static("old=1"));
    call.append("baggage", HeaderValue::from_static("old=2"));
    GymPropagator::new().inject_headers(&received(&[b"k=v"]), &mut call);
    assert_eq!(call.get_all("baggage").iter().collect::<Vec<_>>(), ["k=v"]);
    // One set by hand stays where the context has none.
    GymPropagator::new().inject_headers(&Context::new(), &mut call);
    assert_eq!(call["baggage"], "k=v");
}
