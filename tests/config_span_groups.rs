//! Upstream's recorded resolution of span group specifications.

use std::collections::BTreeSet;

use nemo_gym_telemetry::SpanGroups;
use serde_json::Value;

#[test]
fn specifications_resolve_as_upstream_s() {
    let table: Value = serde_json::from_str(include_str!("golden/span_groups.json")).expect("a table");
    let cases = table["cases"].as_array().expect("cases");
    let texts = |value: &Value| -> BTreeSet<String> {
        value.as_array().expect("a list").iter().map(|v| v.as_str().expect("text").to_owned()).collect()
    };
    for case in cases {
        let spec = case["spec"].as_str().expect("spec");
        let (groups, unknown) = SpanGroups::resolve(spec);
        let names: BTreeSet<String> = groups.iter().map(|g| g.as_str().to_owned()).collect();
        assert_eq!(names, texts(&case["groups"]), "{spec:?}");
        assert_eq!(unknown.into_iter().collect::<BTreeSet<_>>(), texts(&case["unknown"]), "{spec:?}");
    }
    assert_eq!(cases.len(), 70);
}
