//! The `telemetry:` block: upstream's recorded validation, both formats, interpolations, and back out.

use std::time::{Duration, Instant};

use nemo_gym_telemetry::{ConfigError, Environment, TELEMETRY_CONFIG_KEY, TelemetryConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

fn recorded() -> Vec<Value> {
    let table: Value = serde_json::from_str(include_str!("golden/config_validation.json")).expect("a table");
    table["cases"].as_array().expect("cases").clone()
}

/// A block within a configuration as JSON text, YAML text, and value; and the block alone.
fn all_ways(block: &Value) -> [Result<TelemetryConfig, (String, String)>; 3] {
    let told = |e: ConfigError| (e.field().to_owned(), e.kind().as_str().to_owned());
    let configuration =
        json!({ "policy_model": { "responses_api_models": {} }, TELEMETRY_CONFIG_KEY: block, "z": [1] });
    let env = Environment::default();
    let yaml = serde_norway::to_string(&configuration).expect("YAML");
    [
        TelemetryConfig::from_global_config_in(&configuration.to_string(), &env).map_err(told),
        TelemetryConfig::from_global_config_in(&yaml, &env).map_err(told),
        TelemetryConfig::from_global_config_in(&configuration, &env).map_err(told),
    ]
}

#[test]
fn validation_is_upstream_s() {
    let cases = recorded();
    for case in &cases {
        let block = &case["telemetry"];
        let found = all_ways(block);
        let alone = serde_json::from_value::<TelemetryConfig>(block.clone());
        if case.get("rejected").is_some() {
            let error = &case["errors"][0];
            let path = error["loc"].as_array().expect("loc").iter().map(|p| p.as_str().expect("name"));
            let field = path.collect::<Vec<_>>().join(".");
            for found in found {
                let (told_field, told_kind) = found.expect_err(&block.to_string());
                assert_eq!((told_field.as_str(), json!(told_kind)), (field.as_str(), error["type"].clone()), "{block}");
            }
            let text = alone.expect_err(&block.to_string()).to_string();
            let named = if field.is_empty() { "telemetry: ".to_owned() } else { format!("telemetry.{field}: ") };
            assert!(text.contains(&named), "{block}: {text}");
        } else {
            let mut parsed = case["parsed"].clone();
            for extra in case["extra"].as_array().expect("extra") {
                parsed.as_object_mut().expect("a model").remove(extra.as_str().expect("key"));
            }
            // An unknown key of the inner mapping is recorded nowhere else.
            if let Some(memory) = parsed["memory_profiling"].as_object_mut() {
                memory.retain(|key, _| ["enabled", "interval_seconds"].contains(&key.as_str()));
            }
            for found in found.into_iter().chain([alone.map_err(|e| (String::new(), e.to_string()))]) {
                let config = found.unwrap_or_else(|e| panic!("{block}: {e:?}"));
                assert_eq!(serde_json::to_value(&config).expect("JSON"), parsed, "{block}");
                // What goes out comes back in.
                let back: TelemetryConfig = serde_json::from_value(parsed.clone()).expect("its own output");
                assert_eq!(back, config);
                let yaml = serde_norway::to_string(&config).expect("YAML");
                assert_eq!(serde_norway::from_str::<TelemetryConfig>(&yaml).expect("its own YAML"), config);
            }
        }
    }
    assert_eq!(cases.len(), 89);
}

/// More of the kinds that the table shows.
#[test]
fn lax_parsing_kinds() {
    let enabled = |value: Value| all_ways(&json!({ "enabled": value })).map(|r| r.map(|c| c.enabled).map_err(|e| e.1));
    for yes in ["1", "true", "T", "yEs", "Y", "oN"] {
        assert_eq!(enabled(json!(yes)), [Ok(true), Ok(true), Ok(true)], "{yes}");
    }
    for no in ["0", "False", "F", "nO", "N", "oFF"] {
        assert_eq!(enabled(json!(no)), [Ok(false), Ok(false), Ok(false)], "{no}");
    }
    let parsing = || Err::<bool, _>("bool_parsing".to_owned());
    for bad in
        [json!(-1), json!(2.0), json!(" 1"), json!("on "), json!("tru"), json!("1.0"), json!(1e300), json!(u64::MAX)]
    {
        assert_eq!(enabled(bad.clone()), [parsing(), parsing(), parsing()], "{bad}");
    }
    let kind = || Err::<bool, _>("bool_type".to_owned());
    for bad in [json!(0.5), json!({}), json!([true])] {
        assert_eq!(enabled(bad.clone()), [kind(), kind(), kind()], "{bad}");
    }

    let interval = |value: Value| {
        all_ways(&json!({ "memory_profiling": { "interval_seconds": value } }))
            .map(|r| r.map(|c| c.memory_profiling.interval_seconds).map_err(|(field, kind)| format!("{field} {kind}")))
    };
    let good = [
        (json!(" 1_000.5 "), 1000.5),
        (json!("1e-3"), 1e-3),
        (json!(".5"), 0.5),
        (json!("5."), 5.0),
        (json!("+3"), 3.0),
        (json!("Infinity"), f64::INFINITY),
        (json!(u64::MAX), u64::MAX as f64),
        (json!(1e-300), 1e-300),
    ];
    for (value, expected) in good {
        assert_eq!(interval(value.clone()), [Ok(expected), Ok(expected), Ok(expected)], "{value}");
    }
    for (value, kind) in [
        (json!(""), "float_parsing"),
        (json!("1_"), "float_parsing"),
        (json!("1__0"), "float_parsing"),
        (json!("0x10"), "float_parsing"),
        (json!("1 2"), "float_parsing"),
        (json!("-inf"), "greater_than"),
        (json!("-0"), "greater_than"),
        (json!(false), "greater_than"),
        (json!([1]), "float_type"),
        (json!({}), "float_type"),
    ] {
        let error = || Err(format!("memory_profiling.interval_seconds {kind}"));
        assert_eq!(interval(value.clone()), [error(), error(), error()], "{value}");
    }
}

#[test]
fn configurations_without_a_block_are_disabled() {
    for text in ["", "  \n", "null", "~", "{}", "a: 1\n", "# nothing\n", "telemetry:\n", "{\"telemetry\": null}"] {
        let config = TelemetryConfig::from_global_config_in(text, &Environment::default());
        assert_eq!(config, Ok(TelemetryConfig::default()), "{text}");
    }
}

#[test]
fn documents_that_are_no_mapping_are_errors() {
    for text in ["[]", "- 1\n- 2\n", "telemetry", "5", "true", "\"{}\"", "1.5"] {
        let error = TelemetryConfig::from_global_config_in(text, &Environment::default()).expect_err(text);
        assert_eq!((error.field(), error.kind().as_str()), ("", "model_type"), "{text}");
    }
    for text in ["{", "a: [1", "\ta: 1", "a: b: c", "%", "a: *unknown", "a: 1\n---\nb: 2\n", "\0"] {
        let error = TelemetryConfig::from_global_config_in(text, &Environment::default()).expect_err(text);
        assert_eq!(error.kind().as_str(), "syntax", "{text}: {error}");
        assert!(error.to_string().starts_with("the configuration: "), "{error}");
    }
}

/// Depth and aliases that would eat the stack or the memory.
#[test]
fn hostile_documents_are_errors_or_ignored() {
    let deep_json = format!("{{\"a\": {}{}, \"telemetry\": {{}}}}", "[".repeat(200_000), "]".repeat(200_000));
    let deep_yaml = format!("a: {}{}\ntelemetry: {{}}\n", "[".repeat(20_000), "]".repeat(20_000));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let list = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    bomb.push_str("telemetry: {span_groups: *a11}\n");
    // Nothing has to be kept of what is skipped, however deep.
    let skipped = TelemetryConfig::from_global_config_in(&deep_json, &Environment::default());
    assert_eq!(skipped, Ok(TelemetryConfig::default()));
    let wanted = format!("{{\"telemetry\": {}{}}}", "{\"a\": ".repeat(100_000), "}".repeat(100_000));
    let nested = ["- ", "? ", "a: [", "{a: ", "!t ", "&a ", "[{", "  ", "'", "\"\\", "|\n", "%\n", "- a\n"]
        .map(|s| s.repeat(100_000));
    let start = Instant::now();
    for text in [wanted, deep_yaml, bomb].into_iter().chain(nested.map(|text| format!("telemetry: {text}"))) {
        let found = TelemetryConfig::from_global_config_in(&text, &Environment::default());
        assert!(found.is_err() || found == Ok(TelemetryConfig::default()), "{:.60}", text);
        assert!(start.elapsed() < Duration::from_secs(60), "{:.60}", text);
    }
}

#[test]
fn yaml_of_its_own_kinds() {
    let text = "
base: &base
  enabled: true
  exporter: console
1: a number for a key
? [a, list]
: a list for a key
telemetry:
  <<: *base
  exporter: otlp
  service_name: !!str 5
  memory_profiling: {interval_seconds: .inf}
  2: ignored
";
    let config = TelemetryConfig::from_global_config_in(text, &Environment::default()).expect("YAML");
    assert!(config.enabled);
    assert_eq!((config.exporter.as_str(), config.service_name.as_str()), ("otlp", "5"));
    assert_eq!(config.memory_profiling.interval_seconds, f64::INFINITY);

    // Of a repeated key the last one counts, as with Python's parsers.
    for text in ["telemetry: {exporter: a, exporter: b}", "{\"telemetry\": {\"exporter\": \"a\", \"exporter\": \"b\"}}"]
    {
        let config = TelemetryConfig::from_global_config_in(text, &Environment::default()).expect(text);
        assert_eq!(config.exporter, "b", "{text}");
    }
}

#[test]
fn interpolations_are_resolved() {
    let env = Environment::from_iter([
        ("HOST", "collector"),
        ("PADDED", " x "),
        ("BLANK", " "),
        ("YES", "yes"),
        ("HALF", "0.5"),
        ("DOLLAR", "${oc.env:HOST}"),
    ]);
    let cases = [
        ("${oc.env:HOST}", Some("collector")),
        ("http://${oc.env:HOST}:4317", Some("http://collector:4317")),
        ("${oc.env:HOST}-${oc.env:HOST}", Some("collector-collector")),
        ("${oc.env:HOST,other}", Some("collector")),
        ("${oc.env:UNSET,other}", Some("other")),
        ("${oc.env: UNSET , other }", Some("other")),
        ("${oc.env:BLANK,other}", Some("other")),
        ("${oc.env:PADDED}", Some(" x ")),
        ("${oc.env:UNSET,}", Some("")),
        ("${oc.env:UNSET,''}", Some("")),
        ("${oc.env:UNSET,'a,b'}", Some("a,b")),
        ("${oc.env:UNSET,\"a}b\"}", Some("a}b")),
        ("${oc.env:UNSET,'it\\'s'}", Some("it's")),
        ("${oc.env:UNSET,null}", None),
        ("${oc.env:UNSET,'null'}", Some("null")),
        ("${oc.env:UNSET,${oc.env:HOST}}", Some("collector")),
        ("${oc.env:UNSET,${oc.env:BLANK,x-${oc.env:HOST}}}", Some("x-collector")),
        ("${oc.env:UNSET,'${oc.env:HOST}'}", Some("collector")),
        ("http://${oc.env:UNSET,localhost}:4317", Some("http://localhost:4317")),
        ("\\${oc.env:HOST}", Some("${oc.env:HOST}")),
        ("\\\\${oc.env:HOST}", Some("\\collector")),
        ("$HOST and $$ and {}", Some("$HOST and $$ and {}")),
        // What a variable holds is not looked into again.
        ("${oc.env:DOLLAR}", Some("${oc.env:HOST}")),
    ];
    for (text, expected) in cases {
        let block = json!({ "telemetry": { "otlp_endpoint": text } });
        let config = TelemetryConfig::from_global_config_in(&block, &env).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(config.otlp_endpoint.as_deref(), expected, "{text}");
    }

    let block = json!({ "telemetry": {
        "enabled": "${oc.env:YES}",
        "memory_profiling": { "enabled": "${oc.env:UNSET,on}", "interval_seconds": "${oc.env:HALF}" },
    }});
    let config = TelemetryConfig::from_global_config_in(&block, &env).expect("a block");
    assert!(config.enabled && config.memory_profiling.enabled);
    assert_eq!(config.memory_profiling.interval_seconds, 0.5);
    // The whole block.
    let block = json!({ "telemetry": "${oc.env:UNSET,null}" });
    assert_eq!(TelemetryConfig::from_global_config_in(&block, &env), Ok(TelemetryConfig::default()));
}

#[test]
fn unresolvable_interpolations_name_the_field() {
    let env = Environment::from_iter([("BLANK", ""), ("HOST", "h")]);
    let texts = [
        "${oc.env:UNSET}",
        "${oc.env:BLANK}",
        "http://${oc.env:UNSET}:4317",
        "${oc.env:HOST}${oc.env:UNSET}",
        "x${oc.env:UNSET,null}",
        "${oc.env:}",
        "${oc.env}",
        "${HOST}",
        "${oc.decode:HOST}",
        "${telemetry.exporter}",
        "${oc.env:HOST",
        "${",
        "${}",
        "${oc.env:UNSET,a,b}",
        "${oc.env:UNSET,${oc.env:ALSO}}",
        "${oc.env:UNSET,'${oc.env:ALSO}'}",
        "\\\\${oc.env:UNSET}",
    ];
    for text in texts {
        for field in ["otlp_headers", "service_name", "enabled", "memory_profiling", "event_loop_task_count"] {
            let block = json!({ "telemetry": { field: text } });
            let error = TelemetryConfig::from_global_config_in(&block, &env).expect_err(text);
            assert_eq!((error.field(), error.kind().as_str()), (field, "interpolation"), "{text}");
            assert!(error.to_string().contains(field) && !error.to_string().contains(text), "{error}");
        }
        // Without an environment nothing is resolved, and nothing passes for text.
        let error = serde_json::from_value::<TelemetryConfig>(json!({ "run_id": text })).expect_err(text);
        assert!(error.to_string().contains("telemetry.run_id"), "{error}");
    }
    let deep = format!("{}x{}", "${oc.env:UNSET,".repeat(10_000), "}".repeat(10_000));
    let block = json!({ "telemetry": { "run_id": deep } });
    assert!(TelemetryConfig::from_global_config_in(&block, &env).is_err());
    let memory = json!({ "telemetry": { "memory_profiling": { "interval_seconds": "${oc.env:UNSET}" } } });
    let error = TelemetryConfig::from_global_config_in(&memory, &env).expect_err("unset");
    assert_eq!(error.field(), "memory_profiling.interval_seconds");
    // Unknown keys stay ignored.
    let unknown = json!({ "telemetry": { "other": "${oc.env:UNSET}" } });
    assert!(TelemetryConfig::from_global_config_in(&unknown, &env).is_ok());
}

/// The page's example is a block, and its values are the defaults.
#[test]
fn the_documented_block_is_one() {
    let page = include_str!("../docs/configuration.md");
    let (_, rest) = page.split_once("```yaml\n").expect("an example");
    let (yaml, _) = rest.split_once("```").expect("its end");
    let config = TelemetryConfig::from_global_config_in(yaml, &Environment::default()).expect("a block");
    let mut expected = TelemetryConfig::default();
    expected.enabled = true;
    expected.otlp_endpoint = Some("http://localhost:4317".to_owned());
    assert_eq!(config, expected);
    let fields = serde_json::to_value(&config).expect("JSON");
    for field in fields.as_object().expect("fields").keys() {
        assert!(yaml.contains(&format!("  {field}:")), "{field} is not shown");
    }
}

#[test]
fn debug_shows_no_secrets() {
    let block = json!({ "otlp_headers": "authorization=hunter2", "otlp_endpoint": "http://u:hunter2@h" });
    let config: TelemetryConfig = serde_json::from_value(block).expect("a block");
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No text whatever makes it panic, and no error shows the text.
    #[test]
    fn any_document_is_read_or_refused(text in prop_oneof![
        any::<String>(),
        "telemetry: [a-z{}\\[\\]:,&*!|>'\" \n\t#%-]{0,60}",
        "\\{\"telemetry\": [a-z{}\\[\\]:,\" 0-9.-]{0,40}\\}",
    ]) {
        let _ = TelemetryConfig::from_global_config_in(&text, &Environment::default());
    }

    #[test]
    fn any_interpolation_is_resolved_or_refused(text in "[${}oc.env:AB,'\"\\\\ ]{0,40}") {
        let block = json!({ "telemetry": { "otlp_endpoint": &text } });
        let env = Environment::from_iter([("A", "1")]);
        match TelemetryConfig::from_global_config_in(&block, &env) {
            Ok(config) => {
                let escaped = text.contains("\\${");
                let sent = config.otlp_endpoint.unwrap_or_default();
                prop_assert!(escaped || !sent.contains("${"), "{text} gives {sent}");
            }
            Err(error) => prop_assert_eq!(error.kind().as_str(), "interpolation"),
        }
    }
}
