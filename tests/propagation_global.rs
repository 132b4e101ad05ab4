//! The process-wide propagator is the strict one. One test only: it changes the process.

use std::collections::HashMap;

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::global;
use opentelemetry::trace::TraceContextExt;

#[test]
fn init_installs_the_propagator_that_the_environment_chose() {
    let environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("NEMO_GYM_OTEL_EXPORTER", "console"),
        ("OTEL_PROPAGATORS", "tracecontext"),
    ]);
    let telemetry = Telemetry::builder().with_environment(environment).init();
    global::get_text_map_propagator(|propagator| {
        assert_eq!(propagator.fields().collect::<Vec<_>>(), ["traceparent", "tracestate"]);
        let received = |value: &str| {
            let message = HashMap::from([("traceparent".to_owned(), value.to_owned())]);
            propagator.extract(&message).has_active_span()
        };
        assert!(received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        // The SDK's own takes this one.
        assert!(!received("00-1-1-01"));
    });
    telemetry.shutdown_blocking(std::time::Duration::from_secs(5));
}
