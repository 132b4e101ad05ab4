use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use opentelemetry::{Array, KeyValue, Value};
use opentelemetry_sdk::Resource;
use serde_json::{Map, json};

use super::{Machine, count_gpus, resource, resource_on};
use crate::config::settings::{ExporterChoice, Settings};
use crate::config::tests::{Golden, cases, environment};
use crate::config::{Environment, ServerIdentity, ServerType};

const PID: u32 = 4711;

fn machine() -> Machine {
    Machine { host_name: Some("<hostname>".to_owned()), pid: PID, kubernetes_secrets: false, gpus: || None }
}

fn attributes(resource: &Resource) -> BTreeMap<String, serde_json::Value> {
    let value = |value: &Value| match value {
        Value::Bool(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::String(v) => json!(v.as_str()),
        Value::Array(Array::String(v)) => json!(v.iter().map(|s| s.as_str()).collect::<Vec<_>>()),
        other => panic!("not expected here: {other:?}"),
    };
    resource.iter().map(|(key, v)| (key.as_str().to_owned(), value(v))).collect()
}

fn of(
    variables: &[(&str, &str)],
    identity: &ServerIdentity,
    extra: &[KeyValue],
) -> BTreeMap<String, serde_json::Value> {
    let env: Environment = variables.iter().copied().collect();
    let (settings, _) = Settings::resolve(&env, None);
    attributes(&resource_on(&machine(), &env, &settings, identity, None, extra).0)
}

fn identity(case: &serde_json::Value) -> ServerIdentity {
    let mut identity = ServerIdentity::unknown();
    if let Some(name) = case["server_name"].as_str() {
        identity = identity.with_name(name);
    }
    if let Some(server_type) = case["server_type"].as_str() {
        identity = identity.with_server_type(ServerType::from(server_type));
    }
    identity
}

/// Differences that every resource has, after the rows of *Decisions* they follow. Counts how often
/// each one was one.
fn intended(case: &serde_json::Value, upstream: &mut Map<String, serde_json::Value>, met: &mut BTreeMap<&str, u32>) {
    let mut differ = |row: &'static str, name: &str, ours: Option<serde_json::Value>| {
        let theirs = match &ours {
            Some(value) => upstream.insert(name.to_owned(), value.clone()),
            None => upstream.remove(name),
        };
        assert_ne!(theirs, ours, "{}: {name} does not differ", case["name"]);
        *met.entry(row).or_default() += 1;
    };
    let text = |name: &str| case["attributes"][name].as_str().map(str::to_owned);
    differ("service.version", "service.version", None);
    if let Some((run, _)) = text("service.instance.id").as_deref().and_then(|id| id.split_once("-rank")) {
        let server = case["server_name"].as_str().filter(|n| !n.is_empty()).map(|n| format!("-{n}"));
        let ours = format!("{run}{}-{PID}", server.unwrap_or_default());
        differ("service.instance.id", "service.instance.id", Some(json!(ours)));
    }
    if text("nemo.gym.service_group").as_deref() == Some("nemo") {
        let row = "service.name without OTEL_SERVICE_NAME";
        differ(row, "nemo.gym.service_group", Some(json!("nemo-gym")));
        // Not where the caller named the service.
        if let Some(server) = text("service.name").as_deref().and_then(|name| name.strip_prefix("nemo")) {
            differ(row, "service.name", Some(json!(format!("nemo-gym{server}"))));
        }
    }
    if let Some(environment) = text("deployment.environment") {
        differ("deployment.environment", "deployment.environment.name", Some(json!(environment)));
    }
}

#[test]
fn resource_attributes() {
    let mut golden = Golden::new(include_str!("../../../tests/golden_differences/resource_attributes.json"));
    let cases = cases(include_str!("../../../tests/golden/resource_attributes.json"));
    let mut met = BTreeMap::new();
    for case in &cases {
        let env = environment(case);
        let (settings, _) = Settings::resolve(&env, None);
        let extra: Vec<KeyValue> = case["resource_attributes"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| match value.as_i64() {
                Some(number) => KeyValue::new(key.clone(), number),
                None => KeyValue::new(key.clone(), value.as_str().expect("text or number").to_owned()),
            })
            .collect();
        let (resource, _) = resource_on(&machine(), &env, &settings, &identity(case), None, &extra);
        let mut ours = attributes(&resource);
        // What names the SDK differs by nature.
        assert_eq!(ours.insert("telemetry.sdk.language".to_owned(), json!("python")), Some(json!("rust")));
        assert!(ours.insert("telemetry.sdk.version".to_owned(), json!("<sdk version>")).is_some_and(|v| v != ""));
        // Row service.version: Gym's version is this crate's.
        let version = ours.insert("nemo.gym.version".to_owned(), json!("0.7.0"));
        assert_eq!(version, Some(json!(env!("CARGO_PKG_VERSION"))));
        if case["attributes"]["nemo.run.id"] == "<12hex>" {
            let id = settings.run_id.as_str();
            assert!(id.len() == 12 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{id}");
            for value in ours.values_mut().filter(|value| value.is_string()) {
                *value = json!(value.as_str().map(|text| text.replace(id, "<12hex>")));
            }
        }

        let mut upstream = case.clone();
        upstream["on"] = json!(case.get("attributes").is_some());
        if let Some(attributes) = upstream["attributes"].as_object_mut() {
            attributes.insert("process.pid".to_owned(), json!(PID));
            intended(case, attributes, &mut met);
        }
        let on = |exporter: ExporterChoice| exporter != ExporterChoice::Off;
        let mut groups: Vec<_> = settings.span_groups.iter().map(|g| g.as_str()).collect();
        groups.sort_unstable();
        let actual = if settings.enabled {
            json!({
                "on": true,
                "attributes": ours,
                "groups": groups,
                "traces": on(settings.traces),
                "metrics_active": on(settings.metrics),
            })
        } else {
            json!({ "on": false, "attributes": null })
        };
        golden.compare(case["name"].as_str().expect("name"), &upstream, actual);
    }
    golden.finish(cases.len());
    let rows =
        ["deployment.environment", "service.instance.id", "service.name without OTEL_SERVICE_NAME", "service.version"];
    assert_eq!(met.keys().copied().collect::<Vec<_>>(), rows);
}

/// SUP-03: two processes of one server are two instances.
#[test]
fn instances_differ_by_process_unless_the_user_names_them() {
    let id = ServerIdentity::new("policy", ServerType::ResponsesApiModels);
    let env: Environment = [("NEMO_GYM_OTEL_RUN_ID", "r1")].into_iter().collect();
    let (settings, _) = Settings::resolve(&env, None);
    let instance = |pid| {
        let machine = Machine { pid, ..machine() };
        let (resource, _) = resource_on(&machine, &env, &settings, &id, None, &[]);
        attributes(&resource)["service.instance.id"].clone()
    };
    assert_eq!(instance(1), "r1-policy-1");
    assert_eq!(instance(2), "r1-policy-2");

    let named = [("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine")];
    assert_eq!(of(&named, &id, &[])["service.instance.id"], "mine");
    assert_eq!(of(&named, &id, &[KeyValue::new("service.instance.id", "coded")])["service.instance.id"], "coded");
}

#[test]
fn both_names_of_the_deployment_environment_are_set_whoever_gives_one() {
    let unknown = ServerIdentity::unknown();
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [KeyValue], Option<&'a str>);
    let cases: [Case<'_>; 6] = [
        (&[("DEPLOYMENT_ENV", "prod"), ("ENVIRONMENT", "x")], &[], Some("prod")),
        (&[("DEPLOYMENT_ENV", " "), ("ENVIRONMENT", "stage")], &[], Some("stage")),
        (&[("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=dev")], &[], Some("dev")),
        (&[("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=dev")], &[], Some("dev")),
        (&[], &[KeyValue::new("deployment.environment.name", "coded")], Some("coded")),
        (&[("DEPLOYMENT_ENV", ""), ("ENVIRONMENT", "\t")], &[], None),
    ];
    for (variables, extra, expected) in cases {
        let attributes = of(variables, &unknown, extra);
        for name in ["deployment.environment", "deployment.environment.name"] {
            assert_eq!(attributes.get(name).and_then(|v| v.as_str()), expected, "{variables:?}");
        }
    }
}

#[test]
fn the_version_is_the_users() {
    let env = Environment::from_iter([("OTEL_RESOURCE_ATTRIBUTES", "service.version=7")]);
    let (settings, _) = Settings::resolve(&env, None);
    let version = |coded, extra: &[KeyValue]| {
        let (resource, _) = resource_on(&machine(), &env, &settings, &ServerIdentity::unknown(), coded, extra);
        attributes(&resource)["service.version"].clone()
    };
    assert_eq!(version(None, &[]), "7");
    assert_eq!(version(Some("1.2.3"), &[]), "1.2.3");
    assert_eq!(version(Some("1.2.3"), &[KeyValue::new("service.version", "over")]), "over");
}

#[test]
fn broken_entries_of_otel_resource_attributes_go_one_by_one() {
    type Case = (&'static str, &'static [(&'static str, &'static str)], usize);
    let cases: [Case; 9] = [
        ("a=%20b%2Cc, d = e ,bad,=x", &[("a", " b,c"), ("d", "e")], 1),
        ("a=b=c,d=", &[("a", "b=c"), ("d", "")], 0),
        ("a=50%,b=%zz,c=%4,d=ok", &[("d", "ok")], 1),
        ("a=%FF%FE,b=1", &[("b", "1")], 1),
        ("a=caf%C3%A9,b=1", &[("a", "café"), ("b", "1")], 0),
        ("a=1,a=2", &[("a", "2")], 0),
        (",,a=1,,", &[("a", "1")], 0),
        ("a%2Cb=1", &[("a,b", "1")], 0),
        ("%20=1, =2,b=3", &[(" ", "1"), ("b", "3")], 1),
    ];
    let plain = of(&[], &ServerIdentity::unknown(), &[]);
    for (text, expected, warnings) in cases {
        let env = Environment::from_iter([("OTEL_RESOURCE_ATTRIBUTES", text)]);
        let (settings, _) = Settings::resolve(&env, None);
        let (resource, said) = resource_on(&machine(), &env, &settings, &ServerIdentity::unknown(), None, &[]);
        let mut found = attributes(&resource);
        found.retain(|name, _| !plain.contains_key(name));
        let expected: BTreeMap<_, _> = expected.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        assert_eq!(found, expected, "{text}");
        assert_eq!(said.len(), warnings, "{text}: {said:?}");
        assert!(said.iter().all(|w| w.starts_with("OTEL_RESOURCE_ATTRIBUTES ")), "{said:?}");
    }
}

#[test]
fn kubernetes_is_told_by_its_secrets_too() {
    let env = Environment::from_iter([("K8S_NAMESPACE", "ns"), ("HOSTNAME", "pod-0"), ("K8S_POD_NAME", " ")]);
    let (settings, _) = Settings::resolve(&env, None);
    let on = |kubernetes_secrets| {
        let machine = Machine { kubernetes_secrets, ..machine() };
        attributes(&resource_on(&machine, &env, &settings, &ServerIdentity::unknown(), None, &[]).0)
    };
    assert_eq!(on(true)["k8s.pod.name"], "pod-0");
    assert_eq!(on(true)["k8s.namespace.name"], "ns");
    assert!(!on(false).keys().any(|name| name.starts_with("k8s.")));
}

#[test]
fn gpus_are_counted_only_where_cuda_visible_devices_is_unset() {
    let count = |variables: &[(&str, &str)]| {
        let env: Environment = variables.iter().copied().collect();
        let (settings, _) = Settings::resolve(&env, None);
        let machine = Machine { gpus: || Some(8), ..machine() };
        attributes(&resource_on(&machine, &env, &settings, &ServerIdentity::unknown(), None, &[]).0)["host.gpu.count"]
            .clone()
    };
    assert_eq!(count(&[]), 8);
    assert_eq!(count(&[("CUDA_VISIBLE_DEVICES", "0")]), 1);
    assert_eq!(count(&[("CUDA_VISIBLE_DEVICES", "  ")]), 0);
    assert_eq!(count(&[("CUDA_VISIBLE_DEVICES", " 0,1 ")]), 2);
}

/// A stand-in for `nvidia-smi`.
#[cfg(unix)]
fn script(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[cfg(unix)]
#[test]
fn nvidia_smi_is_believed_only_when_it_succeeds() {
    let patient = Duration::from_secs(60);
    assert_eq!(count_gpus(script("printf '0\\n1\\n\\n2\\n'"), patient), Some(3));
    assert_eq!(count_gpus(script("printf '0\\n'; exit 9"), patient), None);
    assert_eq!(count_gpus(script(":"), patient), None);
    assert_eq!(count_gpus(script("printf '\\377\\n\\376\\n'"), patient), Some(2));
    // It closes its output and lives on for a moment.
    assert_eq!(count_gpus(script("printf '0\\n1\\n'; exec >&-; sleep 0.05"), patient), Some(2));
    assert_eq!(count_gpus(Command::new("/nonexistent/nvidia-smi"), patient), None);
}

#[cfg(unix)]
#[test]
fn a_hanging_nvidia_smi_is_not_waited_for() {
    let hanging = [
        "exec sleep 600",
        "printf '0\\n'; exec sleep 600",
        "exec >&-; exec sleep 600",
        "printf '0\\n'; exec >&-; exec sleep 600",
        // Its output is held open by a process of its own.
        "sleep 5 & printf '0\\n'",
        "trap '' TERM; exec sleep 600",
    ];
    for script_text in hanging {
        let start = Instant::now();
        assert_eq!(count_gpus(script(script_text), Duration::from_millis(200)), None, "{script_text}");
        assert!(start.elapsed() < Duration::from_secs(4), "{script_text}: {:?}", start.elapsed());
    }
}

#[cfg(unix)]
#[test]
fn an_endless_nvidia_smi_is_cut_off() {
    let start = Instant::now();
    assert_eq!(count_gpus(script("exec yes"), Duration::from_secs(5)), None);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn this_machine_has_a_name_and_this_process_an_id() {
    let env = Environment::from_iter([("CUDA_VISIBLE_DEVICES", "")]);
    let (settings, _) = Settings::resolve(&env, None);
    let (resource, warnings) = resource(&env, &settings, &ServerIdentity::unknown(), None, &[]);
    let attributes = attributes(&resource);
    assert_eq!(attributes["process.pid"], std::process::id());
    assert!(attributes["host.name"].as_str().is_some_and(|name| !name.is_empty()));
    assert_eq!(warnings, [""; 0]);
}
