//! Log lines.

use opentelemetry::TraceId;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter, SdkLogRecord};

use super::json::Json;
use super::{LineWriter, dictionary, resource_json};

/// Writes each log record as one JSON line.
#[derive(Debug)]
pub(crate) struct ConsoleLogExporter {
    writer: LineWriter,
    resource: String,
}

impl ConsoleLogExporter {
    pub(crate) fn new(writer: LineWriter) -> Self {
        Self { writer, resource: resource_json(&Resource::builder_empty().build()) }
    }
}

impl LogExporter for ConsoleLogExporter {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let mut lines = Json::with_capacity(4096);
        for (record, _scope) in batch.iter() {
            log_line(&mut lines, record, &self.resource);
        }
        self.writer.write_lines(&lines.into_text())
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource_json(resource);
    }
}

fn log_line(json: &mut Json, record: &SdkLogRecord, resource: &str) {
    json.object(|members| {
        match record.body() {
            Some(body) => members.any_value("body", body),
            None => members.member("body").null(),
        }
        match record.severity_number() {
            Some(severity) => members.member("severity_number").integer(severity as i32),
            None => members.member("severity_number").null(),
        }
        match record.severity_text() {
            Some(text) => members.string("severity_text", text),
            None => members.member("severity_text").null(),
        }
        if record.attributes_iter().next().is_none() {
            members.member("attributes").null();
        } else {
            members.member("attributes").object(|members| {
                let attributes = record.attributes_iter().map(|(key, value)| (key.as_str(), value));
                dictionary(members, attributes, Json::any_value);
            });
        }
        members.member("dropped_attributes").integer(0);
        match record.timestamp().or(record.observed_timestamp()) {
            Some(time) => members.member("timestamp").time(time),
            None => members.member("timestamp").null(),
        }
        match record.observed_timestamp() {
            Some(time) => members.member("observed_timestamp").time(time),
            None => members.member("observed_timestamp").null(),
        }
        let context = record.trace_context().filter(|context| context.trace_id != TraceId::INVALID);
        match context {
            Some(context) => {
                members.string("trace_id", &context.trace_id.to_string());
                members.string("span_id", &context.span_id.to_string());
                members.member("trace_flags").integer(context.trace_flags.map_or(0, |flags| flags.to_u8()));
            }
            None => {
                members.member("trace_id").null();
                members.member("span_id").null();
                members.member("trace_flags").integer(0);
            }
        }
        members.member("resource").raw(resource);
        members.string("event_name", record.event_name().unwrap_or_default());
    });
    json.raw("\n");
}
