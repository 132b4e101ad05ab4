//! The three servers as child processes.

use std::process::Stdio;
use std::time::Duration;

use nemo_gym_telemetry::supervisor::{ActiveServer, MemoryProfiler, StartingServer, SupervisorStartup};
use nemo_gym_telemetry::{ServerIdentity, ServerType, Telemetry, TelemetryEnv, get_telemetry};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::common::args::Args;
use crate::{agent_server, model_server, resources_server};

/// The servers by their names in the Gym configuration.
pub const SERVERS: [&str; 3] = [AGENT, MODEL, RESOURCES];
const AGENT: &str = "example_agent";
const MODEL: &str = "policy_model";
const RESOURCES: &str = "example_single_tool_call";

const START_LIMIT: Duration = Duration::from_secs(30);
/// A server flushes its telemetry for 5 s at most; what takes longer than this is stuck.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Takes a server's part in this process, which its parent started for that.
///
/// # Errors
/// When the server cannot be started, or there is no such part.
pub async fn serve_as(name: &str, args: &Args) -> std::io::Result<()> {
    let serve = async {
        match name {
            AGENT => agent_server::run(args).await,
            MODEL => model_server::run(args).await,
            RESOURCES => resources_server::run(args).await,
            _ => Err(std::io::Error::other("unknown role")),
        }
    };
    tokio::select! {
        done = serve => done,
        // The parent holds our stdin. When it is gone, however it ended, so are we.
        () = stdin_closed() => {
            get_telemetry().shutdown().await;
            Ok(())
        }
    }
}

async fn stdin_closed() {
    let (closed, wait) = tokio::sync::oneshot::channel();
    // A thread of its own: a blocking task would keep the runtime from ending.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = closed.send(());
    });
    let _ = wait.await;
}

/// A running server.
#[derive(Debug)]
struct Server {
    name: &'static str,
    child: Child,
    url: String,
    /// Counts in `gym.servers.active`.
    _active: ActiveServer,
}

/// A server that does not answer yet.
#[derive(Debug)]
struct Spawned {
    name: &'static str,
    child: Child,
    starting: StartingServer,
    probe: reqwest::Client,
}

/// What every server is started with.
#[derive(Debug)]
pub struct Launch<'a> {
    pub telemetry: &'a Telemetry,
    /// What the servers are told about telemetry.
    pub handed_over: &'a TelemetryEnv,
    pub profiler: &'a MemoryProfiler,
    /// Asks the servers whether they are healthy.
    pub probe: reqwest::Client,
    /// Servers pass the rollout's id on in the paths of their calls.
    pub observability: bool,
}

/// All running servers. Dropping it kills what still runs.
#[derive(Debug)]
pub struct Fleet {
    servers: Vec<Server>,
    agent_url: String,
}

impl Fleet {
    /// Starts the servers, each on a free port, and waits until all are healthy.
    ///
    /// # Errors
    /// When one cannot be started or does not become healthy.
    pub async fn start(launch: &Launch<'_>, mut startup: SupervisorStartup) -> std::io::Result<Self> {
        let resources = launch.spawn(&mut startup, RESOURCES, ServerType::ResourcesServers, &[])?;
        let model = launch.spawn(&mut startup, MODEL, ServerType::ResponsesApiModels, &[])?;
        let (resources, model) = tokio::try_join!(resources.healthy(), model.healthy())?;
        let urls = ["--model-url", &model.url, "--resources-url", &resources.url];
        let agent = launch.spawn(&mut startup, AGENT, ServerType::ResponsesApiAgents, &urls)?.healthy().await?;
        startup.finish();
        Ok(Self { agent_url: agent.url.clone(), servers: vec![agent, model, resources] })
    }

    /// Where the agent listens.
    pub fn agent_url(&self) -> &str {
        &self.agent_url
    }

    /// Ends the servers with SIGTERM, callers before those they call, and waits until each has sent its last telemetry.
    /// `false` when one did not end by itself or not with status 0.
    ///
    /// # Errors
    /// When a process cannot be awaited.
    pub async fn stop(&mut self) -> std::io::Result<bool> {
        let mut well = true;
        for server in &mut self.servers {
            server.terminate();
        }
        for server in &mut self.servers {
            match timeout(STOP_LIMIT, server.child.wait()).await {
                Ok(status) => {
                    let status = status?;
                    if !status.success() {
                        eprintln!("{} ended with {status}", server.name);
                        well = false;
                    }
                }
                Err(_) => {
                    eprintln!("{} does not end; killed", server.name);
                    server.child.kill().await?;
                    well = false;
                }
            }
        }
        Ok(well)
    }
}

/// The Gym configuration that a supervisor hands its servers: from it each knows its type, and the agent whether calls
/// carry the rollout's id in their path.
fn configuration(observability: bool) -> String {
    let reference = |kind: &str, name: &str| json!({"type": kind, "name": name});
    json!({
        RESOURCES: {"resources_servers": {"example_single_tool_call": {}}},
        MODEL: {"responses_api_models": {"scripted_model": {}}},
        AGENT: {"responses_api_agents": {"simple_agent": {
            "resources_server": reference("resources_servers", RESOURCES),
            "model_server": reference("responses_api_models", MODEL),
        }}},
        "observability_enabled": observability,
    })
    .to_string()
}

impl Launch<'_> {
    fn spawn(
        &self,
        startup: &mut SupervisorStartup,
        name: &'static str,
        server_type: ServerType,
        arguments: &[&str],
    ) -> std::io::Result<Spawned> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--role", name, "--port", "0"]).args(arguments);
        command.env("NEMO_GYM_CONFIG_PATH", name).env("NEMO_GYM_CONFIG_DICT", configuration(self.observability));
        self.handed_over.apply_to(&mut command);
        // Our receiver does not unpack; an endpoint of the user's keeps the user's choice.
        if self.handed_over.iter().any(|(variable, _)| variable == "OTEL_EXPORTER_OTLP_ENDPOINT") {
            for signal in ["", "TRACES_", "METRICS_", "LOGS_"] {
                command.env(format!("OTEL_EXPORTER_OTLP_{signal}COMPRESSION"), "none");
            }
        }
        // Ctrl-C is for us alone: each server is told to end once, when its turn has come.
        command.process_group(0);
        let identity = ServerIdentity::new(name, server_type);
        // Begins this server's start-up span, and tells the server where to hang its own below it.
        let starting = startup.server(self.telemetry, &identity, &mut command);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        if let Some(pid) = child.id() {
            self.profiler.watch(&identity, pid);
        }
        Ok(Spawned { name, child, starting, probe: self.probe.clone() })
    }
}

impl Spawned {
    /// Waits until the server answers a health probe.
    async fn healthy(mut self) -> std::io::Result<Server> {
        let answered = async {
            let url = ready_line(self.name, self.child.stdout.take()?).await?;
            let answer = self.probe.get(format!("{url}/health")).send().await.ok()?;
            answer.status().is_success().then_some(url)
        };
        match timeout(START_LIMIT, answered).await {
            Ok(Some(url)) => Ok(Server { name: self.name, child: self.child, url, _active: self.starting.healthy() }),
            failed => {
                self.starting.failed(if failed.is_err() { "timeout" } else { "exited" });
                Err(std::io::Error::other(format!("{} did not become healthy", self.name)))
            }
        }
    }
}

impl Server {
    fn terminate(&self) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // SAFETY: kill only sends a signal; the pid is that of a child which has not been awaited yet.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }
}

/// Reads the server's stdout until it says where it listens. What it prints later goes to our stderr, under its name.
async fn ready_line(name: &'static str, stdout: ChildStdout) -> Option<String> {
    let mut lines = BufReader::new(stdout).lines();
    let url = loop {
        match lines.next_line().await.ok()?? {
            line if line.starts_with("listening on ") => break line["listening on ".len()..].to_owned(),
            line => eprintln!("({name}) {line}"),
        }
    };
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            eprintln!("({name}) {line}");
        }
    });
    Some(url)
}
