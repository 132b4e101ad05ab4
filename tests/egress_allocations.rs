//! What a call may allocate beyond the bare chain, counted.

mod allocation_support;
mod egress_support;

use std::task::{Context as TaskContext, Poll, Waker};

use egress_support::*;
use nemo_gym_telemetry::SpanGroup::Verify;
use nemo_gym_telemetry::Telemetry;
use nemo_gym_telemetry::egress::TracePropagation;
use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};

/// Allocations of this thread while `f` runs.
fn allocations(f: impl FnOnce()) -> u64 {
    let before = allocation_support::of_thread();
    f();
    allocation_support::of_thread() - before
}

/// Answers by itself.
struct Canned;
#[async_trait::async_trait]
impl Middleware for Canned {
    async fn handle(&self, _: Request, _: &mut http::Extensions, _: Next<'_>) -> Result<Response> {
        Ok(Response::from(http::Response::new("{}")))
    }
}

/// Polls a future that never waits.
fn drive<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("waits"),
    }
}

fn request() -> Request {
    let mut request = Request::new(reqwest::Method::POST, "http://127.0.0.1:8000/v1/responses".parse().unwrap());
    request.headers_mut().insert("content-type", "application/json".parse().unwrap());
    request
}

/// Allocations of a call, its body read to the end, once everything that is made once is there.
fn of_a_call(client: &ClientWithMiddleware) -> u64 {
    let call = || {
        let request = request();
        allocations(|| {
            let mut response = drive(client.execute(request)).unwrap();
            while drive(response.chunk()).unwrap().is_some() {}
        })
    };
    (0..20).map(|_| call()).min().unwrap()
}

fn bare() -> u64 {
    of_a_call(&ClientBuilder::new(reqwest::Client::new()).with(Canned).build())
}

fn ours(telemetry: &Telemetry) -> u64 {
    let middleware = TracePropagation::builder().with_telemetry(telemetry).build();
    of_a_call(&ClientBuilder::new(reqwest::Client::new()).with(middleware).with(Canned).build())
}

#[test]
fn of_outgoing_calls() {
    let reader = PeriodicReader::builder(InMemoryMetricExporter::default()).build();
    let telemetry = Telemetry::builder()
        .with_environment(Default::default())
        .with_tracer_provider(SdkTracerProvider::builder().build())
        .with_meter_provider(SdkMeterProvider::builder().with_reader(reader).build())
        .with_parent_based_sampler()
        .build();
    let bare = bare();
    assert_eq!(ours(&Telemetry::disabled()) - bare, 0);
    let sampled = {
        let _attached = parent(true).attach();
        ours(&telemetry)
    };
    assert!(sampled - bare <= 11, "{}", sampled - bare);
    assert!(sampled > bare);
    let unsampled = {
        let _attached = parent(false).attach();
        ours(&telemetry)
    };
    assert!(unsampled - bare <= 3, "{}", unsampled - bare);
}

#[test]
fn of_spans_that_are_off() {
    let off = Telemetry::disabled();
    let attributes = || [KeyValue::new("a", "text".to_owned())];
    let traced = off.trace_fn(Verify, "f").wrap(|n: u32| n + 1);
    let count = allocations(|| {
        off.managed_span(Verify, "m").with_attributes(attributes).in_scope(|span| span.set_attributes(attributes));
        off.span_cm("c").with_attributes(attributes).try_in_scope(|_| Err::<(), _>("failed")).unwrap_err();
        drop(off.client_span("h").enter());
        drive(off.managed_span(Verify, "m").run(std::future::ready(1)));
        traced(1);
    });
    assert_eq!(count, 0);
}
