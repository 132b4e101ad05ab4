//! Proxy variables of the process: a loopback collector is reached directly (casebook EXP-04, issue "proxies").

#[path = "process_support/mod.rs"]
mod process_support;

mod otlp_support;

use std::net::TcpListener;
use std::time::Duration;

use nemo_gym_telemetry::Telemetry;
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::{Collector, PROTOCOLS};

/// Not a test of its own: what the child process does.
#[test]
#[ignore = "run by the other test in a child process"]
fn child() {
    let telemetry = Telemetry::builder().build();
    drop(telemetry.tracer_provider().tracer("test").start("span"));
    let report = telemetry.shutdown_blocking(Duration::from_secs(5));
    assert!(report.delivery.is_complete(), "{report:?}");
}

#[test]
fn a_loopback_collector_is_reached_past_any_proxy() {
    for protocol in PROTOCOLS {
        for host in ["127.0.0.1", "localhost"] {
            let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
            proxy.set_nonblocking(true).unwrap();
            let proxy_url = format!("http://{}", proxy.local_addr().unwrap());
            let collector = Collector::start();
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", "child", "--ignored"])
                .env("CUDA_VISIBLE_DEVICES", "")
                .env("NEMO_GYM_OTEL_ENABLED", "1");
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{host}:{}", collector.port()));
            command.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
            for variable in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
                command.env(variable, &proxy_url);
            }
            for variable in ["no_proxy", "NO_PROXY"] {
                command.env_remove(variable);
            }
            let (status, _, stderr) = process_support::Process::spawn(command).end();
            assert!(status.success(), "{protocol}, {host}: {stderr}");
            assert_eq!(collector.look(|r| r.spans.clone()), ["span"], "{protocol}, {host}");
            assert!(proxy.accept().is_err(), "{protocol}, {host}: the proxy was asked");
        }
    }
}
