//! The three servers as child processes.

use std::process::Stdio;
use std::time::Duration;

use nemo_gym_telemetry::{TelemetryEnv, get_telemetry};
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
}

/// All running servers. Dropping it kills what still runs.
#[derive(Debug)]
pub struct Fleet {
    servers: Vec<Server>,
    agent_url: String,
}

impl Fleet {
    /// Starts the servers, each on a free port, and waits until all are ready.
    ///
    /// # Errors
    /// When one cannot be started or does not become ready.
    pub async fn start(telemetry: &TelemetryEnv, observability: bool) -> std::io::Result<Self> {
        let config = configuration(observability);
        let start = |name, arguments| Server::start(name, telemetry, &config, arguments);
        let (resources, model) = tokio::try_join!(start(RESOURCES, vec![]), start(MODEL, vec![]))?;
        let arguments = vec!["--model-url", &model.url, "--resources-url", &resources.url];
        let agent = start(AGENT, arguments).await?;
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

impl Server {
    async fn start(
        name: &'static str,
        telemetry: &TelemetryEnv,
        config: &str,
        arguments: Vec<&str>,
    ) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--role", name, "--port", "0"]).args(arguments);
        command.env("NEMO_GYM_CONFIG_PATH", name).env("NEMO_GYM_CONFIG_DICT", config);
        telemetry.apply_to(&mut command);
        // Our receiver does not unpack; an endpoint of the user's keeps the user's choice.
        if telemetry.iter().any(|(variable, _)| variable == "OTEL_EXPORTER_OTLP_ENDPOINT") {
            for signal in ["", "TRACES_", "METRICS_", "LOGS_"] {
                command.env(format!("OTEL_EXPORTER_OTLP_{signal}COMPRESSION"), "none");
            }
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| std::io::Error::other("no stdout"))?;
        let ready = timeout(START_LIMIT, ready_line(name, stdout)).await;
        let url = ready.ok().flatten().ok_or_else(|| std::io::Error::other(format!("{name} did not become ready")))?;
        Ok(Self { name, child, url })
    }

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
