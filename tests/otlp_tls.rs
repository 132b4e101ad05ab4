//! https to a collector with a certificate of a private authority, over both protocols (casebook EXP-04).

#![cfg(feature = "tls")]

mod otlp_support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::{Collector, Messages, PROTOCOLS, environment};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// An authority, a server's certificate for 127.0.0.1 and localhost, and a client's.
struct Pki {
    directory: TempDir,
    authority: CertificateDer<'static>,
    server: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

impl Pki {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let authority_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).unwrap();
        let issuer = Issuer::new(params, authority_key);
        let issue = |names: &[&str]| {
            let key = KeyPair::generate().unwrap();
            let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
            (certificate, key)
        };
        let (server, server_key) = issue(&["localhost", "127.0.0.1"]);
        let (client, client_key) = issue(&["client"]);
        fs::write(directory.path().join("ca.pem"), authority.pem()).unwrap();
        fs::write(directory.path().join("client.pem"), client.pem()).unwrap();
        fs::write(directory.path().join("client.key"), client_key.serialize_pem()).unwrap();
        fs::write(directory.path().join("not.pem"), "hello").unwrap();
        Self {
            directory,
            authority: authority.der().clone(),
            server: (server.der().clone(), PrivateKeyDer::try_from(server_key.serialize_der()).unwrap()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn collector(&self, ask_for_client: bool) -> Collector {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
        let builder = if ask_for_client {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let (certificate, key) = (self.server.0.clone(), self.server.1.clone_key());
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Collector::with_tls(Arc::new(config))
    }

    fn environment(&self, collector: &Collector, protocol: &str, files: &[(&str, &str)]) -> Environment {
        let mut environment = environment(&format!("https://localhost:{}", collector.port()), protocol);
        for (name, file) in files {
            environment.set(*name, self.path(file).to_str().unwrap());
        }
        environment.set("OTEL_METRICS_EXPORTER", "none");
        environment
    }
}

fn export(environment: Environment) -> (u64, u64) {
    let telemetry = Telemetry::builder().with_environment(environment).build();
    drop(telemetry.tracer_provider().tracer("test").start("span"));
    let spans = telemetry.shutdown_blocking(Duration::from_secs(5)).delivery.spans;
    (spans.exported, spans.lost_total())
}

const CA: (&str, &str) = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem");
const CLIENT: (&str, &str) = ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "client.pem");
const KEY: (&str, &str) = ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "client.key");

#[test]
fn a_private_authority_is_trusted_when_it_is_named() {
    let pki = Pki::new();
    for protocol in PROTOCOLS {
        let collector = pki.collector(false);
        assert_eq!(export(pki.environment(&collector, protocol, &[CA])), (1, 0), "{protocol}");
        let signal_only = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "ca.pem");
        assert_eq!(export(pki.environment(&collector, protocol, &[signal_only])), (1, 0), "{protocol}");
        assert!(collector.look(|r| r.spans.len() == 2 && r.calls.iter().all(|call| call.grpc == (protocol == "grpc"))));
    }
}

#[test]
fn an_unknown_authority_is_not() {
    let (pki, messages) = (Pki::new(), Messages::capture());
    for protocol in PROTOCOLS {
        let collector = pki.collector(false);
        assert_eq!(export(pki.environment(&collector, protocol, &[])), (0, 1), "{protocol}");
        assert!(collector.look(|r| r.calls.is_empty()));
        let said = messages.lines_with(&format!("localhost:{}", collector.port()));
        assert!(said.len() == 1 && said[0].contains("certificate"), "{protocol}: {said:?}");
    }
}

#[test]
fn a_client_certificate_is_shown() {
    let pki = Pki::new();
    for protocol in PROTOCOLS {
        let collector = pki.collector(true);
        assert_eq!(export(pki.environment(&collector, protocol, &[CA, CLIENT, KEY])), (1, 0), "{protocol}");
        assert_eq!(export(pki.environment(&collector, protocol, &[CA])), (0, 1), "{protocol}");
    }
}

/// Said at start, and that signal is off; nothing else changes, nothing goes out in clear.
#[test]
fn unusable_files_are_said_at_start() {
    let (pki, messages) = (Pki::new(), Messages::capture());
    for protocol in PROTOCOLS {
        for (files, named) in [
            (&[("OTEL_EXPORTER_OTLP_CERTIFICATE", "absent.pem")][..], "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            (&[("OTEL_EXPORTER_OTLP_CERTIFICATE", "not.pem")], "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            (&[CA, CLIENT], "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
            (&[CA, KEY], "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
            (&[CA, CLIENT, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "not.pem")], "key"),
        ] {
            let collector = pki.collector(false);
            let before = messages.all().len();
            let telemetry = Telemetry::builder().with_environment(pki.environment(&collector, protocol, files)).build();
            let said = messages.all().split_off(before);
            assert!(said.contains(named) && said.contains("not exported: traces"), "{protocol}, {files:?}: {said}");
            drop(telemetry.tracer_provider().tracer("test").start("span"));
            assert!(!telemetry.shutdown_blocking(Duration::from_secs(5)).timed_out);
            assert!(collector.look(|r| r.calls.is_empty()));
        }
    }
}
