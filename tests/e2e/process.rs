//! Examples and Python programs as child processes.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

/// No step of these tests takes this long, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The binary of an example: cargo builds examples before it runs tests, next to them.
pub fn example_binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let directory = test.ancestors().nth(2).expect("target/<profile>/deps").join("examples");
    let path = directory.join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --examples` with the features of this test",
        path.display()
    );
    path
}

/// A command for an example whose environment says nothing about telemetry, whatever this process's own says.
pub fn example(name: &str) -> Command {
    isolated(example_binary(name))
}

/// A command with nothing in its environment but what a program needs to start.
pub fn isolated(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command.env_clear().kill_on_drop(true).stdin(Stdio::null());
    for name in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// A started process whose output is collected.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdout: Output,
    stderr: Output,
}

impl Process {
    pub fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = Output::collect(child.stdout.take().expect("piped"));
        let stderr = Output::collect(child.stderr.take().expect("piped"));
        Self { child, stdout, stderr }
    }

    pub fn id(&self) -> u32 {
        self.child.id().expect("not yet awaited")
    }

    /// What stands behind `prefix` on the first line of stdout that begins with it.
    pub async fn line(&mut self, prefix: &str) -> String {
        self.stdout.line(prefix).await.unwrap_or_else(|| {
            panic!("no line {prefix:?} on stdout; stdout: {:?}, stderr: {:?}", self.stdout.text(), self.stderr.text())
        })
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill only sends a signal; the pid is that of a child which has not been awaited yet.
        let sent = unsafe { libc::kill(self.id() as i32, signal) };
        assert_eq!(sent, 0, "signal {signal}");
    }

    /// Whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for the process to end, and for the rest of its output.
    pub async fn wait(&mut self) -> ExitStatus {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("does not end; stderr: {}", self.stderr())).expect("wait");
        self.stdout.end().await;
        self.stderr.end().await;
        status
    }

    /// Sends SIGTERM and waits.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait().await
    }
}

/// A started server of ours.
#[derive(Debug)]
pub struct Server {
    pub process: Process,
    pub url: String,
}

impl Server {
    pub async fn start(command: Command) -> Self {
        let mut process = Process::spawn(command);
        let url = process.line("listening on ").await;
        Self { process, url }
    }

    /// Ends the server, which must do so cleanly.
    pub async fn stop(&mut self) {
        let status = self.process.terminate().await;
        assert!(status.success(), "{status}; stderr: {}", self.process.stderr());
    }
}

/// The lines of one output, as they come.
#[derive(Debug)]
struct Output {
    lines: Arc<Mutex<Vec<String>>>,
    /// How many lines there are; closed when the output has ended.
    count: watch::Receiver<usize>,
}

impl Output {
    fn collect(pipe: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (sender, count) = watch::channel(0);
        let collected = lines.clone();
        tokio::spawn(async move {
            let mut pipe = BufReader::new(pipe).lines();
            while let Ok(Some(line)) = pipe.next_line().await {
                collected.lock().expect("not poisoned").push(line);
                sender.send_modify(|count| *count += 1);
            }
        });
        Self { lines, count }
    }

    fn text(&self) -> String {
        self.lines.lock().expect("not poisoned").join("\n")
    }

    async fn line(&mut self, prefix: &str) -> Option<String> {
        let find = |lines: &Mutex<Vec<String>>| {
            let lines = lines.lock().expect("not poisoned");
            lines.iter().find_map(|line| line.strip_prefix(prefix).map(str::to_owned))
        };
        let wait = async {
            loop {
                if let Some(rest) = find(&self.lines) {
                    return Some(rest);
                }
                if self.count.changed().await.is_err() {
                    return find(&self.lines);
                }
            }
        };
        timeout(PATIENCE, wait).await.ok().flatten()
    }

    /// Bounded: a grandchild may hold the pipe open.
    async fn end(&mut self) {
        let _ = timeout(Duration::from_secs(5), async { while self.count.changed().await.is_ok() {} }).await;
    }
}
