//! One bound for all signals, whatever the collector and the runtime do (casebook LIFE-02, LIFE-03).

mod otlp_support;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nemo_gym_telemetry::Telemetry;
use opentelemetry::logs::{LogRecord, Logger, LoggerProvider};
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{Tracer, TracerProvider};
use otlp_support::{Collector, PROTOCOLS, Reply, environment};
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};

/// What a bound may be exceeded by on a busy machine. An unbounded shutdown takes 10 s and more here.
const SLACK: Duration = Duration::from_millis(1500);
const BOUND: Duration = Duration::from_secs(1);

/// All three signals on, with something pending in each.
fn loaded(endpoint: &str, protocol: &str) -> Telemetry {
    let mut environment = environment(endpoint, protocol);
    environment.set("NEMO_GYM_OTEL_LOGS_ENABLED", "1");
    let telemetry = Telemetry::builder().with_environment(environment).build();
    for _ in 0..2000 {
        drop(telemetry.tracer_provider().tracer("test").start("span"));
    }
    telemetry.meter_provider().meter("test").u64_counter("count").build().add(1, &[]);
    let logger = telemetry.logger_provider().unwrap().logger("test");
    let mut record = logger.create_log_record();
    record.set_body("log".into());
    logger.emit(record);
    telemetry
}

/// Something that never answers.
trait BlackHole {
    fn address(&self) -> SocketAddr;
}

impl BlackHole for Collector {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Accepts in the kernel only: the connection stands, nobody reads.
impl BlackHole for TcpListener {
    fn address(&self) -> SocketAddr {
        self.local_addr().unwrap()
    }
}

/// Drops SYNs: its backlog is full.
struct Full {
    _runtime: Runtime,
    listener: tokio::net::TcpListener,
    _filling: Vec<TcpStream>,
}

impl Full {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            socket.listen(1).unwrap()
        };
        let address = listener.local_addr().unwrap();
        let mut filling = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            filling.push(stream);
            assert!(filling.len() < 100, "the backlog never fills");
        }
        Self { _runtime: runtime, listener, _filling: filling }
    }
}

impl BlackHole for Full {
    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

fn black_holes() -> Vec<(&'static str, Box<dyn BlackHole>)> {
    vec![
        ("accepts and never answers", Box::new(Collector::with(|_| Reply::Hang))),
        ("never accepts", Box::new(TcpListener::bind("127.0.0.1:0").unwrap())),
        ("drops SYNs", Box::new(Full::new())),
    ]
}

#[test]
fn black_holes_cost_the_bound_and_what_is_lost_is_counted() {
    for protocol in PROTOCOLS {
        for (kind, hole) in black_holes() {
            let case = format!("{protocol}, {kind}");
            let telemetry = loaded(&format!("http://{}", hole.address()), protocol);
            let began = Instant::now();
            let report = telemetry.shutdown_blocking(BOUND);
            assert!(began.elapsed() < BOUND + SLACK, "{case}: {:?}", began.elapsed());
            assert!(report.timed_out, "{case}");
            let delivery = &report.delivery;
            assert_eq!((delivery.spans.exported, delivery.spans.lost_total()), (0, 2000), "{case}: {delivery}");
            assert_eq!(
                (delivery.log_records.exported, delivery.log_records.lost_total()),
                (0, 1),
                "{case}: {delivery}"
            );
            assert!(delivery.metric_data_points.lost_total() >= 1, "{case}: {delivery}");
            assert_eq!(delivery.spans.in_flight + delivery.metric_data_points.in_flight, 0, "{case}: {delivery}");

            let began = Instant::now();
            assert_eq!(telemetry.shutdown_blocking(BOUND), report, "{case}");
            assert!(began.elapsed() < BOUND / 2, "{case}: {:?}", began.elapsed());
        }
    }
}

#[test]
fn the_bound_holds_from_async_code_and_from_drop() {
    let runtimes: [fn() -> Runtime; 2] = [
        || Builder::new_current_thread().enable_all().build().unwrap(),
        || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
    ];
    for protocol in PROTOCOLS {
        let hole = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", hole.address());
        for make in runtimes {
            let began = Instant::now();
            make().block_on(async {
                let telemetry = loaded(&endpoint, protocol);
                // The runtime goes on meanwhile.
                let ticks = tokio::spawn(async {
                    for _ in 0..5 {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Instant::now()
                });
                assert!(telemetry.shutdown_with_timeout(BOUND).await.timed_out);
                assert!(ticks.await.unwrap().elapsed() > Duration::from_millis(100));
            });
            assert!(began.elapsed() < BOUND + SLACK, "await, {protocol}: {:?}", began.elapsed());

            let began = Instant::now();
            make().block_on(async {
                let telemetry = loaded(&endpoint, protocol);
                drop(telemetry.shutdown_guard().with_timeout(BOUND));
            });
            assert!(began.elapsed() < BOUND + SLACK, "guard, {protocol}: {:?}", began.elapsed());

            let runtime = make();
            let telemetry = runtime.block_on(async { loaded(&endpoint, protocol) });
            drop(runtime);
            let began = Instant::now();
            telemetry.shutdown_blocking(BOUND);
            assert!(began.elapsed() < BOUND + SLACK, "runtime gone, {protocol}: {:?}", began.elapsed());
        }
    }
}

#[test]
fn without_a_word_it_takes_five_seconds() {
    let hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let telemetry = loaded(&format!("http://{}", hole.address()), "grpc");
    let began = Instant::now();
    drop(telemetry);
    let took = began.elapsed();
    assert!(took > Duration::from_secs(4) && took < Duration::from_secs(5) + SLACK, "{took:?}");
}

/// An absent collector is known at once: its queue is not worth five seconds.
#[test]
fn an_absent_collector_is_given_up_early() {
    for protocol in PROTOCOLS {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().address();
        let telemetry = loaded(&format!("http://{address}"), protocol);
        let began = Instant::now();
        let report = telemetry.shutdown_blocking(Duration::from_secs(20));
        assert!(began.elapsed() < Duration::from_secs(8), "{protocol}: {:?}", began.elapsed());
        assert!(!report.timed_out && report.delivery.spans.lost_total() == 2000, "{protocol}: {report:?}");
    }
}

#[test]
fn no_timeout_at_all_ends_at_once() {
    for protocol in PROTOCOLS {
        let hole = TcpListener::bind("127.0.0.1:0").unwrap();
        let telemetry = loaded(&format!("http://{}", hole.address()), protocol);
        let began = Instant::now();
        let report = telemetry.shutdown_blocking(Duration::ZERO);
        assert!(began.elapsed() < SLACK && report.timed_out, "{protocol}: {:?}", began.elapsed());
    }
}

#[test]
fn two_at_once_send_everything_once() {
    for protocol in PROTOCOLS {
        let collector = Collector::with(|_| Reply::Slow(Duration::from_millis(100)));
        let telemetry = loaded(&collector.url(), protocol);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let telemetry = telemetry.clone();
                std::thread::spawn(move || telemetry.shutdown_blocking(Duration::from_secs(10)))
            })
            .collect();
        for thread in threads {
            let report = thread.join().unwrap();
            // Nobody comes back before the data is out.
            assert_eq!((report.timed_out, report.delivery.spans.exported), (false, 2000), "{protocol}");
        }
        assert_eq!(collector.look(|r| r.spans.len()), 2000, "{protocol}");
    }
}
