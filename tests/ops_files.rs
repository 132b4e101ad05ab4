//! The Grafana dashboard and the Collector configuration name only what this crate emits.

use std::collections::BTreeSet;

use nemo_gym_telemetry::metrics::catalog;
use serde_json::Value;

/// Labels that Prometheus itself and the Collector's exporter add.
const SCRAPE_LABELS: [&str; 3] = ["job", "instance", "le"];

fn file(name: &str) -> String {
    let path = format!("{}/ops/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn prometheus_name(name: &str) -> String {
    name.replace('.', "_")
}

fn series() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for metric in catalog::ALL.iter().copied().flatten() {
        let name = prometheus_name(metric.name);
        match metric.kind {
            catalog::Kind::Histogram => names.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}"))),
            _ => drop(names.insert(name)),
        }
    }
    names
}

fn labels() -> BTreeSet<String> {
    let attributes = catalog::ALL.iter().copied().flatten().flat_map(|metric| metric.attributes);
    attributes.map(|key| prometheus_name(key)).chain(SCRAPE_LABELS.map(str::to_owned)).collect()
}

/// Words of a PromQL expression that stand for series, and those that stand for labels.
fn words(expression: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = expression.to_owned();
    // `by (a, b)` and `{a="b"}` hold labels.
    for (open, close) in [("by (", ")"), ("{", "}")] {
        while let Some(start) = rest.find(open) {
            let end = start + rest[start..].find(close).expect("closed");
            let inner = rest[start + open.len()..end].to_owned();
            let label = |part: &str| part.trim().split(['=', '!']).next().unwrap_or_default().to_owned();
            keys.extend(inner.split(',').map(label));
            rest.replace_range(start..=end, " ");
        }
    }
    let rest = rest.replace("[$__rate_interval]", " ");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in rest.split(|c| !is_word(c)).filter(|word| word.contains('_')) {
        if word != "histogram_quantile" {
            names.insert(word.to_owned());
        }
    }
    (names, keys)
}

#[test]
fn every_series_and_label_of_the_dashboard_exists() {
    let dashboard: Value = serde_json::from_str(&file("grafana-dashboard.json")).unwrap();
    let (series, labels) = (series(), labels());
    let mut checked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let (names, keys) = words(expression);
            assert!(!names.is_empty(), "{expression}");
            for name in names {
                assert!(series.contains(&name), "{name} in {expression}");
                checked += 1;
            }
            let legend = target["legendFormat"].as_str().unwrap();
            let shown =
                legend.split("{{").skip(1).filter_map(|part| part.split_once("}}")).map(|(key, _)| key.to_owned());
            for key in keys.into_iter().chain(shown) {
                assert!(labels.contains(&key), "label {key} in {expression}");
            }
        }
    }
    assert!(checked >= 20, "{checked}");
}

#[test]
fn every_name_of_the_collector_configuration_exists() {
    let configuration: Value = serde_norway::from_str(&file("otel-collector.yaml")).unwrap();
    let processor = &configuration["processors"]["attributes/metrics"];
    let metrics: BTreeSet<_> = catalog::ALL.iter().copied().flatten().map(|metric| metric.name).collect();
    for pattern in processor["include"]["metric_names"].as_array().unwrap() {
        let prefix = pattern.as_str().unwrap().replace("\\.", ".").replace(".*", "");
        assert!(metrics.iter().any(|name| name.starts_with(&prefix)), "{prefix}");
    }
    let attributes: BTreeSet<_> =
        catalog::ALL.iter().copied().flatten().flat_map(|metric| metric.attributes).copied().collect();
    for action in processor["actions"].as_array().unwrap() {
        let key = action["key"].as_str().unwrap();
        assert!(attributes.contains(key), "{key}");
    }
    // Every part of a pipeline is configured, and metric names reach Prometheus as the dashboard writes them.
    for (signal, pipeline) in configuration["service"]["pipelines"].as_object().unwrap() {
        for part in ["receivers", "processors", "exporters"] {
            for name in pipeline[part].as_array().unwrap() {
                assert!(configuration[part].get(name.as_str().unwrap()).is_some(), "{signal}: {name}");
            }
        }
    }
    assert_eq!(configuration["exporters"]["prometheus"]["add_metric_suffixes"], Value::Bool(false));
}
