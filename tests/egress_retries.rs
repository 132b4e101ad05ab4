//! Retry middlewares inside, outside and between.

mod egress_support;

use std::time::Duration;

use egress_support::*;
use opentelemetry::trace::{FutureExt as _, Status};
use opentelemetry::{SpanId, Value};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;

const PAUSE: Duration = Duration::from_millis(40);

fn retry(times: u32) -> impl reqwest_middleware::Middleware {
    let policy = ExponentialBackoff::builder()
        .retry_bounds(PAUSE, PAUSE)
        .jitter(reqwest_retry::Jitter::None)
        .build_with_max_retries(times);
    RetryTransientMiddleware::new_with_policy(policy)
}

fn outside(rig: &Rig) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(rig.middleware()).with(retry(2)).build()
}

fn inside(rig: &Rig) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(retry(2)).with(rig.middleware()).build()
}

fn both(rig: &Rig) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(rig.middleware()).with(retry(2)).with(rig.middleware()).build()
}

/// The `traceparent` of each attempt.
fn sent(heads: &std::sync::Mutex<Vec<String>>) -> Vec<String> {
    let heads = heads.lock().unwrap();
    let lines = heads.iter().map(|head| head.lines().filter_map(|line| line.strip_prefix("traceparent: ")).collect());
    lines
        .map(|lines: Vec<_>| {
            assert_eq!(lines.len(), 1);
            lines[0].to_owned()
        })
        .collect()
}

#[tokio::test]
async fn around_a_retry_middleware_the_logical_call_is_one_span() {
    let rig = Rig::new();
    let (address, heads) = raw_server(vec![Act::Reset, BUSY, OK]).await;
    let request = outside(&rig).get(format!("http://{address}/"));
    let response = request.send().with_context(parent(true)).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "ok");
    let span = rig.span();
    assert_eq!(
        (span.status.clone(), attribute(&span, "http.response.status_code")),
        (Status::Unset, Some(Value::I64(200)))
    );
    assert!(span.end_time.duration_since(span.start_time).unwrap() >= PAUSE * 2);
    let own = format!("00-{T1}-{}-01", span.span_context.span_id());
    assert_eq!(sent(&heads), [own.clone(), own.clone(), own]);
    assert_eq!(total(&rig.points(), "http.client.request.duration", ""), 1);
}

#[tokio::test]
async fn on_both_sides_it_is_still_one_span_and_the_retries_are_counted_by_reason() {
    let rig = Rig::new();
    let (address, heads) = raw_server(vec![Act::Reset, BUSY, OK]).await;
    let request = both(&rig).get(format!("http://{address}/"));
    let response = request.send().with_context(parent(true)).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "ok");
    let span = rig.span();
    assert_eq!(span.status, Status::Unset);
    assert_eq!(attribute(&span, "http.request.resend_count"), Some(Value::I64(2)));
    let own = format!("00-{T1}-{}-01", span.span_context.span_id());
    assert_eq!(sent(&heads), [own.clone(), own.clone(), own]);
    let points = rig.points();
    assert_eq!(total(&points, "gym.http.retry_total", "reason=client_os_error"), 1, "{points:?}");
    assert_eq!(total(&points, "gym.http.retry_total", "reason=other"), 1, "{points:?}");
    assert_eq!(total(&points, "gym.http.retry_total", ""), 2);
    assert_eq!(total(&points, "http.client.request.duration", ""), 1);
}

#[tokio::test]
async fn inside_a_retry_middleware_every_attempt_is_a_span_with_its_ordinal() {
    let rig = Rig::new();
    let (address, heads) = raw_server(vec![Act::Close, BUSY, OK]).await;
    let request = inside(&rig).get(format!("http://{address}/"));
    let response = request.send().with_context(parent(true)).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "ok");
    let spans = rig.spans();
    let shape: Vec<_> =
        spans.iter().map(|span| (text(span, "error.type"), attribute(span, "http.request.resend_count"))).collect();
    assert_eq!(
        shape,
        [
            (Some("disconnected".to_owned()), None),
            (Some("503".to_owned()), Some(Value::I64(1))),
            (None, Some(Value::I64(2)))
        ]
    );
    assert!(spans.iter().all(|span| span.parent_span_id == SpanId::from_hex(S1).unwrap()));
    let own: Vec<_> = spans.iter().map(|span| format!("00-{T1}-{}-01", span.span_context.span_id())).collect();
    assert_eq!(sent(&heads), own);
    let points = rig.points();
    assert_eq!(total(&points, "gym.http.retry_total", "reason=server_disconnected"), 1, "{points:?}");
    assert_eq!(total(&points, "gym.http.retry_total", "reason=other"), 1, "{points:?}");
}

#[tokio::test]
async fn when_all_attempts_fail_the_last_failure_is_the_reason() {
    type Make = fn(&Rig) -> ClientWithMiddleware;
    for (acts, expected) in
        [(vec![BUSY, BUSY, Act::Reset], "disconnected"), (vec![Act::Reset, Act::Close, BUSY], "503")]
    {
        for (make, resent) in [(outside as Make, None), (both as Make, Some(Value::I64(2)))] {
            let rig = Rig::new();
            let (address, heads) = raw_server(acts.clone()).await;
            _ = make(&rig).get(format!("http://{address}/")).send().with_context(parent(true)).await;
            assert_eq!(heads.lock().unwrap().len(), 3);
            let span = rig.span();
            assert!(is_error(&span));
            assert_eq!(text(&span, "error.type").unwrap(), expected);
            assert_eq!(attribute(&span, "http.request.resend_count"), resent);
        }
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_sent_again_fails_without_a_panic() {
    let rig = Rig::new();
    let (address, _) = raw_server(vec![OK]).await;
    let stream = futures_util::stream::iter([Ok::<_, std::io::Error>("part")]);
    let request = both(&rig).post(format!("http://{address}/")).body(reqwest::Body::wrap_stream(stream));
    request.send().await.unwrap_err();
    assert_eq!(text(&rig.span(), "error.type").unwrap(), "_OTHER");
    assert_eq!(attribute(&rig.span(), "http.request.resend_count"), None);
}

#[tokio::test]
async fn attempts_are_counted_without_a_span_too() {
    let rig = Rig::new();
    let (address, heads) = raw_server(vec![BUSY, OK]).await;
    both(&rig).get(format!("http://{address}/")).send().with_context(parent(false)).await.unwrap();
    assert!(rig.spans().is_empty());
    let points = rig.points();
    assert_eq!(total(&points, "gym.http.retry_total", "reason=other"), 1, "{points:?}");
    assert_eq!(total(&points, "http.client.request.duration", ""), 1);
    let sent = sent(&heads);
    assert_eq!(sent[0], sent[1]);
}

/// A middleware that calls somewhere else first, as one that fetches a token does.
struct FetchesToken(ClientWithMiddleware, String);

#[async_trait::async_trait]
impl reqwest_middleware::Middleware for FetchesToken {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut http::Extensions,
        next: reqwest_middleware::Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        self.0.get(&self.1).send().await?;
        next.run(request, extensions).await
    }
}

#[tokio::test]
async fn another_call_made_inside_is_not_an_attempt() {
    let rig = Rig::new();
    let (address, heads) = raw_server(vec![OK]).await;
    let tokens = FetchesToken(rig.client(), format!("http://{address}/token"));
    let client =
        ClientBuilder::new(reqwest::Client::new()).with(rig.middleware()).with(tokens).with(rig.middleware()).build();
    let request = client.get(format!("http://{address}/main"));
    request.send().with_context(parent(true)).await.unwrap().text().await.unwrap();
    let spans = rig.spans();
    let paths: Vec<_> =
        spans.iter().map(|span| text(span, "url.full").unwrap().rsplit_once('/').unwrap().1.to_owned()).collect();
    assert_eq!(paths, ["token", "main"]);
    assert!(spans.iter().all(|span| attribute(span, "http.request.resend_count").is_none()));
    let own: Vec<_> = spans.iter().map(|span| format!("00-{T1}-{}-01", span.span_context.span_id())).collect();
    assert_eq!(sent(&heads), own);
    assert_eq!(total(&rig.points(), "gym.http.retry_total", ""), 0);
}

#[tokio::test]
async fn an_attempt_cut_off_by_a_time_limit_of_its_own_is_a_timeout() {
    /// Gives every attempt a limit, as a middleware between ours and the retrying one may.
    struct Limit(Duration);
    #[async_trait::async_trait]
    impl reqwest_middleware::Middleware for Limit {
        async fn handle(
            &self,
            request: reqwest::Request,
            extensions: &mut http::Extensions,
            next: reqwest_middleware::Next<'_>,
        ) -> reqwest_middleware::Result<reqwest::Response> {
            let answer = tokio::time::timeout(self.0, next.run(request, extensions)).await;
            // What the retry middleware takes for transient.
            answer.unwrap_or_else(|_| {
                let busy = http::Response::builder().status(503).body("").expect("a response");
                Ok(reqwest::Response::from(busy))
            })
        }
    }
    let rig = Rig::new();
    let (address, _) = raw_server(vec![Act::Hang(""), OK]).await;
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(rig.middleware())
        .with(retry(2))
        .with(Limit(Duration::from_millis(100)))
        .with(rig.middleware())
        .build();
    client.get(format!("http://{address}/")).send().await.unwrap().text().await.unwrap();
    assert_eq!(attribute(&rig.span(), "http.request.resend_count"), Some(Value::I64(1)));
    assert_eq!(total(&rig.points(), "gym.http.retry_total", "reason=timeout"), 1);
}
