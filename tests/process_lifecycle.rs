//! Whole processes: how they begin, end, and what then has arrived (casebook LIFE-01 to LIFE-04).
//!
//! A harness of its own, because the roles need a real `main`: its return, its panic, its exit status.

#[path = "otlp_support/mod.rs"]
mod otlp_support;
#[path = "process_support/mod.rs"]
mod process_support;
#[path = "process_lifecycle/roles.rs"]
mod roles;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use otlp_support::{ClosedPort, Collector, PROTOCOLS};
use process_support::{Process, ROLE};

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return roles::play(&role);
    }
    let tests: [(&str, fn()); 14] = [
        ("signals_flush_and_end_with_status_0", signals_flush_and_end_with_status_0),
        ("streams_may_finish_within_the_grace", streams_may_finish_within_the_grace),
        ("streams_are_cut_after_the_grace", streams_are_cut_after_the_grace),
        ("a_second_signal_ends_at_once", a_second_signal_ends_at_once),
        ("a_second_signal_ends_a_blocked_runtime", a_second_signal_ends_a_blocked_runtime),
        ("a_black_hole_costs_five_seconds_at_most", a_black_hole_costs_five_seconds_at_most),
        ("idle_connections_do_not_hold_up_the_end", idle_connections_do_not_hold_up_the_end),
        ("return_panic_and_exit_of_main_flush", return_panic_and_exit_of_main_flush),
        ("websockets_and_http2_are_served", websockets_and_http2_are_served),
        ("init_from_sixteen_threads_is_one_init", init_from_sixteen_threads_is_one_init),
        ("init_after_shutdown_returns_the_first_handle", init_after_shutdown_returns_the_first_handle),
        ("off_starts_nothing", off_starts_nothing),
        ("an_outage_is_one_line_in_ten_seconds", an_outage_is_one_line_in_ten_seconds),
        ("no_thread_is_left_after_shutdown", no_thread_is_left_after_shutdown),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).into()).exit_code()
}

const RUNTIMES: [&str; 2] = ["current_thread", "multi_thread"];

/// A server in a child process.
struct Server {
    process: Process,
    address: String,
}

impl Server {
    fn start(collector: &str, protocol: &str, more: &[(&str, &str)]) -> Self {
        let mut environment = vec![
            ("NEMO_GYM_OTEL_ENABLED", "1"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            // Nothing goes out but by the end of the process.
            ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "60000"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "3600000"),
        ];
        environment.extend_from_slice(more);
        let process = Process::start("serve", &environment);
        let address = process.line("listening on http://");
        Self { process, address }
    }

    fn request(&self, path: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
        BufReader::new(stream)
    }

    /// Sends a request and waits for its response's head.
    fn get(&self, path: &str) -> BufReader<TcpStream> {
        let mut response = self.request(path);
        let mut status = String::new();
        response.read_line(&mut status).unwrap();
        assert!(status.starts_with("HTTP/1.1 200"), "{status}");
        response
    }
}

fn signals_flush_and_end_with_status_0() {
    for protocol in PROTOCOLS {
        for runtime in RUNTIMES {
            for signal in ["TERM", "INT"] {
                let collector = Collector::start();
                let server = Server::start(&collector.url(), protocol, &[("TEST_RUNTIME", runtime)]);
                for _ in 0..200 {
                    server.get("/hello");
                }
                server.process.signal(signal);
                let (status, took, stderr) = server.process.end();
                let case = format!("{protocol}, {runtime}, {signal}: {stderr}");
                assert_eq!(status.code(), Some(0), "{case}");
                assert!(took < Duration::from_secs(5), "{case}: {took:?}");
                assert!(stderr.lines().all(is_of_the_runtime), "{case}");
                collector.look(|r| {
                    assert_eq!(r.spans.iter().filter(|name| *name == "GET /hello").count(), 200, "{case}");
                    assert_eq!((r.metrics.len(), r.newest("http.server.request.duration")), (1, Some(200)), "{case}");
                });
            }
        }
    }
}

/// What the runtime monitor says of a busy machine.
fn is_of_the_runtime(line: &str) -> bool {
    line.contains("tokio runtime:")
}

fn streams_may_finish_within_the_grace() {
    let collector = Collector::start();
    let server = Server::start(&collector.url(), "grpc", &[]);
    let mut stream = server.get("/stream/1500");
    server.process.signal("TERM");
    // The listener is closed at once.
    let began = Instant::now();
    while TcpStream::connect(&server.address).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(1), "still accepting");
    }
    let mut body = String::new();
    while !body.contains("end") {
        assert_ne!(stream.read_line(&mut body).unwrap(), 0, "cut: {body}");
    }
    let (status, took, stderr) = server.process.end();
    assert!(status.success() && took < Duration::from_secs(3), "{took:?}: {stderr}");
    assert!(span_statuses(&collector).contains(&("GET /stream/{ms}".to_owned(), None)));
}

fn streams_are_cut_after_the_grace() {
    for runtime in RUNTIMES {
        let collector = Collector::start();
        let server = Server::start(&collector.url(), "grpc", &[("TEST_RUNTIME", runtime), ("TEST_GRACE_MS", "300")]);
        let _stream = server.get("/stream/600000");
        let _waiting = server.request("/wait");
        // The second request has reached its handler when the first one's headers were read before it.
        server.process.line("waiting");
        server.process.signal("TERM");
        let (status, took, stderr) = server.process.end();
        assert!(status.success() && took < Duration::from_secs(4), "{runtime}: {took:?}: {stderr}");
        let spans = span_statuses(&collector);
        for name in ["GET /stream/{ms}", "GET /wait"] {
            assert!(spans.contains(&(name.to_owned(), Some("cancelled".to_owned()))), "{runtime}: {spans:?}");
        }
    }
}

/// Each SERVER span's name and `error.type`.
fn span_statuses(collector: &Collector) -> Vec<(String, Option<String>)> {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    collector.look(|r| {
        let spans = r.traces.iter().flat_map(|t| &t.resource_spans).flat_map(|r| &r.scope_spans).flat_map(|s| &s.spans);
        let error = |span: &opentelemetry_proto::tonic::trace::v1::Span| {
            let attribute = span.attributes.iter().find(|attribute| attribute.key == "error.type")?;
            match attribute.value.as_ref()?.value.as_ref()? {
                Value::StringValue(text) => Some(text.clone()),
                _ => None,
            }
        };
        spans.map(|span| (span.name.clone(), error(span))).collect()
    })
}

fn a_second_signal_ends_at_once() {
    for (first, second, code) in
        [("TERM", "TERM", 143), ("INT", "INT", 130), ("TERM", "INT", 130), ("INT", "TERM", 143)]
    {
        let collector = Collector::start();
        let server = Server::start(&collector.url(), "grpc", &[("TEST_GRACE_MS", "20000")]);
        let _stream = server.get("/stream/600000");
        server.process.signal(first);
        let began = Instant::now();
        while TcpStream::connect(&server.address).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(2), "still accepting");
        }
        server.process.signal(second);
        let (status, took, _) = server.process.end();
        assert_eq!(status.code(), Some(code));
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

fn a_second_signal_ends_a_blocked_runtime() {
    let collector = Collector::start();
    let server = Server::start(&collector.url(), "grpc", &[("TEST_RUNTIME", "current_thread")]);
    let _blocked = server.request("/block");
    server.process.line("blocking");
    server.process.signal("TERM");
    server.process.signal("TERM");
    // Two signals that arrive together may count as one.
    let mut process = server.process;
    let began = Instant::now();
    while process.is_running() {
        assert!(began.elapsed() < Duration::from_secs(5), "still running");
        std::thread::sleep(Duration::from_millis(50));
        process.signal("TERM");
    }
    assert_eq!(process.end().0.code(), Some(143));
}

fn a_black_hole_costs_five_seconds_at_most() {
    for protocol in PROTOCOLS {
        let hole = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", hole.local_addr().unwrap());
        let servers: Vec<_> =
            (0..8).map(|_| Server::start(&endpoint, protocol, &[("NEMO_GYM_OTEL_LOGS_ENABLED", "1")])).collect();
        for server in &servers {
            server.get("/hello");
        }
        let began = Instant::now();
        servers.iter().for_each(|server| server.process.signal("TERM"));
        for server in servers {
            let (status, _, stderr) = server.process.end();
            assert_eq!(status.code(), Some(0));
            assert!(stderr.contains("telemetry was lost"), "{stderr}");
        }
        assert!(began.elapsed() < Duration::from_secs(6), "{protocol}: {:?}", began.elapsed());
    }
}

fn idle_connections_do_not_hold_up_the_end() {
    let collector = Collector::start();
    let server = Server::start(&collector.url(), "grpc", &[("TEST_GRACE_MS", "20000")]);
    let _kept_alive = server.get("/hello");
    let _never_used = TcpStream::connect(&server.address).unwrap();
    server.get("/hello");
    server.process.signal("TERM");
    let (status, took, _) = server.process.end();
    assert!(status.success() && took < Duration::from_secs(3), "{took:?}");
}

fn return_panic_and_exit_of_main_flush() {
    for protocol in PROTOCOLS {
        for runtime in RUNTIMES {
            for (role, code) in [("return", 0), ("panic", 101), ("exit", 7), ("fail", 1)] {
                let collector = Collector::start();
                let environment = [
                    ("NEMO_GYM_OTEL_ENABLED", "1"),
                    ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()),
                    ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                    ("OTEL_METRIC_EXPORT_INTERVAL", "3600000"),
                    ("TEST_RUNTIME", runtime),
                ];
                let (status, took, stderr) = Process::start(role, &environment).end();
                let case = format!("{protocol}, {runtime}, {role}: {stderr}");
                assert_eq!(status.code(), Some(code), "{case}");
                assert!(took < Duration::from_secs(5), "{case}: {took:?}");
                let panics = stderr.matches("panicked").count();
                assert_eq!(panics, usize::from(role == "panic"), "{case}");
                assert!(!stderr.contains("no reactor") && !stderr.contains("Cannot drop a runtime"), "{case}");
                collector.look(|r| {
                    assert_eq!(r.spans.len(), 200, "{case}");
                    assert_eq!((r.metrics.len(), r.newest("work")), (1, Some(200)), "{case}");
                });
            }
        }
    }
}

fn websockets_and_http2_are_served() {
    let collector = Collector::start();
    let server = Server::start(&collector.url(), "grpc", &[]);
    // HTTP/2 with prior knowledge.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("http://{}/hello", server.address);
    runtime.block_on(async {
        let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
        let response = client.get(&url).send().await.unwrap();
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(response.text().await.unwrap(), "hello");
    });
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(
        stream,
        "GET /ws HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 101"), "{line}");
    server.process.signal("TERM");
    assert!(server.process.end().0.success());
}

fn init_from_sixteen_threads_is_one_init() {
    for runtime in ["none", "current_thread", "multi_thread"] {
        let collector = Collector::start();
        let environment = [
            ("NEMO_GYM_OTEL_ENABLED", "1"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()),
            ("TEST_RUNTIME", runtime),
        ];
        let process = Process::start("init_16", &environment);
        assert_eq!(process.line("handles: "), "1");
        let count = |name: &str| process.threads().iter().filter(|thread| thread.as_str() == name).count();
        // A thread gives itself its name.
        let began = Instant::now();
        while (count("gym-otlp-export"), count("otel-spans")) != (1, 1) {
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", process.threads());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn init_after_shutdown_returns_the_first_handle() {
    let collector = Collector::start();
    let environment = [("NEMO_GYM_OTEL_ENABLED", "1"), ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())];
    let (status, _, stderr) = Process::start("init_again", &environment).end();
    assert!(status.success(), "{stderr}");
    assert_eq!(collector.look(|r| r.spans.clone()), ["through the global provider"]);
}

fn off_starts_nothing() {
    let collector = Collector::start();
    let url = collector.url();
    for off in [
        &[][..],
        &[("NEMO_GYM_OTEL_ENABLED", "0")],
        &[("NEMO_GYM_OTEL_ENABLED", "")],
        &[("NEMO_GYM_OTEL_ENABLED", "1"), ("OTEL_SDK_DISABLED", "true")],
    ] {
        let environment: Vec<_> = off.iter().copied().chain([("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())]).collect();
        let process = Process::start("idle", &environment);
        process.line("ready");
        assert_eq!(process.threads().len(), 1, "{off:?}: {:?}", process.threads());
    }
    assert!(collector.look(|r| r.calls.is_empty()));
}

fn no_thread_is_left_after_shutdown() {
    for protocol in PROTOCOLS {
        for dead in [false, true] {
            let collector = Collector::start();
            let hole = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = if dead { format!("http://{}", hole.local_addr().unwrap()) } else { collector.url() };
            let environment = [
                ("NEMO_GYM_OTEL_ENABLED", "1"),
                ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &url),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ];
            let process = Process::start("shut_down_and_idle", &environment);
            process.line("before");
            assert!(process.threads().len() > 3, "{:?}", process.threads());
            process.line("after");
            let began = Instant::now();
            while process.threads().len() > 1 {
                assert!(began.elapsed() < Duration::from_secs(2), "dead: {dead}: {:?}", process.threads());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Without a subscriber the lines go to stderr; failures, losses and the hint share one pace.
fn an_outage_is_one_line_in_ten_seconds() {
    let port = ClosedPort::reserve();
    let closed = port.address;
    let wrong = TcpListener::bind("127.0.0.1:0").unwrap();
    let wrong_address = wrong.local_addr().unwrap();
    std::thread::spawn(move || wrong.incoming().for_each(|stream| drop(stream.map(|mut s| s.write_all(b"hello?")))));
    let mut processes = Vec::new();
    for protocol in PROTOCOLS {
        for address in [closed, wrong_address] {
            let environment = [
                ("NEMO_GYM_OTEL_ENABLED", "1"),
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}")),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
                ("OTEL_BSP_SCHEDULE_DELAY", "50"),
                ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
            ];
            processes.push((protocol, address, Process::start("work_13_s", &environment)));
        }
    }
    for (protocol, address, process) in processes {
        let (status, _, stderr) = process.end();
        assert!(status.success(), "{stderr}");
        let said = stderr.lines().filter(|line| !is_of_the_runtime(line));
        let (last, before): (Vec<_>, Vec<_>) = said.partition(|line| line.contains("telemetry was lost"));
        assert_eq!(last.len(), 1, "{protocol}: {stderr}");
        let most = if address == closed { 2 } else { 1 };
        assert!((1..=most).contains(&before.len()), "{protocol}: {stderr}");
        assert!(before[0].contains(&address.to_string()), "{protocol}: {stderr}");
    }
}
