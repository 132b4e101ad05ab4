//! Compares an answer of ours with a recorded one.

use serde_json::Value;

use super::golden::{Exchange, difference};

/// The headers that were recorded, and the session cookie's name and attributes.
pub fn headers(exchange: &Exchange, got: &reqwest::header::HeaderMap) {
    let header = |name: &str| got.get(name).and_then(|value| value.to_str().ok());
    for name in ["content-type", "vary", "cache-control", "x-accel-buffering"] {
        assert_eq!(header(name), exchange.response.header(name), "{name} of {}", exchange.name);
    }
    let set: Vec<String> = got.get_all("set-cookie").iter().map(|value| value.to_str().unwrap().to_owned()).collect();
    let recorded = exchange.response.headers.get("set-cookie").cloned().unwrap_or_default();
    assert_eq!(without_values(&set), without_values(&recorded), "cookies of {}", exchange.name);
}

/// `name=value; attributes` without the value.
fn without_values(cookies: &[String]) -> Vec<String> {
    let cut = |cookie: &String| {
        let (name, rest) = cookie.split_once('=').unwrap_or((cookie, ""));
        format!("{name}=…;{}", rest.split_once(';').map_or("", |(_, attributes)| attributes))
    };
    cookies.iter().map(cut).collect()
}

/// A JSON body. Of a 422's entries only type and place were recorded; ours tell more.
pub fn body(exchange: &Exchange, mut got: Value) {
    for entry in got.get_mut("detail").and_then(Value::as_array_mut).into_iter().flatten() {
        let entry = entry.as_object_mut().unwrap_or_else(|| panic!("an object in {}", exchange.name));
        assert!(entry.remove("msg").is_some_and(|message| message.is_string()), "{}", exchange.name);
        assert!(entry.remove("input").is_some(), "{}", exchange.name);
    }
    let recorded = exchange.response.json.as_ref().unwrap_or_else(|| panic!("JSON recorded for {}", exchange.name));
    assert_eq!(difference(recorded, &got, ""), None, "{}", exchange.name);
}

/// The frames of a stream of server-sent events, in the form that the record has.
pub fn frames(stream: &str) -> Value {
    assert!(stream.ends_with("\n\n"), "an empty line after each frame");
    assert!(!stream.contains('\r'), "line feeds only");
    let data = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let frame = |frame: &str| {
        let mut out = serde_json::Map::new();
        for line in frame.lines() {
            match line.split_once(": ") {
                Some(("event", name)) => out.insert("event".into(), name.into()),
                Some(("data", text)) => out.insert("data".into(), data(text)),
                _ => panic!("unexpected line {line:?}"),
            };
        }
        Value::Object(out)
    };
    stream.split_terminator("\n\n").map(frame).collect()
}
