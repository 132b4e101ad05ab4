//! Calls that fail: always one span, an `error.type` of a small closed set, never the error's own text.

mod egress_support;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use egress_support::*;
use opentelemetry::Value;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest_middleware::ClientBuilder;

/// Every value there is beside status codes.
const FAILURES: [&str; 9] =
    ["timeout", "connect", "disconnected", "request", "redirect", "body", "cancelled", "panic", "_OTHER"];

struct NoSuchHost;
impl Resolve for NoSuchHost {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(std::future::ready(Err(format!("no such host: {}", name.as_str()).into())))
    }
}

struct NoAnswer;
impl Resolve for NoAnswer {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(std::future::pending())
    }
}

/// Sends one request and reads its body; the span's and the sample's `error.type`.
async fn failure(client: reqwest::ClientBuilder, url: &str) -> String {
    let rig = Rig::new();
    let client = ClientBuilder::new(client.build().unwrap()).with(rig.middleware()).build();
    let (text_of_error, status) = match client.get(url).send().await {
        Err(error) => (format!("{error:?}"), None),
        Ok(response) => {
            let status = i64::from(response.status().as_u16());
            let text = response.bytes().await.err().map(|error| format!("{error:?}"));
            (text.unwrap_or_default(), Some(Value::I64(status)))
        }
    };
    let span = rig.span();
    assert!(is_error(&span), "{span:?}");
    assert_eq!(attribute(&span, "http.response.status_code"), status);
    let error_type = text(&span, "error.type").unwrap();
    let known = FAILURES.contains(&error_type.as_str());
    assert!(known || status.is_some_and(|status| status.as_str() == error_type.as_str()), "{error_type}");
    // The path stands in url.full and nowhere else.
    let recorded = format!("{span:?}");
    assert_eq!(recorded.matches("secret-path").count(), usize::from(url.contains("secret-path")), "{recorded}");
    assert!(text_of_error.is_empty() || !recorded.contains(&text_of_error));
    let points = rig.points();
    assert_eq!(total(&points, "http.client.request.duration", &format!("error.type={error_type} ")), 1, "{points:?}");
    let timeouts = total(&points, "gym.http.timeout_total", "nemo.gym.http.internal=false");
    assert_eq!(timeouts, u64::from(error_type == "timeout"));
    error_type
}

fn plain() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
}

#[tokio::test]
async fn transport_failures() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    assert_eq!(failure(plain(), &format!("http://{closed}/secret-path")).await, "connect");
    let no_host = plain().dns_resolver(Arc::new(NoSuchHost));
    assert_eq!(failure(no_host, "http://nowhere.invalid/secret-path").await, "connect");
    let short = Duration::from_millis(50);
    let slow_to_connect = plain().dns_resolver(Arc::new(NoAnswer)).connect_timeout(short);
    assert_eq!(failure(slow_to_connect, "http://somewhere.invalid/secret-path").await, "timeout");

    let (silent, _) = raw_server(vec![Act::Hang("")]).await;
    assert_eq!(failure(plain().read_timeout(short), &format!("http://{silent}/")).await, "timeout");
    assert_eq!(failure(plain().timeout(short), &format!("http://{silent}/")).await, "timeout");

    let (closing, _) = raw_server(vec![Act::Close]).await;
    assert_eq!(failure(plain(), &format!("http://{closing}/secret-path")).await, "disconnected");
    let (resetting, _) = raw_server(vec![Act::Reset]).await;
    assert_eq!(failure(plain(), &format!("http://{resetting}/secret-path")).await, "disconnected");
    let (garbage, _) = raw_server(vec![Act::Answer("SSH-2.0-secret\r\n\r\n")]).await;
    assert_eq!(failure(plain(), &format!("http://{garbage}/")).await, "request");
}

#[tokio::test]
async fn bodies_that_fail_after_a_good_head() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nten bytes.";
    let (truncated, _) = raw_server(vec![Act::Answer(HEAD)]).await;
    assert_eq!(failure(plain(), &format!("http://{truncated}/")).await, "disconnected");
    let (stalled, _) = raw_server(vec![Act::Hang(HEAD)]).await;
    let short = Duration::from_millis(50);
    assert_eq!(failure(plain().read_timeout(short), &format!("http://{stalled}/")).await, "timeout");
    assert_eq!(failure(plain().timeout(short), &format!("http://{stalled}/")).await, "timeout");
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a length\r\n";
    let (broken, _) = raw_server(vec![Act::Answer(chunks)]).await;
    assert_eq!(failure(plain(), &format!("http://{broken}/")).await, "body");
}

#[tokio::test]
async fn a_timeout_in_the_body_is_still_a_timeout_to_the_caller() {
    let rig = Rig::new();
    let (stalled, _) = raw_server(vec![Act::Hang("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")]).await;
    let response = rig.client().get(format!("http://{stalled}/")).timeout(Duration::from_millis(50)).send().await;
    assert!(response.unwrap().bytes().await.unwrap_err().is_timeout());
}

#[tokio::test]
async fn error_statuses_are_errors_of_the_client() {
    let router = Router::new().route(
        "/{status}",
        get(|axum::extract::Path(status): axum::extract::Path<u16>| async move {
            http::StatusCode::from_u16(status).unwrap()
        }),
    );
    let (address, _) = serve(router).await;
    for status in [400_u16, 404, 418, 429, 499, 500, 503, 599] {
        assert_eq!(failure(plain(), &format!("http://{address}/{status}")).await, status.to_string());
    }
}

#[tokio::test]
async fn a_redirect_loop_is_a_redirect_failure() {
    let to_itself = || async { axum::response::Redirect::temporary("/") };
    let (address, _) = serve(Router::new().route("/", get(to_itself))).await;
    assert_eq!(failure(plain(), &format!("http://{address}/")).await, "redirect");
}

#[tokio::test]
async fn another_middlewares_error_is_of_no_known_kind() {
    struct Refuses;
    #[async_trait::async_trait]
    impl reqwest_middleware::Middleware for Refuses {
        async fn handle(
            &self,
            _: reqwest::Request,
            _: &mut http::Extensions,
            _: reqwest_middleware::Next<'_>,
        ) -> reqwest_middleware::Result<reqwest::Response> {
            Err(reqwest_middleware::Error::middleware(std::io::Error::other("text with a secret")))
        }
    }
    let rig = Rig::new();
    let client = ClientBuilder::new(reqwest::Client::new()).with(rig.middleware()).with(Refuses).build();
    client.get("http://127.0.0.1:1/").send().await.unwrap_err();
    let span = rig.span();
    assert_eq!(text(&span, "error.type").unwrap(), "_OTHER");
    assert!(!format!("{span:?}").contains("secret"));
}

#[tokio::test]
async fn a_panic_inside_ends_the_call_and_goes_on() {
    struct Panics;
    #[async_trait::async_trait]
    impl reqwest_middleware::Middleware for Panics {
        async fn handle(
            &self,
            _: reqwest::Request,
            _: &mut http::Extensions,
            _: reqwest_middleware::Next<'_>,
        ) -> reqwest_middleware::Result<reqwest::Response> {
            panic!("user code")
        }
    }
    let rig = Rig::new();
    let client = ClientBuilder::new(reqwest::Client::new()).with(rig.middleware()).with(Panics).build();
    let task = tokio::spawn(async move { client.get("http://127.0.0.1:1/").send().await });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(text(&rig.span(), "error.type").unwrap(), "panic");
}
