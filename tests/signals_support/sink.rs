//! The Python OTLP sink: an implementation independent of ours.

use std::collections::HashSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub struct Sink {
    process: Child,
    directory: tempfile::TempDir,
    pub grpc: u16,
    pub http: u16,
}

impl Sink {
    /// `None` where Python or the sink is missing, unless everything is required.
    pub fn start() -> Option<Self> {
        let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let python = std::env::var_os("NEMO_GYM_PYTHON").map_or(manifest.join(".venv/bin/python"), PathBuf::from);
        let shared = std::env::var_os("NEMO_GYM_SHARED").map_or(manifest.join("../shared"), PathBuf::from);
        let script = shared.join("otlp/otlp_sink.py");
        if !python.exists() || !script.exists() {
            let required = std::env::var("NEMO_GYM_TELEMETRY_REQUIRE_ALL").is_ok_and(|value| value == "1");
            assert!(!required, "{} or {} is missing", python.display(), script.display());
            eprintln!("skipped: {} or {} is missing", python.display(), script.display());
            return None;
        }
        // The sink takes port numbers, so free ones are found here; another process may take one meanwhile.
        for _ in 0..5 {
            let [grpc, http] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
            let [grpc, http] = [grpc, http].map(|listener| listener.local_addr().unwrap().port());
            let directory = tempfile::tempdir().unwrap();
            let process = Command::new(&python)
                .arg(&script)
                .args(["--grpc", &grpc.to_string(), "--http", &http.to_string(), "--out"])
                .arg(directory.path())
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            let mut sink = Self { process, directory, grpc, http };
            if sink.wait_until_ready() {
                return Some(sink);
            }
        }
        panic!("the sink does not start");
    }

    fn wait_until_ready(&mut self) -> bool {
        let deadline = Instant::now() + super::PATIENCE;
        while !self.directory.path().join("ready").exists() {
            if self.process.try_wait().unwrap().is_some() || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// The export requests of a signal: `traces`, `metrics`, `logs`.
    pub fn requests(&self, signal: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.path().join(format!("{signal}.jsonl"))).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The ids of all spans that were stored, and how many were stored in all.
    pub fn span_ids(&self) -> (HashSet<String>, usize) {
        let mut ids = HashSet::new();
        let mut stored = 0;
        for request in self.requests("traces") {
            for span in items(&request, "resourceSpans", "scopeSpans", "spans") {
                ids.insert(span["spanId"].as_str().unwrap().to_owned());
                stored += 1;
            }
        }
        (ids, stored)
    }

    /// The texts of all log records that were stored.
    pub fn log_bodies(&self) -> Vec<String> {
        let requests = self.requests("logs");
        let records = requests.iter().flat_map(|request| items(request, "resourceLogs", "scopeLogs", "logRecords"));
        records.map(|record| record["body"]["stringValue"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// The innermost items of a request.
pub fn items<'a>(request: &'a Value, outer: &str, middle: &str, inner: &str) -> Vec<&'a Value> {
    let list = |value: &'a Value, key: &str| value[key].as_array().cloned().unwrap_or_default().len();
    let mut found = Vec::new();
    for i in 0..list(request, outer) {
        let outer = &request[outer][i];
        for j in 0..list(outer, middle) {
            let middle = &outer[middle][j];
            found.extend(middle[inner].as_array().into_iter().flatten());
        }
    }
    found
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
