//! `exporter=console`: JSON lines on stdout, in the format of the Python servers' console exporter.
//!
//! One line per span, one per metric collection, one per log record. Beyond upstream's members every
//! span line carries plain `trace_id` and `span_id` at its top level, so that
//! `jq -r '[.trace_id, .resource.attributes."service.name", .kind, .name] | @tsv'` works; log lines
//! have the same plain ids where upstream's have a `0x` before them, and `null` outside a span.

mod json;
mod log;
mod metric;
mod span;
mod writer;

pub(crate) use log::ConsoleLogExporter;
pub(crate) use metric::ConsoleMetricExporter;
pub(crate) use span::ConsoleSpanExporter;
pub(crate) use writer::LineWriter;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

use json::{Json, Members};

/// Upstream's order of resource attributes. The SDK's `Resource` keeps none, and lines of one process
/// should look alike; keys that are not here follow in alphabetical order.
const RESOURCE_ORDER: &[&str] = &[
    "telemetry.sdk.language",
    "telemetry.sdk.name",
    "telemetry.sdk.version",
    "service.instance.id",
    "service.name",
    "service.version",
    "nemo.run.id",
    "nemo.user.id",
    "wandb.entity",
    "wandb.project",
    "deployment.environment",
    "deployment.environment.name",
    "nemo.gym.version",
    "nemo.gym.server.name",
    "nemo.gym.server.type",
    "nemo.gym.service_group",
    "nv.dl.rank",
    "nv.dl.world_size",
    "host.name",
    "process.pid",
];

/// The resource as a JSON value.
fn resource_json(resource: &Resource) -> String {
    let rank = |key: &str| RESOURCE_ORDER.iter().position(|known| *known == key).unwrap_or(usize::MAX);
    let mut attributes: Vec<_> = resource.iter().map(|(key, value)| (key.as_str(), value)).collect();
    attributes.sort_by_key(|(key, _)| (rank(key), *key));
    let mut json = Json::with_capacity(512);
    json.object(|members| {
        members.member("attributes").object(|members| {
            for (key, value) in attributes {
                members.member(key).value(value);
            }
        });
        members.string("schema_url", resource.schema_url().unwrap_or_default());
    });
    json.into_text()
}

/// Attributes as an object: each key once, at its first place, with its last value, as a Python
/// dictionary keeps them.
fn attributes_json<'a>(json: &mut Json, attributes: impl IntoIterator<Item = &'a KeyValue>) {
    json.object(|members| {
        dictionary(members, attributes.into_iter().map(|kv| (kv.key.as_str(), &kv.value)), Json::value)
    });
}

fn dictionary<'a, V: 'a>(
    members: &mut Members<'_>,
    entries: impl Iterator<Item = (&'a str, &'a V)>,
    write: impl Fn(&mut Json, &V),
) {
    let mut ordered: Vec<(&str, &V)> = Vec::with_capacity(entries.size_hint().0);
    for (key, value) in entries {
        match ordered.iter_mut().find(|(known, _)| *known == key) {
            Some(entry) => entry.1 = value,
            None => ordered.push((key, value)),
        }
    }
    for (key, value) in ordered {
        write(members.member(key), value);
    }
}

#[cfg(test)]
mod tests;
