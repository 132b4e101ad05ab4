//! `../shared/otlp/otlp_sink.py`, an OTLP receiver on Google's gRPC and protobuf, and what it received.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::process::{PATIENCE, Process, isolated};

/// The directory beside the repository that holds the Python peers.
fn shared(file: &str) -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    std::env::var_os("NEMO_GYM_SHARED").map_or_else(beside, PathBuf::from).join(file)
}

/// A Python that can run a peer, and the peer's program. `None`, said on stderr, where either is missing; a failure where
/// `NEMO_GYM_TELEMETRY_REQUIRE_ALL=1` asks for all tests.
pub fn python_peer(file: &str, modules: &str) -> Option<(PathBuf, PathBuf)> {
    let of_repository = || Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    let python = std::env::var_os("NEMO_GYM_PYTHON").map_or_else(of_repository, PathBuf::from);
    let program = shared(file);
    let import = std::process::Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    let missing = if !program.exists() {
        format!("{} is not there", program.display())
    } else if !import.is_ok_and(|output| output.status.success()) {
        format!("{} cannot import {modules}", python.display())
    } else {
        return Some((python, program));
    };
    assert!(std::env::var("NEMO_GYM_TELEMETRY_REQUIRE_ALL").as_deref() != Ok("1"), "{missing}");
    eprintln!("skipped: {missing}");
    None
}

/// A command that runs a peer.
pub fn python_command((python, program): &(PathBuf, PathBuf)) -> tokio::process::Command {
    let mut command = isolated(python.clone());
    command.arg(program);
    command
}

/// A port that was free a moment ago, for programs that cannot choose one themselves.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// A running sink.
#[derive(Debug)]
pub struct Sink {
    process: Process,
    directory: tempfile::TempDir,
    grpc: u16,
    http: u16,
}

impl Sink {
    /// Starts a sink; `None` where there is no Python for it.
    pub async fn start() -> Option<Self> {
        let peer = python_peer("otlp/otlp_sink.py", "grpc, google.protobuf, opentelemetry.proto")?;
        // Another process may take the port in between, so this may take more than one attempt.
        for _ in 0..5 {
            let directory = tempfile::tempdir().expect("a directory");
            let (grpc, http) = (free_port(), free_port());
            let mut command = python_command(&peer);
            command.args(["--grpc", &grpc.to_string(), "--http", &http.to_string()]).arg("--out").arg(directory.path());
            let mut process = Process::spawn(command);
            if ready(&mut process, &directory.path().join("ready")).await {
                return Some(Self { process, directory, grpc, http });
            }
        }
        panic!("the sink does not start");
    }

    /// The endpoint for a protocol, as `OTEL_EXPORTER_OTLP_ENDPOINT` takes it.
    pub fn endpoint(&self, protocol: &str) -> String {
        format!("http://127.0.0.1:{}", if protocol == "grpc" { self.grpc } else { self.http })
    }

    /// Ends the sink; what it received.
    pub async fn stop(mut self) -> Received {
        assert!(self.process.terminate().await.success(), "{}", self.process.stderr());
        let lines = |file: &str| -> Vec<Value> {
            let text = std::fs::read_to_string(self.directory.path().join(file)).unwrap_or_default();
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
        };
        Received { traces: lines("traces.jsonl"), metrics: lines("metrics.jsonl") }
    }
}

async fn ready(process: &mut Process, file: &Path) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && !process.has_ended() {
        if file.exists() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// Export requests, one each.
#[derive(Debug)]
pub struct Received {
    traces: Vec<Value>,
    pub metrics: Vec<Value>,
}

/// A received span.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: String,
    pub id: String,
    pub parent: Option<String>,
    pub name: String,
    pub kind: String,
    pub status: String,
    pub attributes: HashMap<String, Value>,
    pub resource: HashMap<String, Value>,
    pub protocol: String,
    pub links: usize,
}

impl Span {
    pub fn service(&self) -> &str {
        self.resource["service.name"].as_str().expect("a text")
    }

    pub fn text(&self, key: &str) -> &str {
        self.attributes.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Received {
    /// All spans, in the order they came.
    pub fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for request in &self.traces {
            for of_resource in elements(&request["resourceSpans"]) {
                let resource = attributes(&of_resource["resource"]["attributes"]);
                for span in elements(&of_resource["scopeSpans"]).flat_map(|scope| elements(&scope["spans"])) {
                    let text = |key: &str| span[key].as_str().unwrap_or_default().to_owned();
                    let code = span["status"]["code"].as_str().unwrap_or("STATUS_CODE_UNSET");
                    spans.push(Span {
                        trace: text("traceId"),
                        id: text("spanId"),
                        parent: span["parentSpanId"].as_str().map(str::to_owned),
                        name: text("name"),
                        kind: text("kind").replace("SPAN_KIND_", ""),
                        status: code.replace("STATUS_CODE_", ""),
                        attributes: attributes(&span["attributes"]),
                        resource: resource.clone(),
                        protocol: request["_protocol"].as_str().unwrap_or_default().to_owned(),
                        links: elements(&span["links"]).count(),
                    });
                }
            }
        }
        spans
    }

    /// The count of a histogram at its last export, summed over series, by service name. Cumulative: a datum that was
    /// exported twice does not count twice, one that was recorded twice does.
    pub fn histogram_counts(&self, metric: &str) -> HashMap<String, u64> {
        let mut counts = HashMap::new();
        for of_resource in self.metrics.iter().flat_map(|request| elements(&request["resourceMetrics"])) {
            let service = attributes(&of_resource["resource"]["attributes"])["service.name"].clone();
            let metrics = elements(&of_resource["scopeMetrics"]).flat_map(|scope| elements(&scope["metrics"]));
            for metric in metrics.filter(|found| found["name"] == metric) {
                let points = elements(&metric["histogram"]["dataPoints"]);
                let count =
                    points.map(|point| point["count"].as_str().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)).sum();
                counts.insert(service.as_str().unwrap_or_default().to_owned(), count);
            }
        }
        counts
    }
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Attributes by key; 64-bit integers, which are texts in this format, as numbers.
fn attributes(list: &Value) -> HashMap<String, Value> {
    let value = |value: &Value| match value["intValue"].as_str().map(str::parse::<i64>) {
        Some(Ok(number)) => number.into(),
        _ => value.as_object().and_then(|value| value.values().next()).cloned().unwrap_or_default(),
    };
    elements(list).map(|pair| (pair["key"].as_str().unwrap_or_default().to_owned(), value(&pair["value"]))).collect()
}
