//! OTLP settings: casebook EXP-03 and what EXP-01 and EXP-04 need of them.

use std::path::PathBuf;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use proptest::prelude::*;

use crate::config::settings::{OtlpEndpoint, OtlpProtocol, OtlpSettings, Settings};
use crate::config::{Environment, TelemetryConfig, parse};

fn resolve(variables: &[(&str, &str)]) -> ([OtlpSettings; 3], Vec<String>) {
    let (settings, warnings) = Settings::resolve(&variables.iter().copied().collect(), None);
    ([settings.otlp_traces, settings.otlp_metrics, settings.otlp_logs], warnings)
}

fn pairs(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[test]
fn headers_are_decoded_and_malformed_ones_dropped_one_by_one() {
    let text = "Authorization=Basic%20dXNlcjpwYXNz==,x-a=b%2Cc, x-bad=50%zz,novalue,=v,bad key=1,x-u=caf%C3%A9";
    let ([traces, ..], warnings) = resolve(&[("OTEL_EXPORTER_OTLP_HEADERS", text)]);
    let expected = [("authorization", "Basic dXNlcjpwYXNz=="), ("x-a", "b,c"), ("x-u", "café")];
    assert_eq!(pairs(&traces.headers), expected);
    assert_eq!(
        warnings,
        ["OTEL_EXPORTER_OTLP_HEADERS has malformed entries at positions 3, 4, 5, 6, which are left out"]
    );
    assert!(!format!("{traces:?}").contains("dXNlcjpwYXNz"), "{traces:?}");
}

#[test]
fn header_kinds() {
    type Case = (&'static str, &'static [(&'static str, &'static str)], usize);
    let cases: [Case; 19] = [
        ("a=", &[("a", "")], 0),
        ("a==", &[("a", "=")], 0),
        ("a=b=c=d==", &[("a", "b=c=d==")], 0),
        ("A=1,a=2", &[("a", "2")], 0),
        (" a = 1 , b = 2 ", &[("a", "1"), ("b", "2")], 0),
        (",,a=1,", &[("a", "1")], 0),
        ("a=b;c=d", &[("a", "b;c=d")], 0),
        ("a=%41%42", &[("a", "AB")], 0),
        ("a=%", &[], 1),
        ("a=%4", &[], 1),
        ("a=%g1", &[], 1),
        ("a=%0d%0ainjected: 1", &[], 1),
        ("a=%00", &[], 1),
        ("a=%7F", &[], 1),
        ("a=%FF", &[], 1),
        ("a:b=1,(c)=2,d\u{e9}=3,ok=4", &[("ok", "4")], 1),
        ("content-length=0,Host=x,transfer-encoding=chunked,ok=1", &[("ok", "1")], 1),
        ("a=x\u{fffd}y,ok=1", &[("ok", "1")], 1),
        ("x%2Dy=1", &[("x%2dy", "1")], 0),
    ];
    for (text, expected, said) in cases {
        let ([traces, ..], warnings) = resolve(&[("OTEL_EXPORTER_OTLP_HEADERS", text)]);
        assert_eq!(pairs(&traces.headers), expected, "{text}");
        assert_eq!(warnings.len(), said, "{text}: {warnings:?}");
    }
}

/// Many broken entries do not make a long message.
#[test]
fn the_warning_is_short() {
    let text = "hunter2,".repeat(10_000);
    let (_, warnings) = resolve(&[("OTEL_EXPORTER_OTLP_HEADERS", &text)]);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].len() < 200 && warnings[0].contains(" and 9992 more"), "{}", warnings[0]);
}

#[test]
fn a_signal_s_own_variable_wins_for_its_signal_only() {
    let ([traces, metrics, logs], warnings) = resolve(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:4317"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/custom"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1,b=2"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "c=3"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "500"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "GZIP"),
        ("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
        ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/metrics.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/client.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "True"),
    ]);
    assert_eq!(warnings, [""; 0]);
    let own = OtlpEndpoint {
        text: "http://traces:4318/custom".to_owned(),
        source: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        signal_specific: true,
    };
    let general = OtlpEndpoint {
        text: "http://general:4317".to_owned(),
        source: "OTEL_EXPORTER_OTLP_ENDPOINT",
        signal_specific: false,
    };
    assert_eq!(traces.endpoint, Some(own));
    assert_eq!(metrics.endpoint, Some(general.clone()));
    assert_eq!(logs.endpoint, Some(general));
    assert_eq!([traces.protocol, metrics.protocol], [OtlpProtocol::Grpc, OtlpProtocol::HttpProtobuf]);
    assert_eq!(logs.protocol, OtlpProtocol::Grpc);
    assert_eq!(pairs(&traces.headers), [("c", "3")]);
    assert_eq!(pairs(&metrics.headers), [("a", "1"), ("b", "2")]);
    assert_eq!(logs.headers, metrics.headers);
    assert_eq!([traces.timeout, logs.timeout], [Duration::from_secs(2), Duration::from_millis(500)]);
    assert_eq!([traces.gzip, metrics.gzip, logs.gzip], [true, true, false]);
    assert_eq!(traces.certificate, Some(PathBuf::from("/ca.pem")));
    assert_eq!(metrics.certificate, Some(PathBuf::from("/metrics.pem")));
    assert_eq!(logs.client_certificate, Some(PathBuf::from("/client.pem")));
    assert_eq!(logs.client_key, Some(PathBuf::from("/key.pem")));
    assert_eq!([traces.insecure, metrics.insecure], [true, false]);
}

/// A signal's bad value means the general one, which is its default.
#[test]
fn a_signal_s_bad_value_means_the_general_one() {
    let ([traces, ..], warnings) = resolve(&[
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "ten"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpcc"),
    ]);
    assert_eq!(traces.timeout, Duration::from_secs(2));
    assert_eq!(traces.protocol, OtlpProtocol::HttpProtobuf);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn protocols() {
    let cases = [
        ("grpc", OtlpProtocol::Grpc, 0),
        (" GRPC ", OtlpProtocol::Grpc, 0),
        ("http/protobuf", OtlpProtocol::HttpProtobuf, 0),
        (" HTTP/Protobuf ", OtlpProtocol::HttpProtobuf, 0),
        ("http/json", OtlpProtocol::HttpProtobuf, 0),
        ("Http/JSON", OtlpProtocol::HttpProtobuf, 0),
        ("http", OtlpProtocol::Grpc, 1),
        ("grpcc", OtlpProtocol::Grpc, 1),
        ("http/protobuf,grpc", OtlpProtocol::Grpc, 1),
    ];
    for (value, expected, said) in cases {
        let ([traces, ..], warnings) = resolve(&[("OTEL_EXPORTER_OTLP_PROTOCOL", value)]);
        assert_eq!((traces.protocol, warnings.len()), (expected, said), "{value}");
    }
    assert_eq!(resolve(&[]).0.map(|signal| signal.protocol), [OtlpProtocol::Grpc; 3]);
}

/// Whatever it is, the exporters judge it: never a default in its place.
#[test]
fn endpoints_are_handed_on_as_they_stand() {
    for text in
        ["http://h:4318", "https://h/base/?x=1", "h:4317", "not a url", "ftp://h", "http://", "unix:///run/c.sock"]
    {
        let ([traces, ..], warnings) = resolve(&[("OTEL_EXPORTER_OTLP_ENDPOINT", text)]);
        assert_eq!(traces.endpoint.map(|e| e.text).as_deref(), Some(text));
        assert_eq!(warnings, [""; 0], "{text}");
    }
    let ([traces, ..], _) = resolve(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "  http://h:4318\t")]);
    assert_eq!(traces.endpoint.map(|e| e.text).as_deref(), Some("http://h:4318"));
    assert_eq!(resolve(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "  ")]).0.map(|signal| signal.endpoint), [None, None, None]);
}

/// The block's fields stand for general variables that are not set.
#[test]
fn the_block_stands_for_unset_general_variables() {
    let mut block = TelemetryConfig::default();
    block.otlp_endpoint = Some(" http://block:4318 ".to_owned());
    block.otlp_protocol = Some("http/protobuf".to_owned());
    block.otlp_headers = Some("k=block".to_owned());
    let (by_block, warnings) =
        Settings::resolve(&Environment::from_iter([("OTEL_EXPORTER_OTLP_ENDPOINT", "")]), Some(&block));
    assert_eq!(warnings, [""; 0]);
    let endpoint = by_block.otlp_metrics.endpoint.expect("an endpoint");
    assert_eq!((endpoint.text.as_str(), endpoint.source), ("http://block:4318", "telemetry.otlp_endpoint"));
    assert!(!endpoint.signal_specific);
    assert_eq!(by_block.otlp_metrics.protocol, OtlpProtocol::HttpProtobuf);
    assert_eq!(pairs(&by_block.otlp_metrics.headers), [("k", "block")]);

    let env = Environment::from_iter([
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:4317"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "k=env"),
        ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "k=logs"),
    ]);
    let (by_env, _) = Settings::resolve(&env, Some(&block));
    assert_eq!(by_env.otlp_metrics.endpoint.map(|e| e.text).as_deref(), Some("http://env:4317"));
    assert_eq!(by_env.otlp_metrics.protocol, OtlpProtocol::Grpc);
    assert_eq!(pairs(&by_env.otlp_metrics.headers), [("k", "env")]);
    assert_eq!(pairs(&by_env.otlp_logs.headers), [("k", "logs")]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the text: what is kept can be sent, and can be found in it.
    #[test]
    fn kept_headers_can_be_sent(text in prop_oneof![any::<String>(), "[a-c%=, 0-9AF-]{0,60}"]) {
        if let parse::Parsed::Good(headers) | parse::Parsed::Adjusted(headers, _) = parse::headers(&text) {
            for (name, value) in headers {
                prop_assert!(HeaderName::from_bytes(name.as_bytes()).is_ok());
                prop_assert!(HeaderValue::from_str(&value).is_ok());
            }
        }
    }

    /// Any value whatever, percent-encoded, comes out as it was, if a header can hold it.
    #[test]
    fn encoded_values_come_back(value in "\\PC{0,40}") {
        let encoded: String = value.bytes().map(|b| format!("%{b:02X}")).collect();
        let parsed = parse::headers(&format!("x={encoded},y=1"));
        let (parse::Parsed::Good(headers) | parse::Parsed::Adjusted(headers, _)) = parsed else {
            return Err(TestCaseError::fail("never bad"));
        };
        let expected = HeaderValue::from_str(&value).is_ok() && !value.contains('\u{fffd}');
        let found = headers.iter().find(|(name, _)| name == "x").map(|(_, value)| value);
        prop_assert_eq!(found, expected.then_some(&value));
        prop_assert!(headers.iter().any(|(name, value)| name == "y" && value == "1"));
    }
}
