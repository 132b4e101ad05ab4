//! The SDK's exporter traits over one client: encode, send, read what was rejected.
//!
//! The messages come from `opentelemetry-proto`. `opentelemetry-otlp` is not used: it reads the process's
//! variables again by itself, hides a partial success and the cause of a failure, and cannot be woken
//! from its pauses when the process ends.

use std::time::Duration;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::logs::tonic::group_logs_by_resource_and_scope;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prost::Message;

use super::client::Client;
use super::split::{Split, within_limit};

/// Spans over OTLP.
#[derive(Debug)]
pub(crate) struct OtlpSpanExporter {
    client: Client,
    resource: ResourceAttributesWithSchema,
}

/// Metrics over OTLP.
#[derive(Debug)]
pub(crate) struct OtlpMetricExporter {
    client: Client,
    temporality: Temporality,
}

/// Log records over OTLP.
#[derive(Debug)]
pub(crate) struct OtlpLogExporter {
    client: Client,
    resource: ResourceAttributesWithSchema,
}

impl OtlpSpanExporter {
    pub(super) fn new(client: Client) -> Self {
        Self { client, resource: ResourceAttributesWithSchema::default() }
    }
}

impl OtlpMetricExporter {
    pub(super) fn new(client: Client, temporality: Temporality) -> Self {
        Self { client, temporality }
    }
}

impl OtlpLogExporter {
    pub(super) fn new(client: Client) -> Self {
        Self { client, resource: ResourceAttributesWithSchema::default() }
    }
}

impl SpanExporter for OtlpSpanExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        deliver(&self.client, ExportTraceServiceRequest { resource_spans }, |response| {
            Some(ExportTraceServiceResponse::decode(response).ok()?.partial_success?.rejected_spans)
        })
        .await
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

impl PushMetricExporter for OtlpMetricExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let request = ExportMetricsServiceRequest::from(metrics);
        let response = self.client.send(&request).await?;
        let response = ExportMetricsServiceResponse::decode(response).ok();
        note_rejected(&self.client, response.and_then(|r| Some(r.partial_success?.rejected_data_points)));
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        self.temporality
    }
}

impl LogExporter for OtlpLogExporter {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let resource_logs = group_logs_by_resource_and_scope(&batch, &self.resource);
        deliver(&self.client, ExportLogsServiceRequest { resource_logs }, |response| {
            Some(ExportLogsServiceResponse::decode(response).ok()?.partial_success?.rejected_log_records)
        })
        .await
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

/// Sends a request in as many parts as its size asks for. `rejected` reads a response; not every collector
/// sends a message, and none makes a success a failure.
///
/// Where some parts fail, their items count as rejected and the rest as exported.
async fn deliver<R: Split>(client: &Client, request: R, rejected: impl Fn(Bytes) -> Option<i64>) -> OTelSdkResult {
    let (mut delivered, mut failed, mut first_error) = (false, 0, None);
    for part in within_limit(request) {
        match client.send(&part).await {
            Ok(response) => {
                delivered = true;
                note_rejected(client, rejected(response));
            }
            Err(error) => {
                failed += part.count();
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if !delivered => return Err(error),
        Some(_) => client.rejected(failed as u64),
        None => {}
    }
    Ok(())
}

fn note_rejected(client: &Client, rejected: Option<i64>) {
    if let Some(count @ 1..) = rejected.and_then(|count| u64::try_from(count).ok()) {
        client.rejected(count);
    }
}
