//! A stand-in for a neighbour: records what it is asked and answers by a function.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

/// A request as the stand-in got it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// A header's values, joined.
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<&str> = self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        if values.is_empty() { None } else { Some(values.join(", ")) }
    }
}

/// What a stand-in answers.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub set_cookie: Vec<String>,
    pub body: String,
}

impl Answer {
    pub fn json(status: u16, body: &Value) -> Self {
        Self { status, set_cookie: Vec::new(), body: body.to_string() }
    }
}

/// A running stand-in.
#[derive(Debug)]
pub struct StandIn {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl StandIn {
    /// Starts one that answers by `answer`, on a free port.
    pub async fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (record, answer) = (asked.clone(), Arc::new(answer));
        let app = Router::new().fallback(move |request: Request| {
            let (record, answer) = (record.clone(), answer.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.expect("a whole request");
                let asked = Asked {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    headers: parts.headers,
                    body,
                };
                let answer = answer(&asked);
                record.lock().expect("not poisoned").push(asked);
                respond(answer)
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, asked }
    }

    /// What it was asked since the last call.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().expect("not poisoned"))
    }
}

fn respond(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).expect("a status");
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    for cookie in answer.set_cookie {
        response = response.header("set-cookie", cookie);
    }
    let body = if status == StatusCode::NO_CONTENT { Body::empty() } else { Body::from(answer.body) };
    response.body(body).expect("a response")
}
