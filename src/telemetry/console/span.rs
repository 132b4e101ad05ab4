//! Span lines.

use std::fmt::Write as _;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceState};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

use super::json::{Json, Members};
use super::{LineWriter, attributes_json, resource_json};

/// Writes each span as one JSON line.
#[derive(Debug)]
pub(crate) struct ConsoleSpanExporter {
    writer: LineWriter,
    resource: String,
}

impl ConsoleSpanExporter {
    pub(crate) fn new(writer: LineWriter) -> Self {
        Self { writer, resource: resource_json(&Resource::builder_empty().build()) }
    }
}

impl SpanExporter for ConsoleSpanExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let mut lines = Json::with_capacity(batch.len() * 1024);
        for span in &batch {
            span_line(&mut lines, span, &self.resource);
        }
        self.writer.write_lines(&lines.into_text())
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource_json(resource);
    }
}

fn span_line(json: &mut Json, span: &SpanData, resource: &str) {
    json.object(|members| {
        members.string("name", &span.name);
        context(members.member("context"), &span.span_context);
        members.string(
            "kind",
            match span.span_kind {
                SpanKind::Client => "SpanKind.CLIENT",
                SpanKind::Server => "SpanKind.SERVER",
                SpanKind::Producer => "SpanKind.PRODUCER",
                SpanKind::Consumer => "SpanKind.CONSUMER",
                SpanKind::Internal => "SpanKind.INTERNAL",
            },
        );
        if span.parent_span_id == SpanId::INVALID {
            members.member("parent_id").null();
        } else {
            members.string("parent_id", &format!("0x{}", span.parent_span_id));
        }
        members.member("start_time").time(span.start_time);
        members.member("end_time").time(span.end_time);
        members.member("status").object(|status| status_members(status, &span.status));
        attributes_json(members.member("attributes"), &span.attributes);
        members.member("events").array(span.events.iter(), |json, event| {
            json.object(|members| {
                members.string("name", &event.name);
                members.member("timestamp").time(event.timestamp);
                attributes_json(members.member("attributes"), &event.attributes);
            });
        });
        members.member("links").array(span.links.iter(), |json, link| {
            json.object(|members| {
                context(members.member("context"), &link.span_context);
                attributes_json(members.member("attributes"), &link.attributes);
            });
        });
        members.member("resource").raw(resource);
        members.string("trace_id", &span.span_context.trace_id().to_string());
        members.string("span_id", &span.span_context.span_id().to_string());
    });
    json.raw("\n");
}

fn context(json: &mut Json, context: &SpanContext) {
    json.object(|members| {
        members.string("trace_id", &format!("0x{}", context.trace_id()));
        members.string("span_id", &format!("0x{}", context.span_id()));
        members.string("trace_state", &trace_state_text(context.trace_state()));
    });
}

fn status_members(members: &mut Members<'_>, status: &Status) {
    match status {
        Status::Unset => members.string("status_code", "UNSET"),
        Status::Ok => members.string("status_code", "OK"),
        Status::Error { description } => {
            members.string("status_code", "ERROR");
            if !description.is_empty() {
                members.string("description", description);
            }
        }
    }
}

/// What Python prints for a trace state: the `repr` of a list of `{key=…, value=…}` strings.
fn trace_state_text(state: &TraceState) -> String {
    let header = state.header();
    let mut text = String::from("[");
    for (i, member) in header.split(',').filter(|member| !member.is_empty()).enumerate() {
        let (key, value) = member.split_once('=').unwrap_or((member, ""));
        let quote = if value.contains('\'') && !value.contains('"') { '"' } else { '\'' };
        let _ = write!(text, "{}{quote}{{key={key}, value=", if i > 0 { ", " } else { "" });
        for c in value.chars() {
            if c == quote || c == '\\' {
                text.push('\\');
            }
            text.push(c);
        }
        let _ = write!(text, "}}{quote}");
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_state_is_the_repr_of_a_python_list() {
        let text = |pairs: &[(&str, &str)]| {
            trace_state_text(&TraceState::from_key_value(pairs.iter().copied()).expect("valid trace state"))
        };
        assert_eq!(text(&[]), "[]");
        assert_eq!(text(&[("a", "1"), ("b@c", "x;y")]), "['{key=a, value=1}', '{key=b@c, value=x;y}']");
        assert_eq!(text(&[("a", "it's")]), r#"["{key=a, value=it's}"]"#);
        assert_eq!(text(&[("a", r#"'"\"#)]), r#"['{key=a, value=\'"\\}']"#);
    }
}
