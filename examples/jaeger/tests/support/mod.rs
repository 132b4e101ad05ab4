//! The example as a process of its own, on free ports, and what its UI would be told.

#![allow(dead_code, reason = "each test file is a crate and uses a part")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

pub fn jaeger(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jaeger"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Killed when it is dropped.
pub struct Jaeger {
    pub child: Child,
    pub grpc: String,
    pub http: String,
    pub ui: String,
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Jaeger {
    pub fn start() -> Self {
        let mut child = jaeger(&["--grpc", "0", "--http", "0", "--ui", "0"]).stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |name: &str| {
            let line = lines.next().unwrap().unwrap();
            line.strip_prefix(name).unwrap_or_else(|| panic!("{line:?} is not {name}")).trim().to_owned()
        };
        let (grpc, http, ui) = (address("OTLP gRPC"), address("OTLP http/protobuf"), address("Jaeger UI"));
        Self { child, grpc, http, ui }
    }

    async fn data(&self, path: &str) -> Vec<Value> {
        let answer = client().get(format!("{}/api/{path}", self.ui)).send().await.unwrap();
        let mut answer: Value = answer.error_for_status().unwrap().json().await.unwrap();
        serde_json::from_value(answer["data"].take()).unwrap()
    }

    pub async fn services(&self) -> Vec<Value> {
        self.data("services").await
    }

    /// The traces that begin in this service.
    pub async fn traces(&self, service: &str) -> Vec<Trace> {
        let traces = self.data(&format!("traces?limit=100&service={service}")).await;
        traces.into_iter().map(Trace).collect()
    }

    pub async fn trace(&self, id: &str) -> Trace {
        Trace(self.data(&format!("traces/{id}")).await.remove(0))
    }
}

pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

#[derive(Debug)]
pub struct Trace(pub Value);

impl Trace {
    pub fn spans(&self) -> &Vec<Value> {
        self.0["spans"].as_array().unwrap()
    }

    pub fn span(&self, name: &str, kind: &str) -> &Value {
        let found = |span: &&Value| span["operationName"] == name && tag(span, "span.kind") == kind;
        self.spans().iter().find(found).unwrap_or_else(|| panic!("no {kind} span {name} in {self:#?}"))
    }

    /// Where the UI puts the span: below the first reference that is in the trace.
    pub fn parent(&self, span: &Value) -> Option<&Value> {
        let references = span["references"].as_array()?;
        references.iter().find_map(|link| self.spans().iter().find(|span| span["spanID"] == link["spanID"]))
    }

    /// How many spans the UI takes for ones whose parent is missing: more than none marks the trace "Incomplete".
    pub fn orphans(&self) -> usize {
        let refers = |span: &&Value| span["references"].as_array().is_some_and(|links| !links.is_empty());
        self.spans().iter().filter(refers).filter(|span| self.parent(span).is_none()).count()
    }

    pub fn process(&self, span: &Value) -> &Value {
        &self.0["processes"][span["processID"].as_str().unwrap()]
    }
}

/// A tag's value of a span or process; null without the tag.
pub fn tag<'a>(of: &'a Value, key: &str) -> &'a Value {
    let tags = of["tags"].as_array().unwrap();
    tags.iter().find(|tag| tag["key"] == key).map_or(&Value::Null, |tag| &tag["value"])
}
