//! Memory of real processes (MEM-01, MEM-03, MEM-05).
#![cfg(all(feature = "supervisor", target_os = "linux"))]

mod supervisor_support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemo_gym_telemetry::Environment;
use nemo_gym_telemetry::supervisor::memory::{MAX_INTERVAL, ServerMemory};
use nemo_gym_telemetry::supervisor::{MemoryProfiler, MemorySample};
use supervisor_support::{Fixture, eventually, model, supervisor};

const MIB: u64 = 1024 * 1024;

/// A process group of ours, ended as a whole.
struct Group(Child);

impl Group {
    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        Self(command.spawn().unwrap())
    }
    /// A shell that runs `script`.
    fn shell(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Self::spawn(command)
    }
    /// The next line it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
    fn stdin(&mut self) -> ChildStdin {
        self.0.stdin.take().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).unwrap();
        // SAFETY: a signal to the process group that this test has made.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        self.0.wait().unwrap();
    }
}

fn fixture() -> Fixture {
    Fixture::new(supervisor(), Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1")]))
}

fn profiler(fixture: &Fixture) -> MemoryProfiler {
    MemoryProfiler::builder().with_interval(MAX_INTERVAL).start(&fixture.telemetry)
}

fn server(sample: Option<Arc<MemorySample>>) -> Option<ServerMemory> {
    sample.and_then(|sample| sample.servers.first().cloned())
}

/// Samples until the server has that many processes.
fn with_processes(profiler: &MemoryProfiler, count: u64) -> ServerMemory {
    eventually(&format!("{count} processes"), || server(profiler.sample_now()).filter(|s| s.processes == count))
}

/// Not a test by itself: a mapping shared by five processes, for the test below.
#[test]
#[ignore = "a child process of shared_pages_count_once_in_pss"]
fn child_with_shared_mapping() {
    let Ok(size) = std::env::var("SHARED_MAPPING") else { return };
    let size: usize = size.parse().unwrap();
    // SAFETY: the mapping lives as long as this process; its forks only touch it and sleep.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let map = libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(map, libc::MAP_FAILED);
        let touch = || (0..size).step_by(4096).for_each(|at| map.cast::<u8>().add(at).write_volatile(1));
        touch();
        for _ in 0..4 {
            if libc::fork() == 0 {
                touch();
                loop {
                    libc::pause();
                }
            }
        }
        println!("forked");
        loop {
            libc::pause();
        }
    }
}

#[test]
fn shared_pages_count_once_in_pss() {
    let size = 64 * MIB;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_with_shared_mapping", "--include-ignored", "--nocapture"]);
    command.env("SHARED_MAPPING", size.to_string());
    let group = Group::spawn(command);
    let fixture = fixture();
    let rss_only = MemoryProfiler::builder().with_interval(MAX_INTERVAL).with_rss_only(true).start(&fixture.telemetry);
    assert!(rss_only.watch(&model(), group.0.id()));
    let sum = eventually("all five to have touched it", || {
        server(rss_only.sample_now()).filter(|s| s.processes == 5 && s.rss >= 5 * size)
    });
    assert!(sum.rss < 5 * size + 100 * MIB, "{sum:?}");
    assert_eq!(sum.pss, None);
    let profiler = profiler(&fixture);
    assert!(profiler.watch(&model(), group.0.id()));
    let pss = server(profiler.sample_now()).and_then(|s| s.pss).expect("PSS of one's own processes can be read");
    assert!((size..size + size / 4).contains(&pss), "{pss}");
}

#[test]
fn a_zombie_adds_nothing_and_odd_names_are_found() {
    // The kernel shows a program's own file name: copies of the shell under odd ones.
    let directory = tempfile::tempdir().unwrap();
    let shell = std::fs::canonicalize("/bin/sh").unwrap();
    let mut command = Command::new("sh");
    // `true` becomes a zombie: the sleep that this shell turns into waits for no one.
    let script = r#"true & for odd; do "$odd" -c 'sleep 100; true' & done; exec sleep 100"#;
    command.args(["-c", script, "sh"]);
    for name in ["a) R 1 (b", "with space", "two\nlines", "\u{65e5}\u{672c}"] {
        let path = directory.path().join(name);
        std::fs::copy(&shell, &path).unwrap();
        command.arg(path);
    }
    let group = Group::spawn(command);
    let fixture = fixture();
    let profiler = profiler(&fixture);
    assert!(profiler.watch(&model(), group.0.id()));
    // The root, the four with odd names, and a sleep under each.
    let sum = with_processes(&profiler, 9);
    assert!(sum.pss.is_some_and(|pss| pss > 0 && pss <= sum.rss), "a zombie's missing PSS is no gap: {sum:?}");
    let shown: Vec<_> = procfs::process::all_processes()
        .unwrap()
        .filter_map(|p| p.ok()?.stat().ok())
        .filter(|stat| stat.ppid.unsigned_abs() == group.0.id())
        .collect();
    assert!(shown.iter().any(|stat| stat.state == 'Z'), "{shown:?}");
    assert!(shown.iter().any(|stat| stat.comm == "a) R 1 (b"), "{shown:?}");
}

#[test]
fn a_process_that_lost_its_parent_stays_with_its_server() {
    // The inner shell ends with its input; its sleep is adopted by init or a subreaper.
    let fixture = fixture();
    let profiler = profiler(&fixture);
    let mut group = Group::shell("exec 3<&0; sh -c 'sleep 100 & read x <&3' & wait; echo alone; exec sleep 100");
    assert!(profiler.watch(&model(), group.0.id()));
    with_processes(&profiler, 3);
    group.stdin().write_all(b"end\n").unwrap();
    assert_eq!(group.line(), "alone");
    with_processes(&profiler, 2);
}

#[test]
fn a_server_that_has_exited_is_forgotten_and_its_series_end() {
    let mut group = Group::shell("read x");
    let fixture = fixture();
    let profiler = profiler(&fixture);
    assert!(profiler.watch(&model(), group.0.id()));
    with_processes(&profiler, 1);
    assert_eq!(fixture.points("gym.server.processes").len(), 1);
    drop(group.stdin());
    // Not waited for: a zombie.
    eventually("no server", || profiler.sample_now().filter(|s| s.servers.is_empty()));
    assert!(fixture.points("gym.server.processes").is_empty());
    group.0.wait().unwrap();
    assert!(!profiler.watch(&model(), group.0.id()));
}

#[test]
fn a_storm_of_short_lived_children_holds_nothing_up() {
    let group = Group::shell("while :; do /bin/true; done");
    let fixture = fixture();
    let interval = Duration::from_millis(100);
    let profiler = MemoryProfiler::builder().with_interval(interval).start(&fixture.telemetry);
    assert!(profiler.watch(&model(), group.0.id()));
    let (began, mut seen, mut last) = (Instant::now(), 0, None);
    while began.elapsed() < interval * 20 {
        if let Some(sample) = profiler.latest().filter(|s| last != Some(s.taken_at)) {
            last = Some(sample.taken_at);
            seen += 1;
            assert!(sample.servers.iter().all(|s| (1..=3).contains(&s.processes)), "{sample:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!((10..=22).contains(&seen), "{seen} samples in 20 intervals");
    assert_eq!(server(profiler.latest()).map(|s| s.pid), Some(group.0.id()));
}

#[test]
fn the_thread_ends_with_the_profiler() {
    let fixture = fixture();
    let threads = || {
        let of_process = std::fs::read_dir("/proc/self/task").unwrap();
        of_process
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.trim() == "nemo-gym-memory")
            .count()
    };
    let profiler = MemoryProfiler::builder().with_interval(MAX_INTERVAL).start(&fixture.telemetry);
    eventually("the thread", || (threads() == 1).then_some(()));
    drop(profiler);
    eventually("its end", || (threads() == 0).then_some(()));

    // It ends with telemetry too, whether that is shut down or its last handle dropped, and keeps it from neither.
    let profiler = MemoryProfiler::builder().with_interval(MAX_INTERVAL).start(&fixture.telemetry);
    assert!(profiler.is_running());
    drop(fixture);
    eventually("its end", || (threads() == 0).then_some(()));
    assert!(!profiler.is_running() && profiler.latest().is_none());
    let fixture = self::fixture();
    let profiler = MemoryProfiler::builder().with_interval(MAX_INTERVAL).start(&fixture.telemetry);
    fixture.telemetry.shutdown_blocking(Duration::from_secs(5));
    eventually("its end", || (threads() == 0).then_some(()));
    assert!(!profiler.is_running());
    assert!(!MemoryProfiler::builder().start(&fixture.telemetry).is_running(), "after the end");
}

#[test]
fn samples_asked_for_at_once_are_taken_one_after_another() {
    let fixture = fixture();
    let profiler = MemoryProfiler::builder().start(&fixture.telemetry);
    assert!(profiler.watch(&model(), std::process::id()));
    let samples: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| profiler.sample_now().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut spans: Vec<_> = samples.iter().map(|s| (s.taken_at, s.taken_at + s.took)).collect();
    spans.sort_unstable();
    spans.dedup();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two at a time: {spans:?}");
    let host = samples[0].host.expect("this host can be read");
    assert!(host.used + host.available == host.total && host.sampled_peak >= host.used);
}
