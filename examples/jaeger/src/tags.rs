//! What Jaeger's UI reads from tags, and `otlp-embedded` does not take over from OTLP by itself.

use otlp_embedded::proto::collector::trace::v1::ExportTraceServiceRequest;
use otlp_embedded::proto::common::v1::{AnyValue, KeyValue, any_value::Value};
use otlp_embedded::proto::trace::v1::Span;
use otlp_embedded::proto::trace::v1::span::SpanKind;
use otlp_embedded::proto::trace::v1::status::StatusCode;

/// Adds the tags `span.kind`, `error`, `otel.status_description` and `otel.link`, and makes the request safe to show.
pub fn prepare(request: &mut ExportTraceServiceRequest) {
    for batch in &mut request.resource_spans {
        name_process(&mut batch.resource.get_or_insert_default().attributes);
        for scope in &mut batch.scope_spans {
            // One without ids is invalid by the protocol, and would make the list of traces fail.
            scope.spans.retain(|span| !span.trace_id.is_empty() && !span.span_id.is_empty());
            scope.spans.iter_mut().for_each(tag);
        }
    }
}

/// Processes are told apart by `service.instance.id` alone, but Gym's Python servers give all servers of a run the same,
/// and others give none: with the service's name in it, no server is shown as another.
fn name_process(attributes: &mut Vec<KeyValue>) {
    let text = |key: &str| {
        attributes.iter().find(|pair| pair.key == key).and_then(|pair| match pair.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => Some(text.clone()),
            _ => None,
        })
    };
    let service = text("service.name").unwrap_or_else(|| "unknown".to_owned());
    let instance = text("service.instance.id").unwrap_or_default();
    attributes.retain(|pair| pair.key != "service.instance.id");
    attributes.push(attribute("service.instance.id", Value::StringValue(format!("{service}/{instance}"))));
}

fn tag(span: &mut Span) {
    // The UI's durations are unsigned, and its trees have roots.
    span.end_time_unix_nano = span.end_time_unix_nano.max(span.start_time_unix_nano);
    if span.parent_span_id == span.span_id || span.parent_span_id.iter().all(|byte| *byte == 0) {
        span.parent_span_id.clear();
    }
    tag_links(span);
    let kind = match span.kind() {
        SpanKind::Unspecified => None,
        SpanKind::Internal => Some("internal"),
        SpanKind::Server => Some("server"),
        SpanKind::Client => Some("client"),
        SpanKind::Producer => Some("producer"),
        SpanKind::Consumer => Some("consumer"),
    };
    if let Some(kind) = kind {
        span.attributes.push(attribute("span.kind", Value::StringValue(kind.to_owned())));
    }
    let Some(status) = span.status.as_ref().filter(|status| status.code() == StatusCode::Error) else { return };
    if !status.message.is_empty() {
        let message = Value::StringValue(status.message.clone());
        span.attributes.push(attribute("otel.status_description", message));
    }
    span.attributes.push(attribute("error", Value::BoolValue(true)));
}

/// The UI puts a span below the first of its references that is in the trace, and a link is a reference like the parent,
/// in front of it. A span with references of which none is in the trace counts as one whose parent is missing, and marks
/// the trace "Incomplete": so would every rollout, whose root links to the job's trace. What would be misread is a tag
/// instead, the id of the trace that the link leads to.
fn tag_links(span: &mut Span) {
    let (has_parent, trace_id) = (!span.parent_span_id.is_empty(), span.trace_id.clone());
    let (links, misread): (Vec<_>, Vec<_>) =
        std::mem::take(&mut span.links).into_iter().partition(|link| has_parent && link.trace_id != trace_id);
    span.links = links;
    span.attributes.extend(misread.iter().map(|link| {
        let linked = link.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
        attribute("otel.link", Value::StringValue(linked))
    }));
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
