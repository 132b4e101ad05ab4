//! The server that every candidate wraps, of about the size of a Gym server, and the request that it gets.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};

pub const PATH: &str = "/verify";
pub const BODY: &str = r#"{"response":{}}"#;
pub const REPLY: &str = r#"{"reward":1.0}"#;
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

pub async fn reply(_: Bytes) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], REPLY)
}

pub fn router<H: Handler<T, ()>, T: 'static>(verify: H) -> Router {
    let mut router = Router::new().route(PATH, post(verify));
    for path in ["/seed_session", "/aggregate_metrics", "/v1/responses", "/v1/chat/completions", "/run"] {
        router = router.route(path, post(reply));
    }
    for name in ["session", "item", "tool", "task", "state", "judge", "episode", "world", "asset", "log"] {
        router = router.route(&format!("/{name}"), post(reply)).route(&format!("/{name}/{{id}}"), get(reply));
    }
    router
}

pub fn headers(sampled: bool) -> [(&'static str, String); 7] {
    [
        ("host", "127.0.0.1:8000".to_owned()),
        ("accept", "*/*".to_owned()),
        ("accept-encoding", "gzip, deflate".to_owned()),
        ("user-agent", "Python/3.12 aiohttp/3.11".to_owned()),
        ("content-type", "application/json".to_owned()),
        ("content-length", BODY.len().to_string()),
        ("traceparent", format!("{TRACE}-{}", if sampled { "01" } else { "00" })),
    ]
}

pub fn request(sampled: bool) -> Request<Body> {
    let mut request = Request::new(Body::from(BODY));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(PATH);
    for (name, value) in headers(sampled) {
        request.headers_mut().insert(name, value.parse().expect("a header value"));
    }
    request
}

/// Polls until it is done: nothing here waits for anything.
pub fn finish<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// As hyper's HTTP/1 does: no poll at all if the body is at its end, and none after the frame that ends it.
pub fn read_to_end<B: http_body::Body>(response: Response<B>) {
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = pin!(response.into_body());
    while !body.is_end_stream() {
        match finish(pin!(std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)))) {
            Some(Ok(frame)) => drop(std::hint::black_box(frame)),
            Some(Err(_)) => panic!("a body that fails"),
            None => break,
        }
    }
}
