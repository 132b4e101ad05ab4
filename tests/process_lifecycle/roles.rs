//! What the child processes do.

use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, WebSocketUpgrade};
use axum::routing::get;
use nemo_gym_telemetry::ingress::GymTelemetryLayer;
use nemo_gym_telemetry::{
    ServerIdentity, ServerType, Telemetry, get_telemetry, init_telemetry, serve, shutdown_telemetry,
};
use opentelemetry::global;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Tracer, TracerProvider};
use tokio::runtime::{Builder, Runtime};
use tower_layer::Layer;

pub fn play(role: &str) -> ExitCode {
    match role {
        "serve" => runtime().block_on(serve_app()),
        "return" => runtime().block_on(async {
            let _guard = init().shutdown_guard();
            work();
            ExitCode::SUCCESS
        }),
        "fail" => runtime().block_on(async {
            let _guard = init().shutdown_guard();
            work();
            ExitCode::FAILURE
        }),
        "panic" => runtime().block_on(async {
            let _guard = init().shutdown_guard();
            work();
            panic!("in main");
        }),
        "exit" => runtime().block_on(async {
            init();
            work();
            shutdown_telemetry().await;
            std::process::exit(7);
        }),
        "init_16" => init_16(),
        "init_again" => init_again(),
        "idle" => {
            init();
            say("ready");
            idle()
        }
        "shut_down_and_idle" => {
            let telemetry = init();
            work();
            say("before");
            telemetry.shutdown_blocking(Duration::from_secs(1));
            say("after");
            idle()
        }
        "work_13_s" => {
            let _guard = init().shutdown_guard();
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(13) {
                work();
                thread::sleep(Duration::from_millis(200));
            }
            ExitCode::SUCCESS
        }
        other => panic!("unknown role {other}"),
    }
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// Until the parent kills this process.
fn idle() -> ! {
    loop {
        thread::park();
    }
}

fn runtime() -> Runtime {
    let mut builder = match std::env::var("TEST_RUNTIME").as_deref() {
        Ok("current_thread") => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.enable_all().build().unwrap()
}

fn init() -> Telemetry {
    init_telemetry(ServerIdentity::new("test_server", ServerType::ResourcesServers))
}

fn work() {
    let telemetry = get_telemetry();
    let counter = telemetry.meter_provider().meter("test").u64_counter("work").build();
    for _ in 0..200 {
        drop(telemetry.tracer_provider().tracer("test").start("work"));
        counter.add(1, &[]);
    }
}

async fn serve_app() -> ExitCode {
    let telemetry = init();
    let router = Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/stream/{ms}", get(stream))
        .route("/wait", get(wait))
        .route("/block", get(block))
        .route("/ws", get(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(|_| std::future::ready(())) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    say(&format!("listening on http://{}", listener.local_addr().unwrap()));
    let grace = std::env::var("TEST_GRACE_MS").ok().and_then(|text| text.parse().ok());
    let layer = GymTelemetryLayer::builder().with_telemetry(&telemetry);
    let routes = ["/hello", "/stream/{ms}", "/wait", "/block", "/ws"];
    let app = routes.into_iter().fold(layer, |layer, route| layer.with_route(route)).build().layer(router);
    let mut server = serve(listener, app, &telemetry);
    if let Some(ms) = grace {
        server = server.with_grace(Duration::from_millis(ms));
    }
    match server.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// A line every 50 ms for as long as asked, then `end`.
async fn stream(Path(ms): Path<u64>) -> Body {
    let lines = ms / 50;
    Body::from_stream(futures_util::stream::unfold(0, move |n| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let line = if n == lines { "end\n" } else { "line\n" };
        (n <= lines).then_some((Ok::<_, std::io::Error>(line), n + 1))
    }))
}

async fn wait() -> &'static str {
    say("waiting");
    std::future::pending().await
}

/// What a handler must not do.
async fn block() -> &'static str {
    say("blocking");
    idle()
}

fn init_16() -> ExitCode {
    let inside = std::env::var("TEST_RUNTIME").unwrap() != "none";
    let runtime = runtime();
    let barrier = Arc::new(Barrier::new(16));
    let threads: Vec<_> = (0..16)
        .map(|i| {
            let barrier = Arc::clone(&barrier);
            let handle = runtime.handle().clone();
            thread::spawn(move || {
                let _inside = inside.then(|| handle.enter());
                barrier.wait();
                let identity = ServerIdentity::new(format!("server_{i}"), ServerType::ResourcesServers);
                init_telemetry(identity).identity().name().unwrap().to_owned()
            })
        })
        .collect();
    let mut names: HashSet<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    names.insert(get_telemetry().identity().name().unwrap().to_owned());
    say(&format!("handles: {}", names.len()));
    idle()
}

fn init_again() -> ExitCode {
    let first = init();
    drop(global::tracer("test").start("through the global provider"));
    assert!(first.is_enabled() && first.is_metrics_exporter_active());
    first.shutdown_blocking(Duration::from_secs(5));
    let second = init_telemetry(ServerIdentity::new("another", ServerType::ResponsesApiAgents));
    assert_eq!(second.identity().name(), Some("test_server"));
    assert!(!second.is_enabled() && !get_telemetry().is_enabled());
    assert!(!nemo_gym_telemetry::is_span_group_enabled(nemo_gym_telemetry::SpanGroup::Server));
    drop(global::tracer("test").start("into the void"));
    second.shutdown_blocking(Duration::from_secs(5));
    ExitCode::SUCCESS
}
