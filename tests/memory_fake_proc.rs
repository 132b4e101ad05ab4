//! What a real kernel cannot be made to show on demand: a fake /proc tree (MEM-01, MEM-03, MEM-05).
#![cfg(all(feature = "supervisor", target_os = "linux"))]

mod supervisor_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nemo_gym_telemetry::supervisor::memory::MAX_INTERVAL;
use nemo_gym_telemetry::supervisor::{MemoryProfiler, MemorySample};
use nemo_gym_telemetry::{Environment, ServerIdentity, ServerType};
use supervisor_support::{Fixture, Point, model, supervisor};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// A directory that looks like /proc.
struct FakeProc(tempfile::TempDir);

impl FakeProc {
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        fake.write("meminfo", "MemTotal:       8000 kB\nMemFree:          10 kB\nMemAvailable:   6000 kB\n");
        fake.process(1, 0, 1, "init", 'S', 1);
        fake
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    /// A process of `pages` resident pages without readable PSS.
    fn process(&self, pid: i32, parent: i32, start: u64, name: &str, state: char, pages: u64) {
        let numbers = "0 ".repeat(27);
        self.write(
            &format!("{pid}/stat"),
            format!(
                "{pid} ({name}) {state} {parent} 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 {pages} {numbers}\n"
            ),
        );
    }
    fn rollup(&self, pid: i32, rss_kib: u64, pss_kib: u64) {
        self.write(
            &format!("{pid}/smaps_rollup"),
            format!(
                "00400000-7ffc00000000 ---p 00000000 00:00 0                          [rollup]\n\
                 Rss:            {rss_kib:8} kB\nPss:            {pss_kib:8} kB\nPss_Dirty:             1 kB\n"
            ),
        );
    }
    fn remove(&self, pid: i32) {
        fs::remove_dir_all(self.path().join(pid.to_string())).unwrap();
    }
    /// A profiler that samples when it is told to.
    fn profiler(&self, fixture: &Fixture) -> MemoryProfiler {
        let builder = MemoryProfiler::builder().with_proc_root(self.path()).with_interval(MAX_INTERVAL);
        builder.start(&fixture.telemetry)
    }
}

fn fixture() -> Fixture {
    Fixture::new(supervisor(), Environment::from_iter([("NEMO_GYM_OTEL_ENABLED", "1")]))
}

/// rss, pss and processes of every server.
fn figures(sample: &Option<Arc<MemorySample>>) -> Vec<(u64, Option<u64>, u64)> {
    sample.as_ref().expect("a sample").servers.iter().map(|s| (s.rss, s.pss, s.processes)).collect()
}

fn of_type<'a>(points: &'a [Point], memory_type: &str) -> Vec<&'a Point> {
    points.iter().filter(|p| p.attributes.get("memory.type").is_some_and(|t| t == memory_type)).collect()
}

#[test]
fn gauges_show_the_host_and_every_server_by_type() {
    let proc = FakeProc::new();
    for (pid, parent, rss, pss) in [(10, 1, 400, 300), (11, 10, 200, 100), (20, 1, 80, 80)] {
        proc.process(pid, parent, 100, "server", 'S', rss / 4);
        proc.rollup(pid, rss, pss);
    }
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    assert!(profiler.watch(&model(), 10));
    assert!(profiler.watch(&ServerIdentity::unknown(), 20));
    assert!(profiler.watch(&model(), 10), "twice is once");
    let sample = profiler.sample_now();
    assert_eq!(figures(&sample), [(600 * KIB, Some(400 * KIB), 2), (80 * KIB, Some(80 * KIB), 1)]);

    assert_eq!(fixture.value("gym.host.memory.total"), Some((8000 * KIB) as f64));
    assert_eq!(fixture.value("gym.host.memory.available"), Some((6000 * KIB) as f64));
    assert_eq!(fixture.value("gym.host.memory.usage"), Some((2000 * KIB) as f64));
    assert_eq!(fixture.value("gym.host.memory.sampled_peak"), Some((2000 * KIB) as f64));
    let usage = fixture.points("gym.server.memory.usage");
    assert_eq!(usage.len(), 4);
    let pss = of_type(&usage, "pss");
    let named = pss.iter().find(|p| p.attributes["process.pid"] == "10").unwrap();
    assert_eq!(named.value, (400 * KIB) as f64);
    assert_eq!(named.attributes["nemo.gym.server.name"], "policy_model");
    assert_eq!(named.attributes["nemo.gym.server.type"], "responses_api_models");
    let unnamed = pss.iter().find(|p| p.attributes["process.pid"] == "20").unwrap();
    assert!(!unnamed.attributes.contains_key("nemo.gym.server.name"), "unknown is absent, not empty");
    let processes = fixture.points("gym.server.processes");
    assert_eq!(processes.iter().map(|p| p.value).sum::<f64>(), 3.0);
    assert!(processes.iter().all(|p| !p.attributes.contains_key("memory.type")));
}

#[test]
fn peaks_stay_when_memory_goes() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "server", 'S', 50);
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    profiler.watch(&model(), 10);
    profiler.sample_now();
    proc.process(10, 1, 100, "server", 'S', 5);
    proc.write("meminfo", "MemTotal: 8000 kB\nMemAvailable: 7000 kB\n");
    let sample = profiler.sample_now().unwrap();
    assert_eq!((sample.servers[0].rss, sample.servers[0].peak_rss), (5 * 4 * KIB, 50 * 4 * KIB));
    assert_eq!(sample.host.map(|h| (h.used, h.sampled_peak)), Some((1000 * KIB, 2000 * KIB)));
    assert_eq!(of_type(&fixture.points("gym.server.memory.sampled_peak"), "rss")[0].value, (50 * 4 * KIB) as f64);
}

#[test]
fn odd_names_do_not_bend_the_tree() {
    let proc = FakeProc::new();
    let names = ["a) R 1 (b", "with space", "two\\nlines", "", ")", "((", "x) Z 1 1 1", "\u{65e5}\u{672c}"];
    proc.process(10, 1, 100, "server", 'S', 1);
    for (i, name) in names.iter().enumerate() {
        let pid = 11 + i as i32;
        proc.process(pid, pid - 1, 100, name, 'S', 1);
    }
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    profiler.watch(&model(), 10);
    let all = 1 + names.len() as u64;
    assert_eq!(figures(&profiler.sample_now()), [(all * 4 * KIB, None, all)]);
}

#[test]
fn a_zombie_counts_for_nothing_and_its_children_count() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "server", 'S', 1);
    proc.process(11, 10, 101, "gone", 'Z', 900);
    proc.process(12, 11, 102, "child", 'S', 2);
    for pid in [10, 12] {
        proc.rollup(pid, 8, 4);
    }
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    profiler.watch(&model(), 10);
    assert_eq!(figures(&profiler.sample_now()), [(16 * KIB, Some(8 * KIB), 2)], "its PSS is not missing either");

    // A root whose main thread has exited before the others.
    proc.process(10, 1, 100, "server", 'Z', 0);
    assert_eq!(profiler.sample_now().map(|s| s.servers[0].processes), Some(1));
    proc.remove(11);
    proc.process(12, 1, 102, "child", 'S', 2);
    assert_eq!(figures(&profiler.sample_now()), [], "a root that nothing lives under has ended");
}

#[test]
fn unreadable_pss_is_absent_and_not_zero() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "server", 'S', 10);
    proc.rollup(10, 40, 40);
    proc.process(11, 10, 101, "foreign", 'S', 5);
    // As for another user's process: it opens, and does not read.
    fs::create_dir(proc.path().join("11/smaps_rollup")).unwrap();
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    profiler.watch(&model(), 10);
    assert_eq!(figures(&profiler.sample_now()), [(60 * KIB, None, 2)]);
    let usage = fixture.points("gym.server.memory.usage");
    assert_eq!((of_type(&usage, "rss").len(), of_type(&usage, "pss").len()), (1, 0));
    assert!(of_type(&fixture.points("gym.server.memory.sampled_peak"), "pss").is_empty());

    for junk in ["", "Rss: 1 kB\n", "rollup]\nPss: x kB\n", "00-01 ---p 0 00:00 0 [rollup]\nRss: 4 kB\n", "\0\u{7f}"] {
        fs::remove_dir_all(proc.path().join("10/smaps_rollup"))
            .or_else(|_| fs::remove_file(proc.path().join("10/smaps_rollup")))
            .unwrap();
        proc.write("10/smaps_rollup", junk);
        let other = proc.profiler(&fixture);
        other.watch(&model(), 10);
        assert_eq!(figures(&other.sample_now()), [(60 * KIB, None, 2)], "{junk:?}");
    }
}

#[test]
fn rss_only_reads_no_pss() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "server", 'S', 10);
    proc.rollup(10, 4000, 4000);
    let fixture = fixture();
    let builder = MemoryProfiler::builder().with_proc_root(proc.path()).with_interval(MAX_INTERVAL);
    let profiler = builder.with_rss_only(true).start(&fixture.telemetry);
    profiler.watch(&model(), 10);
    assert_eq!(figures(&profiler.sample_now()), [(40 * KIB, None, 1)]);
}

#[test]
fn pss_never_exceeds_rss() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "server", 'S', 10);
    proc.rollup(10, 40, 44);
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    profiler.watch(&model(), 10);
    assert_eq!(figures(&profiler.sample_now()), [(40 * KIB, Some(40 * KIB), 1)]);
}

#[test]
fn a_reused_pid_is_a_stranger() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "server", 'S', 10);
    proc.process(11, 10, 101, "child", 'S', 10);
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    profiler.watch(&model(), 10);
    assert_eq!(figures(&profiler.sample_now()), [(80 * KIB, None, 2)]);
    assert!(!fixture.points("gym.server.memory.usage").is_empty());
    // Both pids come back, as one family again.
    proc.process(10, 1, 900, "stranger", 'S', 70);
    proc.process(11, 10, 901, "stranger", 'S', 70);
    assert_eq!(figures(&profiler.sample_now()), []);
    for name in ["gym.server.memory.usage", "gym.server.memory.sampled_peak", "gym.server.processes"] {
        assert!(fixture.points(name).is_empty(), "{name}: a dead server's series stop");
    }
    assert!(fixture.value("gym.host.memory.total").is_some());
    // It is another server's now, if the supervisor says so.
    profiler.watch(&model(), 10);
    assert_eq!(figures(&profiler.sample_now()), [(2 * 70 * 4 * KIB, None, 2)]);
}

#[test]
fn an_escaped_process_is_counted_once() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "one", 'S', 1);
    proc.process(11, 10, 101, "fork", 'S', 1);
    proc.process(12, 11, 102, "daemon", 'S', 7);
    proc.process(20, 1, 100, "two", 'S', 1);
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    let resources = ServerIdentity::new("weather", ServerType::ResourcesServers);
    profiler.watch(&model(), 10);
    profiler.watch(&resources, 20);
    assert_eq!(figures(&profiler.sample_now()), [(9 * 4 * KIB, None, 3), (4 * KIB, None, 1)]);
    // The one between exits: init adopts the daemon, which has a child by now.
    proc.remove(11);
    proc.process(12, 1, 102, "daemon", 'S', 7);
    proc.process(13, 12, 103, "child", 'S', 1);
    assert_eq!(figures(&profiler.sample_now()), [(9 * 4 * KIB, None, 3), (4 * KIB, None, 1)]);
    // A subreaper of another server adopts it: counted there, and not twice.
    proc.process(12, 20, 102, "daemon", 'S', 7);
    assert_eq!(figures(&profiler.sample_now()), [(4 * KIB, None, 1), (9 * 4 * KIB, None, 3)]);
    // The daemon's pid comes back: no one's.
    proc.remove(13);
    proc.process(12, 1, 500, "stranger", 'S', 7);
    assert_eq!(figures(&profiler.sample_now()), [(4 * KIB, None, 1), (4 * KIB, None, 1)]);
}

#[test]
fn broken_entries_cost_only_themselves() {
    let proc = FakeProc::new();
    proc.process(10, 1, 100, "server", 'S', 1);
    proc.process(11, 10, 101, "child", 'S', 1);
    for (pid, junk) in [(30, ""), (31, "31 (x"), (32, "32 (x) "), (33, ")("), (34, "34 (x) R a b c"), (35, "(")] {
        proc.write(&format!("{pid}/stat"), junk);
    }
    proc.write("36/cmdline", "vanished");
    proc.write("99999999999/stat", "99999999999 (x) R 10");
    proc.write("-5/stat", "-5 (x) R 10");
    proc.process(40, 41, 100, "cycle", 'S', 1);
    proc.process(41, 40, 100, "cycle", 'S', 1);
    proc.process(42, 42, 100, "own parent", 'S', 1);
    proc.process(43, 10, 101, "huge", 'S', u64::MAX);
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    profiler.watch(&model(), 10);
    assert_eq!(figures(&profiler.sample_now()), [(u64::MAX, None, 3)], "sums saturate");
    assert!(!profiler.watch(&model(), 77), "no such process");
    assert!(!profiler.watch(&model(), u32::MAX));
    assert!(!profiler.watch(&model(), 30));
    assert!(profiler.is_running());
}

#[test]
fn a_host_that_cannot_be_read_is_absent() {
    let proc = FakeProc::new();
    let fixture = fixture();
    let profiler = proc.profiler(&fixture);
    for junk in [
        "",
        "MemTotal: 5 kB\n",
        "MemTotal: x kB\nMemAvailable: 1 kB\n",
        "MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n",
    ] {
        proc.write("meminfo", junk);
        assert_eq!(profiler.sample_now().unwrap().host, None, "{junk:?}");
    }
    assert!(fixture.points("gym.host.memory.usage").is_empty());
    // A kernel that tells little (sandboxed ones do).
    proc.write("meminfo", "MemTotal: 10 kB\nMemAvailable:\t4 kB\n");
    assert_eq!(profiler.sample_now().unwrap().host.map(|h| h.used), Some(6 * KIB));
}

#[test]
fn without_proc_it_is_off() {
    let empty = tempfile::tempdir().unwrap();
    let fixture = fixture();
    let profiler = MemoryProfiler::builder().with_proc_root(empty.path()).start(&fixture.telemetry);
    assert!(!profiler.is_running());
    assert!(!profiler.watch(&model(), 1));
    assert!(profiler.sample_now().is_none() && profiler.latest().is_none());
    assert!(fixture.points("gym.host.memory.total").is_empty());
    let off = MemoryProfiler::builder().start(&nemo_gym_telemetry::Telemetry::disabled());
    assert!(!off.is_running());
}

#[test]
fn series_end_with_the_profiler_and_start_again_with_the_next() {
    let proc = FakeProc::new();
    let fixture = fixture();
    for _ in 0..3 {
        let profiler = proc.profiler(&fixture);
        profiler.sample_now();
        assert_eq!(fixture.points("gym.host.memory.total").len(), 1);
        drop(profiler);
        assert!(fixture.points("gym.host.memory.total").is_empty());
    }
}

/// Directory of a control group file system, and the `mountinfo` line that shows it.
fn control_groups(proc: &FakeProc, directory: &str, line_tail: &str) -> PathBuf {
    let mount = proc.path().join(directory);
    fs::create_dir_all(&mount).unwrap();
    let escaped = mount.to_str().unwrap().replace(' ', "\\040");
    let unrelated = "20 1 8:1 / / rw - ext4 /dev/root rw\nnot a mount\n\n21 20 0:5 / /x rw - cgroup2";
    proc.write("self/mountinfo", format!("{unrelated}\n30 20 0:28 / {escaped} rw,nosuid shared:9 - {line_tail}\n"));
    mount
}

fn limit(fixture: &Fixture, proc: &FakeProc) -> Option<(f64, f64)> {
    let profiler = proc.profiler(fixture);
    profiler.sample_now();
    let read = fixture.value("gym.cgroup.memory.limit").zip(fixture.value("gym.cgroup.memory.usage"));
    assert_eq!(fixture.value("gym.host.memory.total"), Some((8000 * KIB) as f64), "the host stays the host");
    read
}

#[test]
fn the_tightest_limit_of_version_2_counts() {
    let (proc, fixture) = (FakeProc::new(), fixture());
    assert_eq!(limit(&fixture, &proc), None, "no control groups");
    let mount = control_groups(&proc, "cg two", "cgroup2 cgroup rw");
    proc.write("self/cgroup", "0::/outer/inner\n");
    let group = |path: &str, max: &str, current: u64| {
        let directory = mount.join(path);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("memory.max"), max).unwrap();
        fs::write(directory.join("memory.current"), format!("{current}\n")).unwrap();
    };
    group("outer/inner", "max\n", 5);
    assert_eq!(limit(&fixture, &proc), None, "max is no limit");
    group("outer", "1073741824\n", 300 * MIB);
    assert_eq!(limit(&fixture, &proc), Some(((1024 * MIB) as f64, (300 * MIB) as f64)), "nested: the outer one binds");
    group("outer/inner", "536870912\n", 200 * MIB);
    assert_eq!(limit(&fixture, &proc), Some(((512 * MIB) as f64, (200 * MIB) as f64)));
    group("outer/inner", "junk\n", 200 * MIB);
    assert_eq!(limit(&fixture, &proc), Some(((1024 * MIB) as f64, (300 * MIB) as f64)));
    // A container sees its own group as the root of its mount, whatever the path in the host's hierarchy.
    group("", "268435456\n", 100 * MIB);
    proc.write("self/cgroup", "0::/docker/0123456789ab\n");
    assert_eq!(limit(&fixture, &proc), Some(((256 * MIB) as f64, (100 * MIB) as f64)));
    proc.write("self/cgroup", "0::/../elsewhere\n");
    assert_eq!(limit(&fixture, &proc), None, "outside of the namespace: not ours");
}

#[test]
fn version_1_limits_too() {
    let (proc, fixture) = (FakeProc::new(), fixture());
    let mount = control_groups(&proc, "memory", "cgroup cgroup rw,memory");
    proc.write("self/cgroup", "5:devices:/x\n4:cpuset,memory:/job\n0::/\n");
    let group = |path: &str, max: u64, usage: u64| {
        let directory = mount.join(path);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("memory.limit_in_bytes"), format!("{max}\n")).unwrap();
        fs::write(directory.join("memory.usage_in_bytes"), format!("{usage}\n")).unwrap();
    };
    for unlimited in [0x7FFF_FFFF_FFFF_F000, 0x7FFF_FFFF_FFFF_0000, u64::MAX] {
        group("job", unlimited, 7);
        assert_eq!(limit(&fixture, &proc), None, "{unlimited}");
    }
    group("job", 1024 * MIB, 20 * MIB);
    assert_eq!(limit(&fixture, &proc), Some(((1024 * MIB) as f64, (20 * MIB) as f64)));
    group("", 64 * MIB, 30 * MIB);
    assert_eq!(limit(&fixture, &proc), Some(((64 * MIB) as f64, (30 * MIB) as f64)));
}

#[test]
fn junk_control_groups_are_no_control_groups() {
    let (proc, fixture) = (FakeProc::new(), fixture());
    for (cgroup, mountinfo) in [
        ("", ""),
        ("x", "x"),
        ("0::", "30 20 0:28 / /nowhere rw - cgroup2 cgroup rw"),
        ("0::/a", "30 20"),
        ("4:memory:/a", "30 20 0:28 / /nowhere rw - cgroup cgroup rw,cpu"),
        ("\u{0}", " - cgroup2 "),
    ] {
        proc.write("self/cgroup", cgroup);
        proc.write("self/mountinfo", mountinfo);
        assert_eq!(limit(&fixture, &proc), None, "{cgroup:?} {mountinfo:?}");
    }
}
