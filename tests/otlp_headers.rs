//! OTLP headers reach the collector over both protocols, and nobody else (casebook EXP-03).

mod otlp_support;

use std::time::Duration;

use nemo_gym_telemetry::Telemetry;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::{Collector, Messages, PROTOCOLS, Reply, environment};

fn export(collector: &Collector, protocol: &str, variables: &[(&str, &str)]) {
    let mut environment = environment(&collector.url(), protocol);
    for (name, value) in variables {
        environment.set(*name, *value);
    }
    let telemetry = Telemetry::builder().with_environment(environment).build();
    drop(telemetry.tracer_provider().tracer("test").start("span"));
    telemetry.meter_provider().meter("test").u64_counter("count").build().add(1, &[]);
    telemetry.shutdown_blocking(Duration::from_secs(10));
}

fn header(collector: &Collector, signal: &str, name: &str) -> Vec<String> {
    collector.look(|r| {
        let calls = r.calls_of(signal);
        let call = calls.first().expect("a request");
        call.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    })
}

#[test]
fn values_are_decoded_and_malformed_ones_dropped_one_by_one() {
    let messages = Messages::capture();
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let headers = "Authorization=Basic%20dXNlcjpwYXNz==,x-a=b%2Cc, x-bad=50%zz,novalue,=v,bad key=1,x-u=caf%C3%A9,\
                       x-line=a%0Ab,x-pad = p ,x-last=1";
        export(&collector, protocol, &[("OTEL_EXPORTER_OTLP_HEADERS", headers)]);
        assert_eq!(header(&collector, "trace", "authorization"), ["Basic dXNlcjpwYXNz=="], "{protocol}");
        assert_eq!(header(&collector, "trace", "x-a"), ["b,c"], "{protocol}");
        assert_eq!(header(&collector, "metrics", "x-pad"), ["p"], "{protocol}");
        assert_eq!(header(&collector, "metrics", "x-last"), ["1"], "{protocol}");
        for dropped in ["novalue", "x-u", "x-line"] {
            assert_eq!(header(&collector, "trace", dropped), Vec::<String>::new(), "{protocol}, {dropped}");
        }
    }
    let said = messages.all();
    for secret in ["dXNlcjpwYXNz", "b,c", "caf", "50%"] {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
    assert!(said.contains("x-u") || said.contains("OTEL_EXPORTER_OTLP_HEADERS"), "{said}");
}

#[test]
fn a_signal_s_own_variable_wins_for_its_signal_only() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let variables = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-who=general,x-general=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-who=traces"),
        ];
        export(&collector, protocol, &variables);
        assert_eq!(header(&collector, "trace", "x-who"), ["traces"], "{protocol}");
        assert_eq!(header(&collector, "trace", "x-general"), Vec::<String>::new(), "{protocol}");
        assert_eq!(header(&collector, "metrics", "x-who"), ["general"], "{protocol}");
    }
}

#[test]
fn headers_of_the_transport_cannot_be_broken() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        let headers = "content-type=text/plain,content-length=3,content-encoding=br,host=evil.example,te=gzip,\
                       transfer-encoding=chunked,connection=close,upgrade=h2c,grpc-timeout=1n,grpc-encoding=br,x-ok=1";
        export(&collector, protocol, &[("OTEL_EXPORTER_OTLP_HEADERS", headers)]);
        assert!(collector.look(|r| r.spans == ["span"]), "{protocol}");
        assert_eq!(header(&collector, "trace", "x-ok"), ["1"], "{protocol}");
        assert_eq!(header(&collector, "trace", "content-type").len(), 1, "{protocol}");
        assert!(!header(&collector, "trace", "host").contains(&"evil.example".to_owned()), "{protocol}");
    }
}

#[test]
fn the_exporter_names_itself_and_can_be_renamed() {
    for protocol in PROTOCOLS {
        let collector = Collector::start();
        export(&collector, protocol, &[]);
        let agent = header(&collector, "trace", "user-agent");
        assert!(agent.len() == 1 && agent[0].starts_with("OTel-OTLP-Exporter-Rust"), "{protocol}: {agent:?}");

        let collector = Collector::start();
        export(&collector, protocol, &[("OTEL_EXPORTER_OTLP_HEADERS", "user-agent=mine")]);
        let agent = header(&collector, "trace", "user-agent");
        assert!(agent.len() == 1 && agent[0].starts_with("mine"), "{protocol}: {agent:?}");
    }
}

/// A collector may echo a token in its answer.
#[test]
fn answers_of_the_collector_are_not_repeated() {
    let messages = Messages::capture();
    for (protocol, refusal) in [("grpc", Reply::Grpc(16)), ("http/protobuf", Reply::Refuse(401, None))] {
        for reply in [refusal, Reply::Partial(1)] {
            let case = format!("{protocol}, {reply:?}");
            let collector = Collector::with(move |_| reply.clone());
            let before = messages.all().len();
            export(&collector, protocol, &[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")]);
            let said = messages.all().split_off(before);
            assert!(!said.contains("s3cret"), "{said}");
            assert!(said.contains(&collector.address.to_string()), "{case}: {said}");
        }
    }
}

/// A user name in the URL is basic authentication over HTTP; gRPC has no such thing, which is said.
#[test]
fn user_names_in_urls() {
    let messages = Messages::capture();
    for (protocol, headers, expected) in [
        ("http/protobuf", "", Some("Basic dXNlcjpwYTpzcw==")),
        ("http/protobuf", "authorization=Bearer%20own", Some("Bearer own")),
        ("grpc", "", None),
    ] {
        let collector = Collector::start();
        let endpoint = format!("http://user:pa%3Ass@{}", collector.address);
        let mut environment = environment(&endpoint, protocol);
        environment.set("OTEL_EXPORTER_OTLP_HEADERS", headers);
        let telemetry = Telemetry::builder().with_environment(environment).build();
        drop(telemetry.tracer_provider().tracer("test").start("span"));
        telemetry.shutdown_blocking(Duration::from_secs(10));
        assert_eq!(header(&collector, "trace", "authorization"), Vec::from_iter(expected), "{protocol}, {headers}");
        let said = messages.all();
        assert!(!said.contains("pa%3Ass") && !said.contains("pa:ss") && !said.contains("user:"), "{said}");
        assert_eq!(said.contains("user name in OTEL_EXPORTER_OTLP_ENDPOINT"), protocol == "grpc", "{said}");
    }
}
