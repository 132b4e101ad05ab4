//! Several workers of one server: one name, one run, as many instances (casebook SUP-03).

#![cfg(feature = "otlp-grpc")]

mod e2e;
mod otlp_support;

use std::collections::{BTreeMap, BTreeSet};

use e2e::process::{Server, example};
use nemo_gym_telemetry::{TelemetryConfig, configure_telemetry_env};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::resource::v1::Resource;
use otlp_support::{Collector, Received};

const WORKERS: usize = 3;
const REQUESTS: usize = 300;

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

/// What tells processes apart, and what they share.
fn identity(resource: Option<&Resource>) -> (String, [Option<String>; 2]) {
    let attributes = &resource.unwrap().attributes;
    let instance = text(attributes, "service.instance.id").expect("an instance id");
    (instance, ["service.name", "nemo.run.id"].map(|key| text(attributes, key)))
}

/// Requests served, in the order of the exports, by instance.
fn served(received: &Received) -> BTreeMap<String, Vec<u64>> {
    let mut served: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for resource in received.metrics.iter().flat_map(|request| &request.resource_metrics) {
        let (instance, _) = identity(resource.resource.as_ref());
        let metrics = resource.scope_metrics.iter().flat_map(|scope| &scope.metrics);
        for metric in metrics.filter(|metric| metric.name == "http.server.request.duration") {
            if let Some(Data::Histogram(histogram)) = &metric.data {
                served.entry(instance.clone()).or_default().push(histogram.data_points.iter().map(|p| p.count).sum());
            }
        }
    }
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_one_server_are_instances_whose_counts_add_up() {
    let collector = Collector::start();
    let mut config = TelemetryConfig::default();
    config.enabled = true;
    config.otlp_endpoint = Some(collector.url());
    let environment = configure_telemetry_env(Some(&config));
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let mut command = example("resources_server");
        environment.apply_to(&mut command);
        command.args(["--port", "0"]).env("OTEL_METRIC_EXPORT_INTERVAL", "100").env("CUDA_VISIBLE_DEVICES", "");
        workers.push(Server::start(command).await);
    }

    let client = reqwest::Client::new();
    let body = serde_json::json!({"responses_create_params": {"input": []}, "response": {"output": []}});
    for request in 0..REQUESTS {
        // Not evenly: the first worker gets two of four.
        let worker = &workers[[0, 1, 0, 2][request % 4]];
        client.post(format!("{}/verify", worker.url)).json(&body).send().await.unwrap().bytes().await.unwrap();
    }
    for worker in &mut workers {
        assert!(worker.process.terminate().await.success(), "{}", worker.process.stderr());
    }

    collector.look(|received| {
        let spans = received.traces.iter().flat_map(|request| &request.resource_spans);
        let metrics = received.metrics.iter().flat_map(|request| &request.resource_metrics);
        let identities: BTreeSet<_> = spans
            .map(|s| identity(s.resource.as_ref()))
            .chain(metrics.map(|m| identity(m.resource.as_ref())))
            .collect();
        assert_eq!(identities.len(), WORKERS, "an instance is one process: {identities:?}");
        let shared: BTreeSet<_> = identities.iter().map(|(_, shared)| shared).collect();
        assert_eq!(shared.len(), 1, "one name and one run: {shared:?}");
        assert!(shared.iter().all(|shared| shared.iter().all(Option::is_some)), "{shared:?}");

        let served = served(received);
        assert_eq!(served.len(), WORKERS);
        for counts in served.values() {
            assert!(counts.is_sorted(), "no worker's export undoes another's: {counts:?}");
        }
        let newest: Vec<_> = served.values().filter_map(|counts| counts.last().copied()).collect();
        assert_eq!(newest.iter().sum::<u64>(), REQUESTS as u64);
        assert_eq!(newest.iter().max(), Some(&(REQUESTS as u64 / 2)));
    });
}
