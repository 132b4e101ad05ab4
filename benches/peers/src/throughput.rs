//! Servers on loopback sockets, one worker thread each, and a load from this process: requests a second, and what a request
//! costs the server's process in time on a core, export thread and system calls included.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;
use tower_service::Service;

use crate::process::{Peer, answer, cpu_nanoseconds};
use crate::table::{Row, header, quantile, ratio, row, whole};
use crate::{app, server, telemetry};

const CONNECTIONS: usize = 64;

const ROWS: &[Row] = &[
    Row("bare", "router alone"),
    Row("own-off", "this layer around the router, off"),
    Row("own", "– sampled, metrics"),
    Row("own-inner", "this layer in `Router::layer`, sampled, metrics"),
    Row("instrumentation", "opentelemetry-instrumentation-tower, sampled, metrics"),
];

struct Server {
    peer: Peer,
    port: u16,
    requests: f64,
    spans: f64,
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

impl Server {
    fn start(name: &str) -> Self {
        let mut peer = Peer::start("serve", name);
        let port = peer.ask("port")[0] as u16;
        Self { peer, port, requests: 0.0, spans: 0.0, rates: Vec::new(), cpu: Vec::new() }
    }

    fn round(&mut self, duration: Duration) {
        let before = self.peer.ask("figures");
        let started = Instant::now();
        let requests = load(self.port, started + duration) as f64;
        let elapsed = started.elapsed();
        let after = self.peer.ask("figures");
        self.requests += requests;
        self.spans += after[1] - before[1];
        self.rates.push(requests / elapsed.as_secs_f64());
        self.cpu.push((after[0] - before[0]) / requests);
    }
}

pub fn table(rounds: usize, duration: Duration) {
    let mut servers: Vec<_> = ROWS.iter().map(|Row(name, _)| Server::start(name)).collect();
    for round in 0..rounds {
        for turn in 0..servers.len() {
            servers[(turn + round) % ROWS.len()].round(duration);
        }
    }
    let columns = ["requests/s", "× alone", "CPU µs a request", "× alone", "spans a request"];
    header("Over loopback, 64 connections", &columns);
    let (base_rates, base_cpu) = (servers[0].rates.clone(), servers[0].cpu.clone());
    for (Row(_, title), server) in ROWS.iter().zip(&servers) {
        let cells = [
            whole(quantile(&server.rates, 0.5)),
            ratio(&server.rates, &base_rates),
            format!("{:.2}", quantile(&server.cpu, 0.5) / 1e3),
            ratio(&server.cpu, &base_cpu),
            format!("{:.2}", server.spans / server.requests),
        ];
        row(title, &cells);
    }
}

/// Every connection asks again as soon as it has its answer. Returns how many answers came.
fn load(port: u16, until: Instant) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let connections: Vec<_> = (0..CONNECTIONS).map(|_| tokio::spawn(connection(port, until))).collect();
        let mut answers = 0;
        for connection in connections {
            answers += connection.await.expect("a connection").expect("answers");
        }
        answers
    })
}

async fn connection(port: u16, until: Instant) -> std::io::Result<usize> {
    let headers: String = app::headers(true).iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!("POST {} HTTP/1.1\r\n{headers}\r\n{}", app::PATH, app::BODY);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = first_answer(&mut stream).await?;
    let mut answers = 1;
    while Instant::now() < until {
        stream.write_all(request.as_bytes()).await?;
        // All answers are of the same length, so that nothing has to be parsed here.
        stream.read_exact(&mut answer).await?;
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
        answers += 1;
    }
    Ok(answers)
}

async fn first_answer(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    while !answer.ends_with(app::REPLY.as_bytes()) {
        assert_ne!(stream.read_buf(&mut answer).await?, 0, "{}", String::from_utf8_lossy(&answer));
    }
    Ok(answer)
}

pub fn serve(name: &str) {
    server::run(name, app::router(app::reply), Serve);
}

struct Serve;

impl server::Bench for Serve {
    fn run<S, B>(self, service: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        // `axum::serve` takes axum's body alone. `Body::new` leaves one of axum's as it is.
        let service = service.map_response(|response| response.map(Body::new));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        runtime.spawn(async move {
            axum::serve(listener, <_ as axum::ServiceExt<Request<Body>>>::into_make_service(service)).await
        });
        answer(|question| match question {
            "port" => vec![f64::from(port)],
            _ => {
                telemetry::drain();
                vec![cpu_nanoseconds(libc::CLOCK_PROCESS_CPUTIME_ID), telemetry::exported() as f64]
            }
        });
    }
}
