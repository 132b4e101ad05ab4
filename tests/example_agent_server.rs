//! The example agent server calls its neighbours, in the order, under the paths and with the cookies that its Python
//! counterpart was recorded to, and answers as that did.

mod e2e;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use e2e::check;
use e2e::fleet::{Variables, telemetry_to};
use e2e::golden::{self, Exchange};
use e2e::process::{Server, example};
use e2e::stand_in::{Answer, Asked, StandIn};
use serde_json::{Value, json};

/// Flows whose bodies are those of another flow to the letter: they differ in paths, cookies or headers only.
const UNCHANGED: [&str; 7] = [
    "run_obs_off_token_capture",
    "run_obs_on_token_capture",
    "run_telemetry_off",
    "run_telemetry_off_obs_on",
    "run_inbound_trace",
    "run_inbound_trace_telemetry_off",
    "run_inbound_cookie",
];

/// An agent between two stand-ins that answer what the test tells them to.
struct Fleet {
    agent: Server,
    model: StandIn,
    resources: StandIn,
    model_answers: Arc<Mutex<VecDeque<Answer>>>,
    resources_answers: Arc<Mutex<VecDeque<Answer>>>,
    client: reqwest::Client,
}

impl Fleet {
    async fn start(observability: bool, token_capture: bool) -> Self {
        Self::start_with(observability, token_capture, Variables::new()).await
    }

    async fn start_with(observability: bool, token_capture: bool, variables: Variables) -> Self {
        let scripted = || {
            let answers = Arc::new(Mutex::new(VecDeque::<Answer>::new()));
            let queue = answers.clone();
            let answer = move |asked: &Asked| {
                let mut answer =
                    queue.lock().unwrap().pop_front().unwrap_or_else(|| Answer::json(599, &json!("unexpected")));
                if answer.body.contains("<as sent>") {
                    answer.body = echo(&answer.body, &asked.json());
                }
                answer
            };
            (answers, answer)
        };
        let ((model_answers, model), (resources_answers, resources)) = (scripted(), scripted());
        let (model, resources) = (StandIn::start(model).await, StandIn::start(resources).await);
        let mut command = example("agent_server");
        command.args(["--model-url", &model.url, "--resources-url", &resources.url]);
        let config = json!({
            "observability_enabled": observability,
            "token_id_capture": {"enabled": token_capture, "all_agents": token_capture},
        });
        command.env("NEMO_GYM_CONFIG_DICT", config.to_string()).envs(variables);
        let agent = Server::start(command).await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { agent, model, resources, model_answers, resources_answers, client }
    }

    /// Makes the stand-ins answer as in these exchanges.
    fn answer_as_in<'a>(&self, exchanges: impl IntoIterator<Item = &'a Exchange> + Clone) {
        let queue = |server: &str| {
            let of_server = exchanges.clone().into_iter().filter(|exchange| exchange.server == server);
            of_server.map(recorded_answer).collect()
        };
        *self.model_answers.lock().unwrap() = queue("model");
        *self.resources_answers.lock().unwrap() = queue("resources");
        self.model.take();
        self.resources.take();
    }

    /// Sends a recorded request to the agent and compares the answer.
    async fn replay(&self, exchange: &Exchange) -> Value {
        let method = exchange.request.method.parse().unwrap();
        let mut request = self.client.request(method, format!("{}{}", self.agent.url, exchange.request.path));
        for name in ["cookie", "traceparent", "tracestate", "baggage"] {
            if let Some(value) = exchange.request.header(name) {
                request = request.header(name, value);
            }
        }
        if let Some(json) = &exchange.request.json {
            request = request.json(json);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), exchange.status, "{}", exchange.name);
        check::headers(exchange, response.headers());
        response.json().await.unwrap()
    }

    /// Compares what the stand-ins were asked with the record, for an agent whose telemetry is off.
    fn check_calls<'a>(&self, exchanges: impl IntoIterator<Item = &'a Exchange> + Clone) {
        for (server, asked) in [("model", self.model.take()), ("resources", self.resources.take())] {
            let recorded: Vec<_> = exchanges.clone().into_iter().filter(|exchange| exchange.server == server).collect();
            let paths = |paths: Vec<&str>| paths.join(" ");
            assert_eq!(
                paths(asked.iter().map(|asked| asked.path.as_str()).collect()),
                paths(recorded.iter().map(|exchange| exchange.request.path.as_str()).collect()),
                "calls of the {server} server",
            );
            for (exchange, asked) in recorded.iter().zip(&asked) {
                for name in ["traceparent", "tracestate", "baggage"] {
                    assert_eq!(asked.header(name), None, "{name} of {} with telemetry off", exchange.name);
                }
                let recorded = exchange.request.header("cookie").unwrap_or_default();
                let cookie = asked.header("cookie").unwrap_or_default();
                assert_eq!(comparable(&cookie), comparable(recorded), "cookies of {}", exchange.name);
                assert_eq!(asked.header("content-type").as_deref(), Some("application/json"), "{}", exchange.name);
                let flow = exchange.flow.as_deref().unwrap_or_default();
                if !exchange.request.alike || UNCHANGED.contains(&flow) {
                    let recorded = exchange.request.json.as_ref().unwrap();
                    assert_eq!(golden::difference(recorded, &asked.json(), ""), None, "{}", exchange.name);
                }
            }
        }
    }
}

fn recorded_answer(exchange: &Exchange) -> Answer {
    let body = match (&exchange.response.json, &exchange.response.sse) {
        (Some(json), _) => json.to_string(),
        (None, Some(text)) => text[0]["other"].as_str().unwrap().to_owned(),
        (None, None) => String::new(),
    };
    let set_cookie = exchange.response.headers.get("set-cookie").cloned().unwrap_or_default();
    Answer { status: exchange.status, set_cookie, body }
}

/// Replaces the members that were recorded as "<as sent>" by those of the request.
fn echo(body: &str, asked: &Value) -> String {
    let mut body: Value = serde_json::from_str(body).unwrap();
    for (field, value) in body.as_object_mut().unwrap() {
        if value == "<as sent>" {
            *value = asked[field].clone();
        }
    }
    body.to_string()
}

/// Cookies in their order, without the value of the agent's own, which every agent makes itself.
fn comparable(cookie: &str) -> String {
    let part = |part: &str| match part.split_once("SimpleAgent___example_agent=") {
        Some((before, value)) => format!("{before}agent={}", if value.is_empty() { "nothing" } else { "something" }),
        None => part.to_owned(),
    };
    cookie.split("; ").map(part).collect::<Vec<_>>().join("; ")
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_run_as_recorded() {
    let configurations: BTreeMap<(bool, bool), &[&str]> = [
        (
            (false, false),
            &[
                "run_obs_off",
                "run_telemetry_off",
                "run_inbound_trace_telemetry_off",
                "run_inbound_cookie",
                "run_min",
                "run_tool_422",
                "run_tool_404",
                "run_tool_bad_arguments",
                "run_upstream_500",
                "run_upstream_400",
            ][..],
        ),
        (
            (true, false),
            &[
                "run_obs_on",
                "run_telemetry_off_obs_on",
                "run_no_index",
                "run_explicit_id",
                "run_attempt",
                "run_attempt_zero",
            ],
        ),
        ((false, true), &["run_obs_off_token_capture"]),
        ((true, true), &["run_obs_on_token_capture"]),
    ]
    .into();
    for ((observability, token_capture), flows) in configurations {
        let mut fleet = Fleet::start(observability, token_capture).await;
        for flow in flows {
            let exchanges = golden::flow(flow);
            fleet.answer_as_in(exchanges.iter().copied());
            let answer = fleet.replay(exchanges[0]).await;
            fleet.check_calls(exchanges.iter().copied());
            if exchanges[0].response.alike && !UNCHANGED.contains(flow) {
                assert!(answer["reward"].is_number(), "{flow}");
            } else {
                check::body(exchanges[0], answer.clone());
            }
            assert_eq!(answer.get("ng_trajectory").is_some(), observability && *flow != "run_no_index", "{flow}");
        }
        fleet.agent.stop().await;
    }
}

/// With telemetry on the calls are the same, and the trace goes on as the Python servers were recorded to pass it on.
#[tokio::test(flavor = "multi_thread")]
async fn traces_go_on_as_recorded() {
    let mut fleet = Fleet::start_with(false, false, telemetry_to("http://127.0.0.1:9", "grpc", "agent")).await;
    for flow in ["run_obs_off", "run_inbound_trace", "run_inbound_unsampled"] {
        let exchanges = golden::flow(flow);
        fleet.answer_as_in(exchanges.iter().copied());
        let answer = fleet.replay(exchanges[0]).await;
        assert_eq!(answer["reward"], 1.0, "{flow}");
        let inbound = &exchanges[0].request;
        let (mut traces, mut parents) = (HashSet::new(), HashSet::new());
        for (server, asked) in [("model", fleet.model.take()), ("resources", fleet.resources.take())] {
            let recorded: Vec<_> = exchanges.iter().filter(|exchange| exchange.server == server).collect();
            assert_eq!(asked.len(), recorded.len(), "{flow}");
            for (exchange, asked) in recorded.iter().zip(asked) {
                let recorded = parts(exchange.request.header("traceparent").unwrap());
                let sent = parts(&asked.header("traceparent").unwrap());
                assert_eq!(sent[3], recorded[3], "flags of {}", exchange.name);
                assert!(parents.insert(sent[2].clone()), "each call has a parent of its own");
                if inbound.header("traceparent").is_some() {
                    assert_eq!(sent[1], recorded[1], "trace of {}", exchange.name);
                }
                traces.insert(sent[1].clone());
                let tracestate = exchange.request.header("tracestate");
                assert_eq!(asked.header("tracestate").as_deref(), tracestate, "{}", exchange.name);
                // The caller's baggage goes on; ours adds the rollout's id for the servers of the fleet.
                let baggage = asked.header("baggage").unwrap_or_default();
                let members: HashSet<&str> = baggage.split(',').collect();
                assert!(members.contains("nemo.gym.rollout.id=3-0"), "{baggage}");
                assert_eq!(members.contains("k=v"), inbound.header("baggage").is_some(), "{baggage}");
            }
        }
        assert_eq!(traces.len(), 1, "{flow}");
        if let Some(inbound) = inbound.header("traceparent") {
            assert!(!parents.contains(&parts(inbound)[2]), "no call goes on under the caller's own span");
        }
    }
    fleet.agent.stop().await;
}

fn parts(traceparent: &str) -> Vec<String> {
    let parts: Vec<String> = traceparent.split('-').map(str::to_owned).collect();
    assert_eq!(parts.len(), 4, "{traceparent}");
    parts
}

/// The flows whose bodies were only said to be alike, for what they are about.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_flow_is_about_shows_in_its_bodies() {
    let mut fleet = Fleet::start(true, false).await;
    for (flow, id) in [("run_explicit_id", "abc.1"), ("run_attempt", "3-0-a2"), ("run_attempt_zero", "3-0")] {
        let exchanges = golden::flow(flow);
        fleet.answer_as_in(exchanges.iter().copied());
        let answer = fleet.replay(exchanges[0]).await;
        assert_eq!(answer["ng_trajectory"]["rollout_id"], id, "{flow}");
        assert_eq!(answer["ng_trajectory"]["turns"][1]["rollout_id"], id, "{flow}");
        let attempt = exchanges[0].request.json.as_ref().unwrap().get("_ng_attempt_index");
        for asked in fleet.resources.take().iter().filter(|asked| !asked.path.ends_with("/get_weather")) {
            let body = asked.json();
            assert_eq!(body["_ng_task_index"], 3, "{flow} {}", asked.path);
            assert_eq!(body.get("_ng_attempt_index"), attempt, "{flow} {}", asked.path);
            assert_eq!(body.get("_ng_rollout_id"), None, "{flow} {}", asked.path);
            assert_eq!(body["response"].get("_ng_trajectory"), None, "{flow} {}", asked.path);
        }
    }
    fleet.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_calls_are_answered_as_recorded() {
    // Out of the example's scope: aggregation and agent sessions.
    let out = |exchange: &Exchange| ["aggm", "asess", "agent.session."].iter().any(|part| exchange.name.contains(part));
    let direct =
        |exchange: &&Exchange| exchange.server == "agent" && exchange.caller == "client" && exchange.flow.is_none();
    let exchanges = golden::exchanges().iter().filter(direct).filter(|exchange| !out(exchange));
    let (with, without): (Vec<_>, Vec<_>) = exchanges
        .filter(|exchange| !exchange.name.starts_with("standin."))
        .partition(|exchange| exchange.name.starts_with("agent.obs_on."));
    assert_eq!((with.len(), without.len()), (5, 14));
    for (observability, exchanges) in [(true, with), (false, without)] {
        let mut fleet = Fleet::start(observability, false).await;
        for exchange in exchanges {
            let prefix = format!("{}.hop", exchange.name);
            let mut calls: Vec<_> = golden::exchanges().iter().filter(|hop| hop.name.starts_with(&prefix)).collect();
            let rollout = exchange.request.path == "/run" && exchange.status == 200;
            if rollout {
                calls = golden::flow("run_obs_off");
            }
            fleet.answer_as_in(calls.iter().copied());
            let answer = fleet.replay(exchange).await;
            check::body(exchange, answer);
            if exchange.name == "agent.run_extra" {
                let extra = |asked: &Asked| asked.json()["my_extra"].clone();
                let told: Vec<Value> = fleet.resources.take().iter().map(extra).collect();
                assert_eq!(told, [json!({"k": 1}), Value::Null, json!({"k": 1})], "seed_session and verify get it");
            } else if !rollout {
                fleet.check_calls(calls.iter().copied());
            }
        }
        fleet.agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_neighbours_are_met_as_recorded() {
    let mut fleet = Fleet::start(false, false).await;
    let runs = golden::exchanges()
        .iter()
        .filter(|exchange| exchange.name.starts_with("standin.") && exchange.server == "agent");
    let mut replayed = 0;
    for run in runs {
        let scenario = run.name.strip_suffix("agent_run").unwrap();
        let odd = golden::exchanges()
            .iter()
            .find(|exchange| exchange.name.starts_with(scenario) && exchange.server != "agent")
            .unwrap();
        // A regular rollout, but for the one odd answer and the stand-in's cookie.
        let mut calls: Vec<Exchange> = golden::flow("run_obs_off").into_iter().cloned().collect();
        let odd_call = odd.request.path.as_str();
        for call in &mut calls {
            if call.server == "resources" {
                call.response.headers.remove("set-cookie");
                if scenario != "standin.nocookie." {
                    call.response.headers.insert("set-cookie".into(), vec!["standin=s1; path=/".into()]);
                }
                if call.request.path == "/verify" {
                    call.response.json =
                        Some(json!({"responses_create_params": "<as sent>", "response": "<as sent>", "reward": 1.0}));
                }
            }
        }
        let position =
            calls.iter().position(|call| call.server == odd.server && call.request.path == odd_call).unwrap();
        calls[position] = odd.clone();
        fleet.answer_as_in(calls.iter());
        if scenario == "standin.m_empty_output." {
            // The recorded resources server scored it 0.
            let mut answers = fleet.resources_answers.lock().unwrap();
            answers.retain(|answer| answer.body.contains("reward") || answer.body == "{}");
            answers.back_mut().unwrap().body =
                json!({"responses_create_params": "<as sent>", "response": "<as sent>", "reward": 0.0}).to_string();
        }
        if scenario == "standin.m_incomplete." {
            fleet
                .resources_answers
                .lock()
                .unwrap()
                .retain(|answer| answer.body.contains("reward") || answer.body == "{}");
        }
        let answer = fleet.replay(run).await;
        check::body(run, answer);
        let (model, resources) = (fleet.model.take(), fleet.resources.take());
        if odd.server == "resources" {
            let asked = resources.iter().find(|asked| asked.path == odd_call).unwrap();
            let recorded = odd.request.header("cookie").unwrap_or_default();
            assert_eq!(comparable(&asked.header("cookie").unwrap_or_default()), comparable(recorded), "{}", odd.name);
            assert_eq!(
                resources.iter().filter(|asked| asked.path == odd_call).count(),
                1,
                "{}: not tried again",
                odd.name
            );
        } else if odd.status != 200 {
            assert_eq!(model.len(), 1, "{}: not tried again", odd.name);
        }
        replayed += 1;
    }
    assert_eq!(replayed, 16);
    fleet.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_never_answers_and_odd_tool_names_end_a_rollout_no_worse() {
    let mut fleet = Fleet::start(false, false).await;
    let reply = |output: Value| {
        let body = json!({
            "id": "r", "object": "response", "created_at": 1.0, "model": "m", "output": output,
            "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
        });
        Answer::json(200, &body)
    };
    let calls = |name: &str| json!([{"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"}]);
    let message = json!([{"type": "message", "id": "m", "role": "assistant", "content": []}]);
    let post = async || {
        let request = fleet.client.post(format!("{}/v1/responses", fleet.agent.url)).json(&json!({"input": "hi"}));
        request.send().await.unwrap()
    };
    for (name, path) in [("../verify", "/..%2Fverify"), ("a?b#c", "/a%3Fb%23c"), ("", "/"), ("ä b", "/%C3%A4%20b")] {
        *fleet.model_answers.lock().unwrap() = [reply(calls(name)), reply(message.clone())].into();
        *fleet.resources_answers.lock().unwrap() = [Answer::json(404, &json!({"detail": "Not Found"}))].into();
        assert_eq!(post().await.status(), 200, "{name:?}");
        let asked: Vec<String> = fleet.resources.take().into_iter().map(|asked| asked.path).collect();
        assert_eq!(asked, [path], "{name:?}");
    }
    *fleet.model_answers.lock().unwrap() = (0..10_000).map(|_| reply(calls("again"))).collect();
    *fleet.resources_answers.lock().unwrap() = (0..10_000).map(|_| Answer::json(200, &json!({}))).collect();
    fleet.model.take();
    assert_eq!(post().await.status(), 200);
    assert!(fleet.model.take().len() < 1_000);
    fleet.agent.stop().await;
}
