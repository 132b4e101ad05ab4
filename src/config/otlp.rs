//! OTLP settings: what all signals share, and what one signal has for itself.

use std::path::PathBuf;
use std::time::Duration;

use super::settings::{OtlpEndpoint, OtlpProtocol, OtlpSettings};
use super::variables::{Reader, Variable, typed};
use super::{TelemetryConfig, parse};

/// The OTLP variables of one signal, or of all.
struct OtlpVariables {
    endpoint: &'static Variable<String>,
    protocol: &'static Variable<OtlpProtocol>,
    headers: &'static Variable<Vec<(String, String)>>,
    timeout: &'static Variable<Duration>,
    compression: &'static Variable<bool>,
    certificate: &'static Variable<PathBuf>,
    client_certificate: &'static Variable<PathBuf>,
    client_key: &'static Variable<PathBuf>,
    insecure: &'static Variable<bool>,
}

static GENERAL: OtlpVariables = OtlpVariables {
    endpoint: &typed::OTEL_EXPORTER_OTLP_ENDPOINT,
    protocol: &typed::OTEL_EXPORTER_OTLP_PROTOCOL,
    headers: &typed::OTEL_EXPORTER_OTLP_HEADERS,
    timeout: &typed::OTEL_EXPORTER_OTLP_TIMEOUT,
    compression: &typed::OTEL_EXPORTER_OTLP_COMPRESSION,
    certificate: &typed::OTEL_EXPORTER_OTLP_CERTIFICATE,
    client_certificate: &typed::OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE,
    client_key: &typed::OTEL_EXPORTER_OTLP_CLIENT_KEY,
    insecure: &typed::OTEL_EXPORTER_OTLP_INSECURE,
};

static TRACES: OtlpVariables = OtlpVariables {
    endpoint: &typed::OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    protocol: &typed::OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    headers: &typed::OTEL_EXPORTER_OTLP_TRACES_HEADERS,
    timeout: &typed::OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
    compression: &typed::OTEL_EXPORTER_OTLP_TRACES_COMPRESSION,
    certificate: &typed::OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE,
    client_certificate: &typed::OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE,
    client_key: &typed::OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY,
    insecure: &typed::OTEL_EXPORTER_OTLP_TRACES_INSECURE,
};

static METRICS: OtlpVariables = OtlpVariables {
    endpoint: &typed::OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
    protocol: &typed::OTEL_EXPORTER_OTLP_METRICS_PROTOCOL,
    headers: &typed::OTEL_EXPORTER_OTLP_METRICS_HEADERS,
    timeout: &typed::OTEL_EXPORTER_OTLP_METRICS_TIMEOUT,
    compression: &typed::OTEL_EXPORTER_OTLP_METRICS_COMPRESSION,
    certificate: &typed::OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE,
    client_certificate: &typed::OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE,
    client_key: &typed::OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY,
    insecure: &typed::OTEL_EXPORTER_OTLP_METRICS_INSECURE,
};

static LOGS: OtlpVariables = OtlpVariables {
    endpoint: &typed::OTEL_EXPORTER_OTLP_LOGS_ENDPOINT,
    protocol: &typed::OTEL_EXPORTER_OTLP_LOGS_PROTOCOL,
    headers: &typed::OTEL_EXPORTER_OTLP_LOGS_HEADERS,
    timeout: &typed::OTEL_EXPORTER_OTLP_LOGS_TIMEOUT,
    compression: &typed::OTEL_EXPORTER_OTLP_LOGS_COMPRESSION,
    certificate: &typed::OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE,
    client_certificate: &typed::OTEL_EXPORTER_OTLP_LOGS_CLIENT_CERTIFICATE,
    client_key: &typed::OTEL_EXPORTER_OTLP_LOGS_CLIENT_KEY,
    insecure: &typed::OTEL_EXPORTER_OTLP_LOGS_INSECURE,
};

/// The settings of traces, metrics and logs. A signal's own variable replaces the general one, headers
/// included; the block stands for general variables that are not set.
pub(crate) fn resolve(
    r: &mut Reader<'_>,
    block: Option<&TelemetryConfig>,
    default: &OtlpSettings,
) -> [OtlpSettings; 3] {
    let mut general = layer(r, &GENERAL, default, false);
    if let Some(block) = block {
        let unset = |variable: &str| !r.is_set(variable);
        let (endpoint, protocol, headers) =
            (unset(GENERAL.endpoint.info.name), unset(GENERAL.protocol.info.name), unset(GENERAL.headers.info.name));
        if let Some(text) = blank_is_unset(endpoint, &block.otlp_endpoint) {
            let source = "telemetry.otlp_endpoint";
            general.endpoint = r.parse(GENERAL.endpoint, source, text).set().map(|text| OtlpEndpoint {
                text,
                source,
                signal_specific: false,
            });
        }
        if let Some(text) = blank_is_unset(protocol, &block.otlp_protocol) {
            general.protocol = r.parse(GENERAL.protocol, "telemetry.otlp_protocol", text).or(None, default.protocol);
        }
        if let Some(text) = blank_is_unset(headers, &block.otlp_headers) {
            general.headers = r.parse(GENERAL.headers, "telemetry.otlp_headers", text).set().unwrap_or_default();
        }
    }
    [&TRACES, &METRICS, &LOGS].map(|variables| layer(r, variables, &general, true))
}

fn blank_is_unset(wanted: bool, field: &Option<String>) -> Option<&str> {
    field.as_deref().map(parse::strip).filter(|text| wanted && !text.is_empty())
}

/// The variables' settings over those `under` them.
fn layer(r: &mut Reader<'_>, variables: &OtlpVariables, under: &OtlpSettings, signal_specific: bool) -> OtlpSettings {
    let source = variables.endpoint.info.name;
    let endpoint = r.read(variables.endpoint).set().map(|text| OtlpEndpoint { text, source, signal_specific });
    OtlpSettings {
        endpoint: endpoint.or_else(|| under.endpoint.clone()),
        protocol: r.read(variables.protocol).or(None, under.protocol),
        headers: r.read(variables.headers).set().unwrap_or_else(|| under.headers.clone()),
        timeout: r.read(variables.timeout).or(None, under.timeout),
        gzip: r.read(variables.compression).or(None, under.gzip),
        certificate: r.read(variables.certificate).set().or_else(|| under.certificate.clone()),
        client_certificate: r.read(variables.client_certificate).set().or_else(|| under.client_certificate.clone()),
        client_key: r.read(variables.client_key).set().or_else(|| under.client_key.clone()),
        insecure: r.read(variables.insecure).or(None, under.insecure),
    }
}
