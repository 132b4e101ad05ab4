//! Users' instruments: callbacks that panic or block, and attributes without bounds (casebook MET-03).

mod otlp_support;
mod signals_support;

use std::collections::BTreeMap;
use std::time::Duration;

use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry, init_telemetry};
use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point::Value};
use otlp_support::{Collector, Received};
use signals_support::{child, is_child, run};

/// The newest points of a sum or gauge of integers: value by the text of its attributes.
fn newest(received: &Received, name: &str) -> BTreeMap<String, i64> {
    let scopes = received.metrics.iter().flat_map(|r| &r.resource_metrics).flat_map(|r| &r.scope_metrics);
    let metric = scopes.flat_map(|scope| &scope.metrics).rfind(|metric| metric.name == name);
    let points = match metric.and_then(|metric| metric.data.as_ref()) {
        Some(Data::Sum(sum)) => &sum.data_points,
        Some(Data::Gauge(gauge)) => &gauge.data_points,
        _ => return BTreeMap::new(),
    };
    let value = |value: &Option<Value>| match value {
        Some(Value::AsInt(value)) => *value,
        other => panic!("{other:?}"),
    };
    points.iter().map(|point| (format!("{:?}", point.attributes), value(&point.value))).collect()
}

#[test]
#[ignore = "a process of its own"]
fn child_with_bad_callbacks() {
    if !is_child() {
        return;
    }
    let telemetry = init_telemetry(ServerIdentity::new("s", ServerType::ResourcesServers));
    // As a library does that knows nothing of this crate.
    let meter = opentelemetry::global::meter("a.library");
    let _panics = meter.i64_observable_gauge("panics").with_callback(|_| panic!("on purpose")).build();
    let _blocks = meter
        .i64_observable_gauge("blocks")
        .with_callback(|_| {
            loop {
                std::thread::park();
            }
        })
        .build();
    let _fine = meter.i64_observable_gauge("fine").with_callback(|gauge| gauge.observe(7, &[])).build();
    let counter = telemetry.meter("own").u64_counter("counter").build();
    for _ in 0..5 {
        counter.add(1, &[]);
        std::thread::sleep(Duration::from_millis(400));
    }
    counter.add(1, &[]);
    telemetry.shutdown_blocking(Duration::from_secs(10));
}

#[test]
fn bad_callbacks_cost_their_own_metric_only_and_are_told_once() {
    let collector = Collector::start();
    let url = collector.url();
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("OTEL_METRIC_EXPORT_INTERVAL", "100")];
    let (_, stderr) = run(child("child_with_bad_callbacks", &environment));
    collector.look(|received| {
        assert_eq!(newest(received, "counter").values().collect::<Vec<_>>(), [&6], "the last value came");
        assert_eq!(newest(received, "fine").values().collect::<Vec<_>>(), [&7]);
        assert!(newest(received, "panics").is_empty() && newest(received, "blocks").is_empty());
        assert!(received.calls_of("metrics").len() > 3, "export goes on");
    });
    assert_eq!(stderr.matches("the callback of metric panics panicked").count(), 1, "{stderr}");
    assert_eq!(stderr.matches("the callback of metric blocks blocks").count(), 1, "{stderr}");
}

#[test]
fn attributes_without_bounds_end_in_one_overflow_series() {
    let collector = Collector::start();
    let environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()),
        ("OTEL_TRACES_EXPORTER", "none"),
    ]);
    let telemetry = Telemetry::builder().with_environment(environment).build();
    let counter = telemetry.meter("user").u64_counter("user.things").build();
    (0..3000).for_each(|i| counter.add(1, &[KeyValue::new("id", i)]));
    telemetry.shutdown_blocking(Duration::from_secs(10));
    collector.look(|received| {
        let points = newest(received, "user.things");
        assert!(points.len() <= 2001, "{} series", points.len());
        assert!(points.keys().any(|attributes| attributes.contains("otel.metric.overflow")));
        assert_eq!(points.values().sum::<i64>(), 3000);
    });
}
