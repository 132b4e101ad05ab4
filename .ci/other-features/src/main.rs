//! Exports one span, then another after more than three intervals, outside and inside every kind of runtime.
//! Arguments: protocol, endpoint. Exit status 0 when all spans were taken.

use std::process::ExitCode;
use std::time::Duration;

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::trace::{Tracer, TracerProvider};
use tokio::runtime::Builder;

// The program uses the other exporters as well, as programs with these features do.
use opentelemetry_otlp as _;

fn export(protocol: &str, endpoint: &str) -> Telemetry {
    let environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("CUDA_VISIBLE_DEVICES", ""),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
    ]);
    let telemetry = Telemetry::builder().with_environment(environment).build();
    for _ in 0..2 {
        drop(telemetry.tracer_provider().tracer("other-features").start("span"));
        std::thread::sleep(Duration::from_millis(200));
    }
    telemetry
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [protocol, endpoint] = arguments.as_slice() else {
        eprintln!("usage: other-features PROTOCOL ENDPOINT");
        return ExitCode::from(2);
    };
    let mut reports = vec![export(protocol, endpoint).shutdown_blocking(Duration::from_secs(5))];
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.enable_all().build().expect("a runtime");
        reports.push(runtime.block_on(async { export(protocol, endpoint).shutdown().await }));
    }
    for report in &reports {
        println!("{protocol}: {}", report.delivery);
    }
    let complete = reports.iter().all(|report| report.delivery.spans.exported == 2 && report.delivery.is_complete());
    if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
