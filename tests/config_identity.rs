//! Who a server is: its code, its environment, its code's default (design decision 10).

use std::time::{Duration, Instant};

use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType};
use proptest::prelude::*;

const CONFIGURATION: &str = "
policy_model:
  responses_api_models:
    openai_model: {entrypoint: app.py}
math_agent:
  responses_api_agents:
    simple_agent: {entrypoint: app.py}
math: {resources_servers: {math: {entrypoint: app.py}}}
env: {environment_servers: {}}
noted: {comment: text, resources_servers: {}}
odd: {my_servers: {}}
two: {mine: {}, yours: {}}
list: [resources_servers]
text: resources_servers
nothing: null
";

fn environment(name: &str, configuration: &str) -> Environment {
    Environment::from_iter([("NEMO_GYM_CONFIG_PATH", name), ("NEMO_GYM_CONFIG_DICT", configuration)])
}

fn seen(identity: &ServerIdentity) -> (Option<&str>, Option<&str>) {
    (identity.name(), identity.server_type().map(ServerType::as_str))
}

#[test]
fn the_environment_tells_name_and_type() {
    let json = serde_json::to_string(&serde_norway::from_str::<serde_json::Value>(CONFIGURATION).expect("YAML"))
        .expect("JSON");
    let cases = [
        ("policy_model", Some("responses_api_models")),
        (" math_agent ", Some("responses_api_agents")),
        ("math", Some("resources_servers")),
        ("env", Some("environment_servers")),
        ("noted", Some("resources_servers")),
        ("odd", Some("my_servers")),
        ("two", None),
        ("list", None),
        ("text", None),
        ("nothing", None),
        ("absent", None),
    ];
    for configuration in [CONFIGURATION, json.as_str()] {
        for (name, server_type) in cases {
            let identity = ServerIdentity::resolve(None, &environment(name, configuration), None);
            assert_eq!(seen(&identity), (Some(name.trim()), server_type));
        }
    }
    assert_eq!(seen(&ServerIdentity::resolve(None, &environment(" ", CONFIGURATION), None)), (None, None));
}

#[test]
fn code_beats_environment_beats_default() {
    let env = environment("policy_model", CONFIGURATION);
    let explicit = ServerIdentity::new("mine", ServerType::ResourcesServers);
    let default = ServerIdentity::new("fallback", ServerType::ResponsesApiAgents);
    let resolve = |explicit: Option<&ServerIdentity>, env: &Environment| {
        ServerIdentity::resolve(explicit.cloned(), env, Some(default.clone()))
    };
    assert_eq!(seen(&resolve(Some(&explicit), &env)), (Some("mine"), Some("resources_servers")));
    assert_eq!(seen(&resolve(None, &env)), (Some("policy_model"), Some("responses_api_models")));
    let nothing = Environment::default();
    assert_eq!(seen(&resolve(None, &nothing)), (Some("fallback"), Some("responses_api_agents")));
    assert_eq!(seen(&resolve(Some(&explicit), &nothing)), (Some("mine"), Some("resources_servers")));

    // Each half by itself: what the code leaves open, the environment fills.
    let named = ServerIdentity::unknown().with_name("math");
    assert_eq!(seen(&resolve(Some(&named), &env)), (Some("math"), Some("resources_servers")));
    let typed = ServerIdentity::unknown().with_server_type(ServerType::EnvironmentServers);
    assert_eq!(seen(&resolve(Some(&typed), &env)), (Some("policy_model"), Some("environment_servers")));
    let only_name = Environment::from_iter([("NEMO_GYM_CONFIG_PATH", "other")]);
    assert_eq!(seen(&resolve(None, &only_name)), (Some("other"), Some("responses_api_agents")));
    let blank = environment("", "");
    assert_eq!(seen(&resolve(None, &blank)), (Some("fallback"), Some("responses_api_agents")));
}

#[test]
fn junk_leaves_the_type_unknown() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", ")));
    }
    bomb.push_str("s: *a11\n");
    let junk = [
        "{".to_owned(),
        "s: [".to_owned(),
        "\0\u{1}\u{7f}".to_owned(),
        "[]".to_owned(),
        "resources_servers".to_owned(),
        "s".repeat(1 << 20),
        "{\"s\": {\"resources_servers\": ".repeat(50_000),
        format!("s: {}", "{a: ".repeat(20_000)),
        format!("{{\"s\": {{\"{}\": 1}}}}", "t".repeat(1 << 16)),
        "{\"s\": {\"bad\\ntype\": 1}}".to_owned(),
        "{\"s\": {\"\": 1}}".to_owned(),
        "s: {1: x}".to_owned(),
        bomb,
    ];
    for text in junk {
        let start = Instant::now();
        let identity = ServerIdentity::resolve(None, &environment("s", &text), None);
        assert_eq!(seen(&identity), (Some("s"), None), "{:.80}", text);
        assert!(start.elapsed() < Duration::from_secs(20), "{:.80}", text);
    }
    // Huge, and right all the same.
    let many: String = (0..20_000).map(|i| format!("server_{i}: {{resources_servers: {{}}}}\n")).collect();
    let identity = ServerIdentity::resolve(None, &environment("server_19999", &many), None);
    assert_eq!(seen(&identity), (Some("server_19999"), Some("resources_servers")));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_environment_gives_an_identity(name: String, text in prop_oneof![any::<String>(), "[a-z{}\\[\\]:,&*\" \n]{0,80}"]) {
        let identity = ServerIdentity::resolve(None, &environment(&name, &text), None);
        prop_assert!(identity.name().is_none_or(|n| !n.trim().is_empty()));
        prop_assert!(identity.server_type().is_none_or(|t| !t.as_str().is_empty()));
    }
}
