//! Start-up: the supervisor's spans, the servers' under them, and what junk in the environment does (SUP-03).
#![cfg(feature = "supervisor")]

mod supervisor_support;

use std::process::Command;
use std::time::{Duration, SystemTime};

use nemo_gym_telemetry::config::variables::{
    NEMO_GYM_STARTUP_SERVE_NS, NEMO_GYM_STARTUP_SETUP_DONE_NS, NEMO_GYM_STARTUP_SPAWN_NS, NEMO_GYM_STARTUP_TRACEPARENT,
};
use nemo_gym_telemetry::opentelemetry::trace::{SpanId, SpanKind, Status};
use nemo_gym_telemetry::startup::{ServerStartup, announce_worker};
use nemo_gym_telemetry::supervisor::{ActiveServer, SupervisorStartup};
use nemo_gym_telemetry::{Environment, ServerIdentity, Telemetry};
use opentelemetry_sdk::trace::SpanData;
use supervisor_support::{Fixture, attribute, child_environment, model, names, supervisor};

const T1: &str = "0af7651916cd43dd8448eb211c80319c";
const S1: &str = "b7ad6b7169203331";

fn on() -> Environment {
    Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1")])
}

/// Environment of a server as a supervisor in another language leaves it.
fn server_environment(variables: &[(&str, String)]) -> Environment {
    let mut environment = on();
    variables.iter().for_each(|(name, value)| environment.set(*name, value));
    environment
}

fn ns(at: SystemTime) -> String {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos().to_string()
}

fn ago(ms: u64) -> SystemTime {
    SystemTime::now() - Duration::from_millis(ms)
}

/// The stage spans below one span, in order of time; asserts that they are contiguous and fill it.
fn stages(spans: &[SpanData], whole: &SpanData) -> Vec<String> {
    let prefix = format!("{}.", whole.name);
    let mut stages: Vec<_> = spans
        .iter()
        .filter(|s| {
            s.parent_span_id == whole.span_context.span_id() && attribute(s, "nemo.gym.startup.stage").is_some()
        })
        .collect();
    stages.sort_by_key(|s| s.start_time);
    assert_eq!(stages.first().map(|s| s.start_time), Some(whole.start_time));
    assert_eq!(stages.last().map(|s| s.end_time), Some(whole.end_time));
    assert!(stages.windows(2).all(|pair| pair[0].end_time == pair[1].start_time), "a gap between stages");
    for stage in &stages {
        assert_eq!(stage.name.strip_prefix(&prefix), attribute(stage, "nemo.gym.startup.stage").as_deref());
        assert_eq!(stage.span_kind, SpanKind::Internal);
    }
    stages.iter().map(|s| s.name.strip_prefix(&prefix).unwrap().to_owned()).collect()
}

#[test]
fn a_server_reports_its_start_up_under_the_supervisors_span_for_it() {
    let mut startup = SupervisorStartup::begin();
    std::thread::sleep(Duration::from_millis(2));
    let boss = Fixture::new(supervisor(), on());
    let mut command = Command::new("model_server");
    let starting = startup.server(&boss.telemetry, &model(), &mut command);

    let environment = child_environment(&[("NEMO_GYM_OTEL_ENABLED", "1")], &command);
    let spawned = environment.get(NEMO_GYM_STARTUP_SPAWN_NS).unwrap().to_owned();
    let server = Fixture::sharing(boss.spans.clone(), model(), environment);
    server.telemetry.server_ready();
    let active = starting.healthy();
    drop(startup);

    let spans = boss.spans();
    let whole = boss.span("gym.startup");
    assert_eq!(whole.parent_span_id, SpanId::INVALID);
    assert!(whole.attributes.is_empty());
    assert_eq!(stages(&spans, &whole), ["load_config", "init_telemetry", "spawn_servers", "wait_for_servers"]);

    let of_server = boss.span("gym.startup.server");
    assert_eq!(of_server.parent_span_id, whole.span_context.span_id());
    assert_eq!(ns(of_server.start_time), spawned);
    assert_eq!(attribute(&of_server, "nemo.gym.server.name").as_deref(), Some("policy_model"));
    assert_eq!(attribute(&of_server, "nemo.gym.server.type").as_deref(), Some("responses_api_models"));

    let own = boss.span("gym.server.startup");
    assert_eq!(own.parent_span_id, of_server.span_context.span_id());
    assert!(own.parent_span_is_remote);
    assert_eq!(ns(own.start_time), spawned);
    assert_eq!(stages(&spans, &own), ["interpreter_start", "init_telemetry", "setup_webserver"]);
    for span in spans.iter().filter(|s| s.name.starts_with("gym.server.startup")) {
        assert_eq!(attribute(span, "nemo.gym.server.name").as_deref(), Some("policy_model"));
        assert_eq!(attribute(span, "nemo.gym.server.worker").as_deref(), Some("false"));
        assert_eq!(attribute(span, "process.pid"), Some(std::process::id().to_string()));
    }
    assert!(spans.iter().all(|s| s.span_context.trace_id() == whole.span_context.trace_id()), "one trace");
    assert!(spans.iter().all(|s| s.instrumentation_scope.name() == "nemo.lens" && s.status == Status::Unset));

    let duration = boss.points("gym.server.startup_duration_ms");
    assert_eq!(duration.len(), 1);
    let span_ms = of_server.end_time.duration_since(of_server.start_time).unwrap().as_secs_f64() * 1e3;
    assert!((duration[0].value - span_ms).abs() < 1e-3, "{duration:?} {span_ms}");
    assert_eq!(duration[0].attributes["nemo.gym.server.name"], "policy_model");
    assert!(server.points("gym.server.startup_duration_ms").is_empty(), "the supervisor's alone");

    let of_stages = server.points("gym.server.startup_stage_duration_ms");
    let total: f64 = of_stages.iter().map(|p| p.value).sum();
    let own_ms = own.end_time.duration_since(own.start_time).unwrap().as_secs_f64() * 1e3;
    assert_eq!(of_stages.len(), 3);
    assert!((total - own_ms).abs() < 1e-3, "{total} {own_ms}");
    assert!(of_stages.iter().all(|p| p.attributes["nemo.gym.server.worker"] == "false"));
    drop(active);
}

#[test]
fn a_traceparent_is_written_as_the_python_supervisor_does() {
    // Only providers of our own are known to make their ids at random.
    let environment = server_environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9".to_owned())]);
    let telemetry = Telemetry::builder().with_environment(environment).with_identity(supervisor()).build();
    let mut command = Command::new("x");
    let mut startup = SupervisorStartup::begin();
    startup.server(&telemetry, &model(), &mut command).failed("exited");
    let child = child_environment(&[], &command);
    let fields: Vec<&str> = child.get(NEMO_GYM_STARTUP_TRACEPARENT).unwrap().split('-').collect();
    assert_eq!((fields[0], fields[1].len(), fields[2].len(), fields[3]), ("00", 32, 16, "03"));
    telemetry.shutdown_blocking(Duration::ZERO);
}

#[test]
fn stages_of_ones_own() {
    let mut startup = SupervisorStartup::begin();
    std::thread::sleep(Duration::from_millis(1));
    startup.mark("load_config");
    let boss = Fixture::new(supervisor(), on());
    startup.mark("init_telemetry");
    let starting = startup.server(&boss.telemetry, &model(), &mut Command::new("x"));
    startup.mark("spawn_servers");
    let _active = starting.healthy();
    startup.mark("wait_for_servers");
    std::thread::sleep(Duration::from_millis(1));
    startup.mark("wait_for_model_endpoints");
    let ended = SystemTime::now();
    std::thread::sleep(Duration::from_millis(20));
    startup.finish();
    let whole = boss.span("gym.startup");
    assert_eq!(
        stages(&boss.spans(), &whole),
        ["load_config", "init_telemetry", "spawn_servers", "wait_for_servers", "wait_for_model_endpoints"]
    );
    assert!(whole.end_time <= ended, "the start-up ends with its last stage, whenever it is dropped");

    let mut own = ServerStartup::begin_in(&on());
    std::thread::sleep(Duration::from_millis(1));
    own.mark("load_config");
    let server = Fixture::new(model(), on());
    own.mark("init_telemetry");
    std::thread::sleep(Duration::from_millis(1));
    own.mark("load_weights");
    own.ready(&server.telemetry);
    let whole = server.span("gym.server.startup");
    assert_eq!(stages(&server.spans(), &whole), ["load_config", "init_telemetry", "load_weights", "setup_webserver"]);
    server.telemetry.server_ready();
    server.span("gym.server.startup");
}

#[test]
fn a_python_supervisor_parents_a_rust_server() {
    let (spawn, setup_done) = (ago(900), ago(400));
    let server = Fixture::new(
        model(),
        server_environment(&[
            (NEMO_GYM_STARTUP_SPAWN_NS, ns(spawn)),
            (NEMO_GYM_STARTUP_SETUP_DONE_NS, ns(setup_done)),
            (NEMO_GYM_STARTUP_TRACEPARENT, format!("00-{T1}-{S1}-03")),
        ]),
    );
    server.telemetry.server_ready();
    let whole = server.span("gym.server.startup");
    assert_eq!(whole.span_context.trace_id().to_string(), T1);
    assert_eq!(whole.parent_span_id.to_string(), S1);
    assert_eq!(whole.start_time, spawn);
    assert_eq!(
        stages(&server.spans(), &whole),
        ["venv_setup", "interpreter_start", "init_telemetry", "setup_webserver"]
    );
    assert_eq!(server.span("gym.server.startup.venv_setup").end_time, setup_done);
}

#[test]
fn junk_in_the_environment_costs_only_what_it_says() {
    let junk = ["", " ", "0", "-1", "1.5", "nan", "18446744073709551616", "1800000000", "soon", "\u{661}\u{662}"];
    let future = ns(SystemTime::now() + Duration::from_secs(3600));
    for value in junk.into_iter().map(str::to_owned).chain([future]) {
        for name in [NEMO_GYM_STARTUP_SPAWN_NS, NEMO_GYM_STARTUP_SETUP_DONE_NS] {
            let server = Fixture::new(model(), server_environment(&[(name, value.clone())]));
            server.telemetry.server_ready();
            let whole = server.span("gym.server.startup");
            assert_eq!(stages(&server.spans(), &whole), ["init_telemetry", "setup_webserver"], "{name}={value:?}");
            assert!(whole.end_time.duration_since(whole.start_time).unwrap() < Duration::from_secs(60));
        }
    }
    // The set-up done before the spawn: the spawn is kept.
    let spawn = ago(400);
    let server = Fixture::new(
        model(),
        server_environment(&[(NEMO_GYM_STARTUP_SPAWN_NS, ns(spawn)), (NEMO_GYM_STARTUP_SETUP_DONE_NS, ns(ago(900)))]),
    );
    server.telemetry.server_ready();
    let whole = server.span("gym.server.startup");
    assert_eq!(whole.start_time, spawn);
    assert_eq!(stages(&server.spans(), &whole), ["interpreter_start", "init_telemetry", "setup_webserver"]);

    for traceparent in [
        "",
        "x",
        "00-0-0-01",
        &format!("00-{}-{S1}-01", T1.to_uppercase()),
        &format!("ff-{T1}-{S1}-01"),
        &"-".repeat(9),
    ] {
        let environment = server_environment(&[(NEMO_GYM_STARTUP_TRACEPARENT, traceparent.to_owned())]);
        let server = Fixture::new(model(), environment);
        server.telemetry.server_ready();
        let whole = server.span("gym.server.startup");
        assert_eq!(whole.parent_span_id, SpanId::INVALID, "{traceparent}");
        assert_ne!(whole.span_context.trace_id().to_string(), T1);
    }
}

#[test]
fn an_unsampled_supervisor_has_unsampled_servers() {
    let environment = server_environment(&[(NEMO_GYM_STARTUP_TRACEPARENT, format!("00-{T1}-{S1}-02"))]);
    let server = Fixture::new(model(), environment);
    server.telemetry.server_ready();
    assert!(server.spans().is_empty());
    assert!(!server.points("gym.server.startup_stage_duration_ms").is_empty());
}

#[test]
fn a_worker_reports_from_the_hand_over_on() {
    let mut command = Command::new("worker");
    announce_worker(&mut command);
    let inherited = [
        ("NEMO_GYM_OTEL_ENABLED", "1"),
        (NEMO_GYM_STARTUP_SPAWN_NS, &ns(ago(60_000))[..]),
        (NEMO_GYM_STARTUP_TRACEPARENT, &format!("00-{T1}-{S1}-01")),
    ];
    let environment = child_environment(&inherited, &command);
    let serve = environment.get(NEMO_GYM_STARTUP_SERVE_NS).unwrap().to_owned();
    std::thread::sleep(Duration::from_millis(2));
    let server = Fixture::new(model(), environment);
    server.telemetry.server_ready();
    let whole = server.span("gym.server.startup.worker");
    assert_eq!(ns(whole.start_time), serve);
    assert_eq!(whole.parent_span_id.to_string(), S1);
    assert_eq!(stages(&server.spans(), &whole), ["worker_start", "init_telemetry", "setup_webserver"]);
    assert_eq!(attribute(&whole, "nemo.gym.server.worker").as_deref(), Some("true"));
    assert!(
        server
            .points("gym.server.startup_stage_duration_ms")
            .iter()
            .all(|p| p.attributes["nemo.gym.server.worker"] == "true")
    );

    // A hand-over that makes no sense: still a worker, from its own beginning.
    let server = Fixture::new(model(), server_environment(&[(NEMO_GYM_STARTUP_SERVE_NS, "later".to_owned())]));
    server.telemetry.server_ready();
    let whole = server.span("gym.server.startup.worker");
    assert_eq!(stages(&server.spans(), &whole), ["init_telemetry", "setup_webserver"]);
}

#[test]
fn with_the_group_off_there_are_metrics_and_no_spans() {
    let mut environment = on();
    environment.set("NEMO_GYM_OTEL_SPAN_GROUPS", "server");
    let boss = Fixture::new(supervisor(), environment.clone());
    let mut startup = SupervisorStartup::begin();
    let mut command = Command::new("x");
    let starting = startup.server(&boss.telemetry, &model(), &mut command);
    let inherited = [
        (NEMO_GYM_STARTUP_TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        (NEMO_GYM_STARTUP_SETUP_DONE_NS, "1"),
        (NEMO_GYM_STARTUP_SERVE_NS, "1"),
    ];
    let child = child_environment(&inherited, &command);
    assert_eq!(child.raw(NEMO_GYM_STARTUP_TRACEPARENT), None, "what the supervisor was told is not the child's");
    assert_eq!((child.raw(NEMO_GYM_STARTUP_SETUP_DONE_NS), child.raw(NEMO_GYM_STARTUP_SERVE_NS)), (None, None));
    assert!(child.get(NEMO_GYM_STARTUP_SPAWN_NS).is_some());
    let _active = starting.healthy();
    drop(startup);
    boss.telemetry.server_ready();
    assert_eq!(names(&boss.spans()), [""; 0]);
    assert_eq!(boss.points("gym.server.startup_duration_ms").len(), 1);
    assert!(!boss.points("gym.server.startup_stage_duration_ms").is_empty());
}

#[test]
fn off_leaves_the_command_alone() {
    let mut startup = SupervisorStartup::begin();
    let mut command = Command::new("x");
    let starting = startup.server(&Telemetry::disabled(), &model(), &mut command);
    assert_eq!(command.get_envs().count(), 0);
    drop(starting.healthy());
    startup.finish();
    Telemetry::disabled().server_ready();
}

#[test]
fn a_server_that_does_not_come_up_is_an_error_and_no_sample() {
    let boss = Fixture::new(supervisor(), on());
    let mut startup = SupervisorStartup::begin();
    let identity = |name: &str| ServerIdentity::new(name, nemo_gym_telemetry::ServerType::ResourcesServers);
    startup.server(&boss.telemetry, &identity("failed"), &mut Command::new("x")).failed("exited");
    drop(startup.server(&boss.telemetry, &identity("given_up"), &mut Command::new("x")));
    drop(startup);
    let spans = boss.spans();
    for (name, error) in [("failed", "exited"), ("given_up", "cancelled")] {
        let span = spans.iter().find(|s| attribute(s, "nemo.gym.server.name").as_deref() == Some(name)).unwrap();
        assert_eq!(attribute(span, "error.type").as_deref(), Some(error));
        assert_eq!(span.status, Status::error(""));
    }
    let whole = boss.span("gym.startup");
    assert!(spans.iter().all(|s| s.end_time <= whole.end_time));
    assert!(boss.points("gym.server.startup_duration_ms").is_empty());
    assert_eq!(boss.value("gym.servers.active"), None);
}

#[test]
fn a_server_started_after_the_start_up_hangs_under_it() {
    let boss = Fixture::new(supervisor(), on());
    let mut startup = SupervisorStartup::begin();
    let first = startup.server(&boss.telemetry, &model(), &mut Command::new("x"));
    let second = startup.server(&boss.telemetry, &model(), &mut Command::new("x"));
    let _first = first.healthy();
    drop(startup);
    let _second = second.healthy();
    let whole = boss.span("gym.startup");
    let spans = boss.spans();
    let servers: Vec<_> = spans.iter().filter(|s| s.name == "gym.startup.server").collect();
    assert_eq!(servers.len(), 2);
    assert!(servers.iter().all(|s| s.parent_span_id == whole.span_context.span_id()));
}

#[test]
fn active_servers_are_counted_and_only_a_supervisor_counts() {
    let boss = Fixture::new(supervisor(), on());
    let server = Fixture::new(model(), on());
    server.telemetry.server_ready();
    assert!(server.points("gym.servers.active").is_empty());
    assert_eq!(boss.value("gym.servers.active"), None);
    let mut startup = SupervisorStartup::begin();
    let one = startup.server(&boss.telemetry, &model(), &mut Command::new("x")).healthy();
    let two = ActiveServer::new(&boss.telemetry);
    assert_eq!(boss.value("gym.servers.active"), Some(2.0));
    drop(one);
    assert_eq!(boss.value("gym.servers.active"), Some(1.0));
    drop(two);
    assert_eq!(boss.value("gym.servers.active"), Some(0.0));
}

#[tokio::test]
async fn a_traceparent_in_the_environment_never_parents_requests() {
    use nemo_gym_telemetry::ingress::GymTelemetryLayer;
    use tower::ServiceExt as _;

    let traceparent = format!("00-{T1}-{S1}-01");
    let environment = server_environment(&[
        ("TRACEPARENT", traceparent.clone()),
        (NEMO_GYM_STARTUP_TRACEPARENT, traceparent),
        (NEMO_GYM_STARTUP_SPAWN_NS, ns(ago(10))),
    ]);
    let server = Fixture::new(model(), environment);
    server.telemetry.server_ready();
    let app = axum::Router::new()
        .route("/verify", axum::routing::post(|| async { "ok" }))
        .layer(GymTelemetryLayer::new(&server.telemetry));
    for _ in 0..5 {
        let request = http::Request::post("/verify").body(axum::body::Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        axum::body::to_bytes(response.into_body(), 64).await.unwrap();
    }
    let spans = server.spans();
    let traces: std::collections::HashSet<String> = spans
        .iter()
        .filter(|s| s.span_kind == SpanKind::Server)
        .map(|s| s.span_context.trace_id().to_string())
        .collect();
    assert_eq!(traces.len(), 5);
    assert!(!traces.contains(T1));
    assert_eq!(server.span("gym.server.startup").span_context.trace_id().to_string(), T1);
}
