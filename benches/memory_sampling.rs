//! What sampling the memory of 300 processes once a second costs, and what a server feels of it.
//!
//! One tree of 300 processes, one of which has touched a lot of memory in small pages. A server on a current_thread
//! runtime in the sampling process answers 200 requests a second over one connection meanwhile. Printed for no
//! profiler, for PSS and for RSS only: CPU time of the profiler's thread as a share of one CPU, how long a sample
//! takes, and the request latency.
//!
//! `cargo bench --bench memory_sampling -- [--processes 300] [--touched-mib 2048] [--seconds 8]`
//!
//! Known limits: the idle processes are small (a sample of a hundred-GB server is told by `--touched-mib`), and latency
//! figures hold only on a machine with a CPU to spare.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nemo_gym_telemetry::supervisor::MemoryProfiler;
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType, Telemetry};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

const ROLE: &str = "MEMORY_SAMPLING_ROLE";

fn main() {
    match std::env::var(ROLE).as_deref() {
        Ok("tree") => tree(),
        Ok("idle") => idle(0),
        _ => measure(),
    }
}

fn argument(name: &str, default: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|a| a != name).skip(1);
    arguments.next().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A process of this program in another role; it ends with its input.
fn spawn(role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command.args(std::env::args_os().skip(1)).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process")
}

fn ready(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
}

/// The root of the tree: starts the others, and touches the memory itself.
fn tree() {
    let mut children: Vec<_> = (1..argument("--processes", 300)).map(|_| spawn("idle")).collect();
    children.iter_mut().for_each(ready);
    idle(argument("--touched-mib", 2048));
}

fn idle(touched_mib: usize) {
    let mut memory = vec![0_u8; touched_mib << 20];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    std::hint::black_box(&memory);
}

fn measure() {
    let (processes, mib) = (argument("--processes", 300), argument("--touched-mib", 2048));
    let window = Duration::from_secs(argument("--seconds", 8) as u64);
    let mut root = spawn("tree");
    ready(&mut root);
    let reader = PeriodicReader::builder(InMemoryMetricExporter::default()).build();
    let telemetry = Telemetry::builder()
        .with_environment(Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1")]))
        .with_meter_provider(SdkMeterProvider::builder().with_reader(reader).build())
        .build();
    let address = server();
    println!("{processes} processes, {mib} MiB touched in one of them, one sample a second, {window:?} each\n");
    println!(
        "{:<10} {:>9} {:>11} {:>11} {:>9} {:>9} {:>9}",
        "", "CPU %", "sample ms", "worst ms", "p50 us", "p99 us", "max us"
    );
    latency(address, window / 4);
    let off = latency(address, window);
    row("off", None, &off);
    for (name, rss_only) in [("pss", false), ("rss only", true)] {
        let profiler = MemoryProfiler::builder().with_rss_only(rss_only).start(&telemetry);
        profiler.watch(&ServerIdentity::new("tree", ServerType::ResourcesServers), root.id());
        let samples = std::thread::scope(|scope| {
            let samples = scope.spawn(|| watch(&profiler, window));
            let with = latency(address, window);
            let samples = samples.join().expect("no panic");
            row(name, Some(&samples), &with);
            samples
        });
        drop(profiler);
        while thread_cpu().is_some() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(samples.processes >= processes as u64, "{} of {processes} processes seen", samples.processes);
    }
    drop(root.stdin.take());
    let _ = root.wait();
}

struct Samples {
    cpu_share: f64,
    took: Vec<Duration>,
    processes: u64,
}

/// Looks on for one window: CPU time of the profiler's thread, the first full reading included, and every sample.
fn watch(profiler: &MemoryProfiler, window: Duration) -> Samples {
    let began = Instant::now();
    let (mut took, mut last, mut processes) = (Vec::new(), None, 0);
    while began.elapsed() < window {
        if let Some(sample) = profiler.latest().filter(|s| last != Some(s.taken_at)) {
            last = Some(sample.taken_at);
            took.push(sample.took);
            processes = sample.servers.iter().map(|s| s.processes).sum::<u64>().max(processes);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    took.sort_unstable();
    let cpu = thread_cpu().expect("the profiler runs");
    Samples { cpu_share: cpu.as_secs_f64() / began.elapsed().as_secs_f64(), took, processes }
}

/// CPU time of the profiler's thread since its start, by the scheduler's account.
fn thread_cpu() -> Option<Duration> {
    let read = |task: std::path::PathBuf, name| std::fs::read_to_string(task.join(name)).ok();
    std::fs::read_dir("/proc/self/task")
        .expect("Linux")
        .filter_map(|task| Some(task.ok()?.path()))
        .filter(|task| read(task.clone(), "comm").is_some_and(|name| name.trim() == "nemo-gym-memory"))
        .find_map(|task| read(task, "schedstat")?.split(' ').next()?.parse().ok())
        .map(Duration::from_nanos)
}

fn server() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    listener.set_nonblocking(true).expect("non-blocking");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let app = axum::Router::new().route("/", axum::routing::get(|| async { "ok" }));
            axum::serve(tokio::net::TcpListener::from_std(listener).expect("a listener"), app).await
        })
    });
    address
}

/// Sorted latencies of 200 requests a second over one connection.
fn latency(address: SocketAddr, window: Duration) -> Vec<Duration> {
    let mut connection = TcpStream::connect(address).expect("a connection");
    connection.set_nodelay(true).expect("nodelay");
    let (began, mut latencies, mut buffer) = (Instant::now(), Vec::new(), [0; 1024]);
    let pause = Duration::from_millis(5);
    let mut next = began;
    while began.elapsed() < window {
        let sent = Instant::now();
        connection.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
        let mut length = 0;
        while !buffer[..length].ends_with(b"\r\n\r\nok") {
            length += connection.read(&mut buffer[length..]).expect("an answer");
        }
        latencies.push(sent.elapsed());
        next += pause;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    latencies.sort_unstable();
    latencies
}

fn row(name: &str, samples: Option<&Samples>, latencies: &[Duration]) {
    let at = |sorted: &[Duration], share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
    let us = |share| at(latencies, share).as_micros();
    let (cpu, took, worst) = match samples {
        Some(samples) => {
            let ms = |share| format!("{:.1}", at(&samples.took, share).as_secs_f64() * 1e3);
            (format!("{:.2}", samples.cpu_share * 100.0), ms(0.5), ms(1.0))
        }
        None => ("-".into(), "-".into(), "-".into()),
    };
    println!("{name:<10} {cpu:>9} {took:>11} {worst:>11} {:>9} {:>9} {:>9}", us(0.5), us(0.99), us(1.0));
}
