//! Metric lines: one per collection, all scopes in it.

use std::time::{Duration, SystemTime};

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, ExponentialBucket, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, MetricData,
    ResourceMetrics,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;

use super::json::{Json, Members};
use super::{LineWriter, attributes_json, resource_json};

/// Writes each collection as one JSON line.
#[derive(Debug)]
pub(crate) struct ConsoleMetricExporter {
    writer: LineWriter,
    temporality: Temporality,
}

impl ConsoleMetricExporter {
    pub(crate) fn new(writer: LineWriter, temporality: Temporality) -> Self {
        Self { writer, temporality }
    }
}

impl PushMetricExporter for ConsoleMetricExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let mut line = Json::with_capacity(16 * 1024);
        collection_line(&mut line, metrics);
        self.writer.write_lines(&line.into_text())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        self.temporality
    }
}

fn collection_line(json: &mut Json, metrics: &ResourceMetrics) {
    json.object(|members| {
        members.member("resource_metrics").array([metrics], |json, metrics| {
            json.object(|members| {
                members.member("resource").raw(&resource_json(metrics.resource()));
                members.member("scope_metrics").array(metrics.scope_metrics(), |json, scope_metrics| {
                    let scope = scope_metrics.scope();
                    let schema_url = scope.schema_url().unwrap_or_default();
                    json.object(|members| {
                        members.member("scope").object(|members| {
                            members.string("name", scope.name());
                            members.string("version", scope.version().unwrap_or_default());
                            members.string("schema_url", schema_url);
                            if scope.attributes().next().is_none() {
                                members.member("attributes").null();
                            } else {
                                attributes_json(members.member("attributes"), scope.attributes());
                            }
                        });
                        members.member("metrics").array(scope_metrics.metrics(), metric_json);
                        members.string("schema_url", schema_url);
                    });
                });
                members.string("schema_url", metrics.resource().schema_url().unwrap_or_default());
            });
        });
    });
    json.raw("\n");
}

fn metric_json(json: &mut Json, metric: &Metric) {
    json.object(|members| {
        members.string("name", metric.name());
        members.string("description", metric.description());
        members.string("unit", metric.unit());
        members.member("data").object(|members| match metric.data() {
            AggregatedMetrics::F64(data) => data_members(members, data),
            AggregatedMetrics::U64(data) => data_members(members, data),
            AggregatedMetrics::I64(data) => data_members(members, data),
        });
    });
}

/// A measurement: integers stay integers.
trait Number: Copy {
    fn write(self, json: &mut Json);
}

impl Number for f64 {
    fn write(self, json: &mut Json) {
        json.float(self);
    }
}

impl Number for u64 {
    fn write(self, json: &mut Json) {
        json.integer(self);
    }
}

impl Number for i64 {
    fn write(self, json: &mut Json) {
        json.integer(self);
    }
}

fn data_members<T: Number>(members: &mut Members<'_>, data: &MetricData<T>) {
    match data {
        MetricData::Gauge(gauge) => {
            members.member("data_points").array(gauge.data_points(), |json, point| {
                // Upstream's gauges have no start.
                number_point(json, point.attributes(), None, gauge.time(), point.value());
            });
        }
        MetricData::Sum(sum) => {
            members.member("data_points").array(sum.data_points(), |json, point| {
                number_point(json, point.attributes(), Some(sum.start_time()), sum.time(), point.value());
            });
            temporality(members, sum.temporality());
            members.member("is_monotonic").boolean(sum.is_monotonic());
        }
        MetricData::Histogram(histogram) => {
            members.member("data_points").array(histogram.data_points(), |json, point| {
                histogram_point(json, point, histogram.start_time(), histogram.time());
            });
            temporality(members, histogram.temporality());
        }
        MetricData::ExponentialHistogram(histogram) => {
            members.member("data_points").array(histogram.data_points(), |json, point| {
                exponential_point(json, point, histogram.start_time(), histogram.time());
            });
            temporality(members, histogram.temporality());
        }
    }
}

/// The numbers of the OTLP enumeration, which Python's are: 1 delta, 2 cumulative.
fn temporality(members: &mut Members<'_>, temporality: Temporality) {
    members.member("aggregation_temporality").integer(if temporality == Temporality::Delta { 1 } else { 2 });
}

fn point_head<'a>(
    members: &mut Members<'_>,
    attributes: impl IntoIterator<Item = &'a opentelemetry::KeyValue>,
    start: Option<SystemTime>,
    time: SystemTime,
) {
    attributes_json(members.member("attributes"), attributes);
    match start {
        Some(start) => members.member("start_time_unix_nano").unix_nanos(start),
        None => members.member("start_time_unix_nano").null(),
    }
    members.member("time_unix_nano").unix_nanos(time);
}

/// The Rust SDK records no exemplars; the member is there because upstream's is.
fn no_exemplars(members: &mut Members<'_>) {
    members.member("exemplars").array([(); 0], |_, ()| {});
}

fn optional<T: Number>(json: &mut Json, value: Option<T>) {
    match value {
        Some(value) => value.write(json),
        None => json.null(),
    }
}

fn number_point<'a, T: Number>(
    json: &mut Json,
    attributes: impl IntoIterator<Item = &'a opentelemetry::KeyValue>,
    start: Option<SystemTime>,
    time: SystemTime,
    value: T,
) {
    json.object(|members| {
        point_head(members, attributes, start, time);
        value.write(members.member("value"));
        no_exemplars(members);
    });
}

fn histogram_point<T: Number>(json: &mut Json, point: &HistogramDataPoint<T>, start: SystemTime, time: SystemTime) {
    json.object(|members| {
        point_head(members, point.attributes(), Some(start), time);
        members.member("count").integer(point.count());
        point.sum().write(members.member("sum"));
        members.member("bucket_counts").array(point.bucket_counts(), |json, count| json.integer(count));
        members.member("explicit_bounds").array(point.bounds(), |json, bound| json.float(bound));
        optional(members.member("min"), point.min());
        optional(members.member("max"), point.max());
        no_exemplars(members);
    });
}

fn exponential_point<T: Number>(
    json: &mut Json,
    point: &ExponentialHistogramDataPoint<T>,
    start: SystemTime,
    time: SystemTime,
) {
    json.object(|members| {
        point_head(members, point.attributes(), Some(start), time);
        members.member("count").integer(i128::try_from(point.count()).unwrap_or(i128::MAX));
        point.sum().write(members.member("sum"));
        members.member("scale").integer(point.scale());
        members.member("zero_count").integer(point.zero_count());
        buckets(members.member("positive"), point.positive_bucket());
        buckets(members.member("negative"), point.negative_bucket());
        members.member("flags").integer(0);
        optional(members.member("min"), point.min());
        optional(members.member("max"), point.max());
        no_exemplars(members);
    });
}

fn buckets(json: &mut Json, buckets: &ExponentialBucket) {
    json.object(|members| {
        members.member("offset").integer(buckets.offset());
        members.member("bucket_counts").array(buckets.counts(), |json, count| json.integer(count));
    });
}
