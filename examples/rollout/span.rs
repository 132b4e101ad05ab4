//! A received span.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{self as proto, ResourceSpans};
use serde_json::{Map, Value, json};

/// A span, with what its resource says about its server.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace_id: String,
    pub span_id: String,
    pub parent_span_id: Option<String>,
    pub name: String,
    pub kind: &'static str,
    pub service: String,
    /// The server's name in the Gym configuration; the service's where there is none.
    pub server: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    pub status: &'static str,
    pub attributes: Map<String, Value>,
}

impl Span {
    /// The spans of one server in an export request.
    pub fn of(received: ResourceSpans) -> impl Iterator<Item = Span> {
        let resource = attributes(received.resource.map(|resource| resource.attributes).unwrap_or_default());
        let text = |key: &str| resource.get(key).and_then(Value::as_str).map(str::to_owned);
        let service = text("service.name").unwrap_or_default();
        let server = text("nemo.gym.server.name").unwrap_or_else(|| service.clone());
        let spans = received.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.map(move |span| Span::new(span, service.clone(), server.clone()))
    }

    fn new(span: proto::Span, service: String, server: String) -> Self {
        let status = span.status.as_ref().map(proto::Status::code).unwrap_or_default();
        Self {
            trace_id: hex(&span.trace_id),
            span_id: hex(&span.span_id),
            parent_span_id: Some(hex(&span.parent_span_id)).filter(|id| !id.is_empty()),
            kind: span.kind().as_str_name().trim_start_matches("SPAN_KIND_"),
            name: span.name,
            service,
            server,
            start: span.start_time_unix_nano,
            end: span.end_time_unix_nano,
            status: status.as_str_name().trim_start_matches("STATUS_CODE_"),
            attributes: attributes(span.attributes),
        }
    }

    /// An attribute's text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).and_then(Value::as_str)
    }

    /// The span as `--json` writes it.
    pub fn to_json(&self) -> Value {
        json!({
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_span_id": self.parent_span_id,
            "name": self.name,
            "kind": self.kind,
            "service_name": self.service,
            "start_unix_nano": self.start,
            "end_unix_nano": self.end,
            "status": self.status,
            "attributes": self.attributes,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(pairs: Vec<KeyValue>) -> Map<String, Value> {
    pairs.into_iter().map(|pair| (pair.key, value(pair.value))).collect()
}

fn value(value_: Option<AnyValue>) -> Value {
    use any_value::Value as Any;
    match value_.and_then(|value| value.value) {
        Some(Any::StringValue(text)) => text.into(),
        Some(Any::BoolValue(truth)) => truth.into(),
        Some(Any::IntValue(number)) => number.into(),
        Some(Any::DoubleValue(number)) => number.into(),
        Some(Any::ArrayValue(array)) => array.values.into_iter().map(|element| value(Some(element))).collect(),
        Some(Any::KvlistValue(list)) => Value::Object(attributes(list.values)),
        Some(Any::BytesValue(bytes)) => hex(&bytes).into(),
        _ => Value::Null,
    }
}
