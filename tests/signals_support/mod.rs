//! What the tests of logs, console and loss share: child processes that are this test binary again, the
//! Python sink, and a proxy that misbehaves.

#![allow(dead_code)]

pub mod load;
pub mod proxy;
pub mod sink;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// One ignored test of this binary as a process with an environment and a subscriber of its own.
pub fn child(test: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["OTEL_", "NEMO_", "RUST_LOG"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env("NEMO_GYM_OTEL_ENABLED", "1").env("SIGNALS_CHILD", "1");
    command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Whether this process was started by [`child`]; the ignored tests do nothing otherwise.
pub fn is_child() -> bool {
    std::env::var_os("SIGNALS_CHILD").is_some()
}

/// Runs a child to its end, which must be a good one.
#[track_caller]
pub fn run(mut command: Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{status}\nstdout: {stdout}\nstderr: {stderr}");
    assert!(stdout.contains("1 passed"), "no such test in this binary: {stdout}");
    (stdout, stderr)
}

/// The JSON lines of a child's stdout; the test harness's own lines are left out.
pub fn json_lines(stdout: &str) -> Vec<serde_json::Value> {
    let lines = stdout.lines().filter_map(|line| line.find('{').map(|at| (at, line)));
    lines
        // The harness prints `test name ... ` without a line's end before the first line.
        .filter(|(at, line)| *at == 0 || line.starts_with("test "))
        .map(|(at, line)| serde_json::from_str(&line[at..]).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Waits for something that another thread brings about.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Resident memory of this process in bytes.
pub fn resident_memory() -> u64 {
    resident_memory_of(std::process::id())
}

/// Resident memory of a process in bytes.
pub fn resident_memory_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
