//! Time and allocations of a request: the candidates take turns, each in its process, with requests that were made
//! beforehand and are driven by hand on one thread.

use std::convert::Infallible;
use std::pin::pin;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, Request, Response};
use tower::ServiceExt;
use tower_service::Service;

use crate::allocator::counted;
use crate::process::{Peer, answer, cpu_nanoseconds};
use crate::table::{Row, header, quantile, ratio, row, whole};
use crate::{app, client, server, telemetry};

/// Two spans each stay below the batch size: no export starts inside of a segment.
const REQUESTS: usize = 200;
const SEGMENTS: usize = 5;

pub fn table(title: &str, role: &str, rows: &[Row], rounds: usize) {
    let mut peers: Vec<_> = rows.iter().map(|Row(name, _)| (Peer::start(role, name), Vec::new())).collect();
    for round in 0..rounds {
        for turn in 0..peers.len() {
            // Another order each round, for no candidate always to follow the same one.
            let at = (turn + round) % rows.len();
            let (peer, times) = &mut peers[at];
            times.push(peer.ask("time")[0]);
        }
    }
    header(title, &["ns", "added ns", "× alone", "allocations added", "spans"]);
    let base_times = peers[0].1.clone();
    let base_allocations = peers[0].0.ask("counts")[0];
    for (Row(_, title), (peer, times)) in rows.iter().zip(&mut peers) {
        let ns = undisturbed(times);
        let [allocations, spans] = peer.ask("counts")[..] else { panic!("two counts") };
        let figures = [
            whole(ns),
            whole(ns - undisturbed(&base_times)),
            ratio(times, &base_times),
            whole(allocations - base_allocations),
            whole(spans),
        ];
        row(title, &figures);
    }
}

/// What else the machine does only ever adds time.
fn undisturbed(times: &[f64]) -> f64 {
    quantile(times, 0.1)
}

trait Segment {
    fn prepare(&mut self);
    fn run(&mut self);
}

fn answer_with(mut segment: impl Segment) {
    answer(|question| match question {
        "time" => {
            let mut times = Vec::with_capacity(SEGMENTS);
            for _ in 0..SEGMENTS {
                segment.prepare();
                let before = cpu_nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID);
                segment.run();
                times.push((cpu_nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID) - before) / REQUESTS as f64);
                telemetry::drain();
            }
            vec![quantile(&times, 0.5)]
        }
        _ => {
            segment.prepare();
            let spans = telemetry::exported();
            let ((), allocations, _) = counted(|| segment.run());
            telemetry::drain();
            [allocations, telemetry::exported() - spans].map(|count| count as f64 / REQUESTS as f64).to_vec()
        }
    });
}

pub fn serve_requests(name: &str) {
    server::run(name, app::router(app::reply), Requests { sampled: server::sampled(name) });
}

struct Requests {
    sampled: bool,
}

impl server::Bench for Requests {
    fn run<S, B>(self, service: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        answer_with(Server { service, sampled: self.sampled, requests: Vec::with_capacity(REQUESTS) });
    }
}

struct Server<S> {
    service: S,
    sampled: bool,
    requests: Vec<Request<Body>>,
}

impl<S, B> Segment for Server<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body,
{
    fn prepare(&mut self) {
        self.requests.extend((0..REQUESTS).map(|_| app::request(self.sampled)));
    }

    fn run(&mut self) {
        for request in self.requests.drain(..) {
            // A clone for each request, as hyper-util makes.
            let Ok(response) = app::finish(pin!(self.service.clone().oneshot(request)));
            app::read_to_end(response);
        }
    }
}

pub fn make_calls(name: &str) {
    answer_with(Client { client: client::client(name), requests: Vec::with_capacity(REQUESTS) });
}

struct Client {
    client: reqwest_middleware::ClientWithMiddleware,
    requests: Vec<reqwest::Request>,
}

impl Segment for Client {
    fn prepare(&mut self) {
        let url: reqwest::Url = "http://127.0.0.1:8000/v1/responses".parse().expect("a URL");
        self.requests.extend((0..REQUESTS).map(|_| {
            let mut request = reqwest::Request::new(Method::POST, url.clone());
            request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
            request
        }));
    }

    fn run(&mut self) {
        for request in self.requests.drain(..) {
            let mut response = app::finish(pin!(self.client.execute(request))).expect("the canned answer");
            while let Some(chunk) = app::finish(pin!(response.chunk())).expect("a body") {
                drop(std::hint::black_box(chunk));
            }
        }
    }
}
