//! Configuration as a whole: upstream's recorded tables and the kinds of faults users have met.

mod golden;
mod otlp;
mod sources;
mod standard;
mod table;
mod values;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Recorded cases of upstream with this crate's intended differences.
///
/// A file of differences maps the name of a case to the row of the contract's *Decisions* it follows
/// and to our values of the fields that differ. Every one listed must be met, must really differ from
/// upstream's, and nothing else may differ.
pub(crate) struct Golden {
    differences: BTreeMap<String, Difference>,
    failures: Vec<String>,
    compared: usize,
}

#[derive(serde::Deserialize)]
struct Difference {
    row: String,
    ours: Map<String, Value>,
}

impl Golden {
    pub(crate) fn new(differences: &str) -> Self {
        let differences = serde_json::from_str(differences).expect("a file of differences");
        Self { differences, failures: Vec::new(), compared: 0 }
    }

    /// Compares the fields that `actual` has.
    pub(crate) fn compare(&mut self, case: &str, upstream: &Value, actual: Value) {
        self.compared += 1;
        let Value::Object(actual) = actual else { panic!("fields are compared") };
        let ours = self.differences.remove(case).map(|d| {
            assert!(DECISIONS.contains(&d.row.as_str()), "{case}: no such row: {}", d.row);
            d.ours
        });
        let ours = ours.unwrap_or_default();
        for name in ours.keys().filter(|name| !actual.contains_key(*name)) {
            self.failures.push(format!("{case}: {name} is listed but not compared"));
        }
        for (name, value) in &actual {
            let theirs = upstream.get(name).unwrap_or(&Value::Null);
            let expected = ours.get(name).unwrap_or(theirs);
            if ours.contains_key(name) && expected == theirs {
                self.failures.push(format!("{case}: {name} is listed as differing and does not"));
            }
            if value != expected {
                self.failures.push(format!("{case}: {name}: {value}, expected {expected}"));
            }
        }
    }

    pub(crate) fn finish(mut self, cases: usize) {
        self.failures.extend(self.differences.keys().map(|case| format!("listed, but no such case: {case}")));
        assert!(self.failures.is_empty(), "{} failures:\n{}", self.failures.len(), self.failures.join("\n"));
        assert_eq!(self.compared, cases);
    }
}

/// The rows of *Decisions* that the differences follow.
const DECISIONS: [&str; 8] = [
    "blank environment variable",
    "a value that does not parse",
    "explicit NEMO_GYM_OTEL_ENABLED=0 with an enabled block",
    "service.name without OTEL_SERVICE_NAME",
    "service.instance.id",
    "service.version",
    "OTEL_SDK_DISABLED, OTEL_PROPAGATORS, OTEL_*_EXPORTER",
    "deployment.environment",
];

/// The names stand in the contract, where it is at hand.
#[test]
fn rows_of_decisions_are_those_of_the_contract() {
    let shared = std::env::var_os("NEMO_GYM_SHARED")
        .map_or_else(|| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), Into::into);
    match std::fs::read_to_string(shared.join("contract.md")) {
        Ok(contract) => {
            for row in DECISIONS {
                assert!(contract.contains(&format!("\n| {row} | ")), "{row}");
            }
        }
        Err(_) if std::env::var_os("NEMO_GYM_TELEMETRY_REQUIRE_ALL").is_none() => {
            eprintln!("skipped: the shared contract is not here");
        }
        Err(error) => panic!("the shared contract: {error}"),
    }
}

/// The cases of a recorded table.
pub(crate) fn cases(golden: &str) -> Vec<Value> {
    let table: Value = serde_json::from_str(golden).expect("a recorded table");
    table["cases"].as_array().expect("cases").clone()
}

/// The environment of a recorded case.
pub(crate) fn environment(case: &Value) -> super::Environment {
    let variables = case["env"].as_object().expect("env");
    variables.iter().map(|(name, value)| (name.clone(), value.as_str().expect("text").to_owned())).collect()
}
