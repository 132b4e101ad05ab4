//! Memory of requests that wait in their handler: what is on the heap for each, over the router alone.

use std::convert::Infallible;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use tower::ServiceExt;
use tower_service::Service;

use crate::allocator::counted;
use crate::process::{Peer, answer};
use crate::table::{Row, header, row, whole};
use crate::{app, server, telemetry};

const REQUESTS: usize = 16_384;
/// What this layer may add around a router: SERVER and Gym span and metrics together.
const LIMIT: f64 = 1_792.0;
const LIMITED: &str = "own";

const ROWS: &[Row] = &[
    Row("bare", "router alone"),
    Row("own-off", "this layer around the router, off"),
    Row("own", "– sampled, metrics"),
    Row("own-one-span", "– sampled, metrics, SERVER span alone"),
    Row("own-inner-off", "this layer in `Router::layer`, off"),
    Row("own-inner", "– sampled, metrics"),
    Row("instrumentation", "opentelemetry-instrumentation-tower, sampled, metrics"),
    Row("axum-tracing", "axum-tracing-opentelemetry, sampled"),
    Row("trace-layer", "tower-http TraceLayer, sampled"),
];

pub fn table() -> ExitCode {
    header("Bytes per request in flight, 16 384 requests", &["bytes", "added"]);
    let (mut base, mut exit) = (None, ExitCode::SUCCESS);
    for Row(name, title) in ROWS {
        let bytes = Peer::start("in-flight", name).ask("bytes")[0];
        let added = bytes - *base.get_or_insert(bytes);
        row(title, &[whole(bytes), whole(added)]);
        if *name == LIMITED && added > LIMIT {
            eprintln!("this layer around the router, sampled, metrics: {added} bytes added, above {LIMIT}");
            exit = ExitCode::FAILURE;
        }
    }
    exit
}

pub fn park_requests(name: &str) {
    server::run(name, app::router(parked), Parked);
}

static RELEASED: AtomicBool = AtomicBool::new(false);

async fn parked(body: Bytes) -> impl IntoResponse {
    let released = |_: &mut Context<'_>| if RELEASED.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending };
    std::future::poll_fn(released).await;
    app::reply(body).await
}

struct Parked;

impl server::Bench for Parked {
    fn run<S, B>(self, service: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let call = || Box::pin(service.clone().oneshot(app::request(true)));
        // What is made once, at the first request, is not for each of them.
        RELEASED.store(true, Relaxed);
        let Ok(response) = app::finish(call().as_mut());
        app::read_to_end(response);
        telemetry::drain();
        RELEASED.store(false, Relaxed);

        let mut calls = Vec::with_capacity(REQUESTS);
        let ((), _, bytes) = counted(|| {
            for _ in 0..REQUESTS {
                let mut call = call();
                assert!(poll(call.as_mut()).is_pending(), "it waits in its handler");
                calls.push(call);
            }
        });
        answer(|_| vec![bytes as f64 / REQUESTS as f64]);

        RELEASED.store(true, Relaxed);
        for mut call in calls {
            let Poll::Ready(Ok(response)) = poll(call.as_mut()) else { panic!("it was released") };
            app::read_to_end(response);
        }
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
