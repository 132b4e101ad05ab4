//! Load of a server's shape on a pipeline.
#![allow(dead_code, reason = "each test file uses its part")]

use nemo_gym_telemetry::{Environment, Telemetry};
use opentelemetry::trace::{Span as _, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

pub fn telemetry(url: &str, more: &[(&str, &str)]) -> Telemetry {
    let mut environment = Environment::from_iter([
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_METRICS_EXPORTER", "none"),
    ]);
    for (name, value) in more {
        environment.set(*name, *value);
    }
    Telemetry::builder().with_environment(environment).build()
}

/// The two spans of a request, with attributes as the server layer makes them.
pub fn request(tracer: &SdkTracer, i: usize) {
    let server = tracer
        .span_builder("POST /v1/responses")
        .with_attributes(vec![
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new("url.scheme", "http"),
            KeyValue::new("url.path", format!("/v1/responses/{i}")),
            KeyValue::new("http.route", "/v1/responses"),
            KeyValue::new("server.address", "127.0.0.1".to_owned()),
            KeyValue::new("server.port", 8080),
            KeyValue::new("network.protocol.version", "1.1"),
            KeyValue::new("http.response.status_code", 200),
            KeyValue::new("user_agent.original", "Python/3.13 aiohttp/3.14.5".to_owned()),
            KeyValue::new("nemo.gym.rollout.id", format!("{i}-0")),
        ])
        .start(tracer);
    let context = Context::new().with_span(server);
    let inner = tracer.span_builder("gym.agent.responses").with_attributes(vec![
        KeyValue::new("nemo.gym.server.name", "example_agent"),
        KeyValue::new("nemo.gym.rollout.id", format!("{i}-0")),
    ]);
    inner.start_with_context(tracer, &context).end();
}
