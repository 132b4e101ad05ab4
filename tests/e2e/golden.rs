//! The exchanges recorded from a fleet of Python servers, `tests/golden/gym_http.json`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

/// A recorded exchange. Bodies are resolved: a reference to another exchange's body is replaced by it.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub name: String,
    pub caller: String,
    pub server: String,
    pub flow: Option<String>,
    pub request: Message,
    pub status: u16,
    pub response: Message,
}

/// One half of an exchange.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, Vec<String>>,
    pub json: Option<Value>,
    pub sse: Option<Value>,
    /// The body was only said to be as in another flow, where it may differ in what the flow is about.
    pub alike: bool,
}

impl Message {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|values| values.first()).map(String::as_str)
    }
}

static EXCHANGES: LazyLock<Vec<Exchange>> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gym_http.json");
    let recorded: Vec<Value> = serde_json::from_slice(&std::fs::read(path).expect(path)).expect("JSON");
    recorded.iter().map(|exchange| read(exchange, &recorded)).collect()
});

/// All exchanges.
pub fn exchanges() -> &'static [Exchange] {
    &EXCHANGES
}

/// The exchanges of a flow, in order.
pub fn flow(name: &str) -> Vec<&'static Exchange> {
    let flow: Vec<_> = EXCHANGES.iter().filter(|exchange| exchange.flow.as_deref() == Some(name)).collect();
    assert!(!flow.is_empty(), "flow {name}");
    flow
}

/// An exchange by its name.
pub fn exchange(name: &str) -> &'static Exchange {
    EXCHANGES.iter().find(|exchange| exchange.name == name).unwrap_or_else(|| panic!("exchange {name}"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn read(exchange: &Value, all: &[Value]) -> Exchange {
    Exchange {
        name: text(&exchange["name"]),
        caller: text(&exchange["caller"]),
        server: text(&exchange["server"]),
        flow: exchange["flow"].as_str().map(str::to_owned),
        request: message(exchange, "request", all),
        status: exchange["response"]["status"].as_u64().unwrap_or_default() as u16,
        response: message(exchange, "response", all),
    }
}

fn message(exchange: &Value, half: &str, all: &[Value]) -> Message {
    let message = &exchange[half];
    let values = |value: &Value| match value {
        Value::Array(values) => values.iter().map(text).collect(),
        value => vec![text(value)],
    };
    let headers = message["headers"].as_object().into_iter().flatten();
    Message {
        method: text(&message["method"]),
        path: text(&message["path"]),
        headers: headers.map(|(name, value)| (name.clone(), values(value))).collect(),
        json: body(exchange, half, "json", all),
        sse: body(exchange, half, "sse", all),
        alike: message.get("json_as_in_flow").is_some(),
    }
}

/// Follows `json_same_as` ("NAME.response") and `json_as_in_flow` (the same call in that flow).
fn body(exchange: &Value, half: &str, kind: &str, all: &[Value]) -> Option<Value> {
    let message = &exchange[half];
    if let Some(body) = message.get(kind) {
        return Some(body.clone());
    }
    if let Some(reference) = message[format!("{kind}_same_as")].as_str() {
        let (name, half) = reference.rsplit_once('.').expect("NAME.half");
        let other = all.iter().find(|exchange| exchange["name"] == name).expect(name);
        return body(other, half, kind, all);
    }
    let flow = message[format!("{kind}_as_in_flow")].as_str()?;
    // The same call of that flow: the first one of the model server, the second, …
    let nth = all.iter().take_while(|other| other["name"] != exchange["name"]);
    let nth = nth
        .filter(|other| other["flow"].is_string() && other["flow"] == exchange["flow"] && same_call(other, exchange));
    let mut calls = all.iter().filter(|other| other["flow"] == flow && same_call(other, exchange));
    body(calls.nth(nth.count())?, half, kind, all)
}

fn same_call(one: &Value, other: &Value) -> bool {
    let route = |exchange: &Value| text(&exchange["request"]["path"]).rsplit('/').next().unwrap_or_default().to_owned();
    one["server"] == other["server"] && one["caller"] == other["caller"] && route(one) == route(other)
}

/// How `actual` differs from what was recorded: `"<…>"` stands for any text (`"<as …>"` for anything), a numbered id
/// for any id of that form, and the numbers of a clock for any number.
pub fn difference(recorded: &Value, actual: &Value, path: &str) -> Option<String> {
    match (recorded, actual) {
        (Value::String(recorded), _) if recorded.starts_with("<as ") => None,
        (Value::String(recorded), Value::String(actual)) if recorded.starts_with("resp_000") => {
            let alike = actual.len() == recorded.len() && actual.starts_with("resp_");
            (!alike).then(|| format!("{path}: no such id: {actual}"))
        }
        // A body carried as text, a tool's output for one, may be written with other white space.
        (Value::String(recorded), Value::String(actual)) if recorded.starts_with('{') && recorded != actual => {
            match (serde_json::from_str::<Value>(recorded), serde_json::from_str::<Value>(actual)) {
                (Ok(recorded), Ok(actual)) => difference(&recorded, &actual, path),
                _ => Some(format!("{path}: recorded {recorded}, got {actual}")),
            }
        }
        (Value::String(recorded), _) if recorded.starts_with('<') && recorded.ends_with('>') => {
            (!actual.is_string()).then(|| format!("{path}: not a text: {actual}"))
        }
        (Value::Object(recorded), Value::Object(actual)) => {
            let unexpected = actual.keys().find(|key| !recorded.contains_key(*key));
            if let Some(key) = unexpected {
                return Some(format!("{path}.{key}: not recorded"));
            }
            recorded.iter().find_map(|(key, value)| {
                let path = format!("{path}.{key}");
                match actual.get(key) {
                    None => Some(format!("{path}: missing")),
                    Some(actual)
                        if ["timestamp", "started_at", "completed_at", "duration_ms"].contains(&key.as_str()) =>
                    {
                        (value.is_number() != actual.is_number()).then(|| format!("{path}: {value} or {actual}"))
                    }
                    Some(actual) => difference(value, actual, &path),
                }
            })
        }
        (Value::Array(recorded), Value::Array(actual)) if recorded.len() == actual.len() => {
            let pairs = recorded.iter().zip(actual).enumerate();
            pairs.filter_map(|(index, (r, a))| difference(r, a, &format!("{path}[{index}]"))).next()
        }
        (recorded, actual) => (recorded != actual).then(|| format!("{path}: recorded {recorded}, got {actual}")),
    }
}
