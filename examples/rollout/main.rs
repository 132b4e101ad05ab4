//! The front door: one command that shows what this crate is for.
//!
//! `cargo run --example rollout`
//!
//! Starts a resources server, a model server and an agent server as processes of their own, runs rollouts through the
//! agent, receives the telemetry of all of them, and prints each rollout's trace. Each must be one trace across all
//! three servers.

#![allow(clippy::duplicate_mod, reason = "each server example is a module here and brings its own `common`")]

#[allow(dead_code)] // its `main` is the stand-alone example's
#[path = "../agent_server.rs"]
mod agent_server;
#[allow(dead_code)]
#[path = "../model_server.rs"]
mod model_server;
#[allow(dead_code)]
#[path = "../resources_server.rs"]
mod resources_server;

#[path = "../common/mod.rs"]
mod common;
mod drive;
mod fleet;
mod memory;
mod observe;
mod receiver;
mod span;
mod verdict;
mod waterfall;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use nemo_gym_telemetry::config::memory_profiling_config_from_env_in;
use nemo_gym_telemetry::job::Job;
use nemo_gym_telemetry::supervisor::{MemoryProfiler, SupervisorStartup};
use nemo_gym_telemetry::{
    Environment, ServerIdentity, ServerType, Telemetry, TelemetryConfig, TelemetryEnv, configure_telemetry_env,
};

use common::args::Args;
use drive::Outcome;
use fleet::{Fleet, Launch};
use observe::Observed;
use receiver::Receiver;
use span::Span;

const USAGE: &str =
    "usage: rollout [--rollouts N] [--concurrency C] [--json FILE] [--show N] [--observe] [--observability]
  --rollouts       how many rollouts to run (3)
  --concurrency    how many of them at a time (4)
  --json           write every received span to this file, one JSON object a line
  --show           print at most this many waterfalls, the odd and the slow ones first (20)
  --observe        go on with a round of as many rollouts every two seconds, and show how the servers do, until Ctrl-C;
                   the last 200 are judged
  --observability  servers pass the rollout's id on in the paths of their calls, as Gym's `observability_enabled`
With OTEL_EXPORTER_OTLP_ENDPOINT set, telemetry goes there, and the HTTP answers alone decide the exit status.";

#[tokio::main]
async fn main() -> ExitCode {
    let options = ["role", "port", "model-url", "resources-url", "rollouts", "concurrency", "json", "show"];
    let args = Args::from_process(USAGE, &options, &["observe", "observability"]);
    let done = match args.get("role") {
        Some(role) => fleet::serve_as(role, &args).await.map(|()| true),
        None => supervise(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rollout: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the whole show. `Ok(false)` when something is wrong with the rollouts.
async fn supervise(args: &Args) -> std::io::Result<bool> {
    let startup = SupervisorStartup::begin();
    let environment = Environment::from_process();
    let elsewhere = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
        .iter()
        .any(|name| environment.get(name).is_some());
    let receiver = if elsewhere { None } else { Some(Receiver::start().await?) };
    let handed_over = telemetry_env(receiver.as_ref());
    let environment = environment.with(&handed_over);
    let telemetry = Telemetry::builder()
        .with_environment(environment.clone())
        .with_identity(ServerIdentity::unknown().with_server_type(ServerType::Supervisor))
        .init();
    let profiler = MemoryProfiler::from_config(&telemetry, &memory_profiling_config_from_env_in(&environment));

    let observability = args.flag("observability");
    let probe = reqwest::Client::builder().no_proxy().build().map_err(std::io::Error::other)?;
    let launch = Launch { telemetry: &telemetry, handed_over: &handed_over, profiler: &profiler, probe, observability };
    let mut fleet = Fleet::start(&launch, startup).await?;
    let job = Job::start(&telemetry);
    let (count, concurrency) = (args.get_or("rollouts", 3), args.get_or("concurrency", 4));
    let outcomes = if args.flag("observe") {
        let (agent_url, receiver) = (fleet.agent_url(), receiver.as_ref());
        let observed = Observed { job: &job, agent_url, count, concurrency, profiler: &profiler, receiver };
        Ok(observed.rounds(told_to_end()).await)
    } else {
        tokio::select! {
            outcomes = drive::run(&job, fleet.agent_url(), 0..count, concurrency) => Ok(outcomes),
            () = told_to_end() => Err(std::io::Error::other("interrupted")),
        }
    };
    drop(job);
    // Reading /proc blocks: not on this thread.
    let memory = tokio::task::spawn_blocking(move || profiler.sample_now()).await.map_err(std::io::Error::other)?;
    // Each server sends what it still holds before it ends, and so do we: nothing is on its way after this.
    let ended_well = fleet.stop().await?;
    telemetry.shutdown().await;
    let outcomes = outcomes?;

    let answered = drive::summarise(&outcomes);
    let judged = match receiver {
        None => {
            println!("Telemetry went to the configured OTLP endpoint: judged by the HTTP answers alone.");
            if args.get("json").is_some() {
                println!("No span came here, so --json writes none.");
            }
            true
        }
        Some(receiver) => judge(&outcomes, receiver.finish(), args)?,
    };
    if let Some(memory) = memory {
        println!("\n{}", memory::table(&memory));
    }
    Ok(answered && judged && ended_well)
}

/// Completes at SIGINT or SIGTERM.
async fn told_to_end() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

/// What the servers are told about telemetry: everything on, sent to the receiver here or to where the user said.
fn telemetry_env(receiver: Option<&Receiver>) -> TelemetryEnv {
    let mut config = TelemetryConfig::default();
    config.enabled = true;
    config.span_groups = "all".to_owned();
    config.memory_profiling.enabled = true;
    if cfg!(not(feature = "otlp-grpc")) {
        config.otlp_protocol = Some("http/protobuf".to_owned());
    }
    config.otlp_endpoint = receiver.map(|receiver| receiver.url().to_owned());
    configure_telemetry_env(&config)
}

fn judge(outcomes: &[Outcome], mut spans: Vec<Span>, args: &Args) -> std::io::Result<bool> {
    spans.sort_by(|a, b| (&a.trace_id, a.start).cmp(&(&b.trace_id, b.start)));
    if let Some(file) = args.get("json") {
        std::fs::write(file, spans.iter().map(|span| format!("{}\n", span.to_json())).collect::<String>())?;
    }
    let verdict = verdict::of(outcomes, &spans, &fleet::SERVERS);
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    print!("{}", waterfall::render_startup(&spans, colours));
    print!("{}", waterfall::render(&verdict, args.get_or("show", 20), colours));
    println!("{}", verdict.report());
    Ok(verdict.is_whole())
}
