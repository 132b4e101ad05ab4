//! Memory of the host and of every server's process tree.
//!
//! [`MemoryProfiler`] reads `/proc` on a thread of its own, one sample at a time. See the page on the
//! [supervisor's half](crate::supervisor) for what the figures mean.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::config::{MemoryProfilingConfig, ServerIdentity};
use crate::diagnostics::{self, RateLimit};
use crate::telemetry::Telemetry;

#[cfg(target_os = "linux")]
mod cgroup;
mod gauges;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod linux_only;
#[cfg(target_os = "linux")]
mod proc;
#[cfg(target_os = "linux")]
mod sampler;
#[cfg(target_os = "linux")]
mod tree;

pub(crate) use gauges::MemoryGauges;
#[cfg(not(target_os = "linux"))]
use linux_only::{proc, sampler, tree};

use proc::{ProcRoot, ProcessId};
use sampler::Sampler;
use tree::ServerKey;

/// Time between two samples where nothing else is said.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two samples.
pub const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// The longest time between two samples.
pub const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// One look at the memory of the host and the servers. All figures are bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemorySample {
    /// When the sample was begun.
    pub taken_at: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// The host, whatever this process may use of it; `None` where it could not be read.
    pub host: Option<HostMemory>,
    /// The tightest control group limit on this process; `None` where nothing limits it.
    pub cgroup: Option<CgroupMemory>,
    /// The watched servers that live.
    pub servers: Vec<ServerMemory>,
}

/// Memory of the host, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostMemory {
    /// `MemTotal`.
    pub total: u64,
    /// `MemAvailable`: what programs may get without swapping.
    pub available: u64,
    /// `total - available`.
    pub used: u64,
    /// Largest `used` of all samples so far.
    pub sampled_peak: u64,
}

/// A control group's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupMemory {
    /// The tightest limit of this process's group and those above it.
    pub limit: u64,
    /// What the group that sets the limit uses, page cache included.
    pub usage: u64,
}

/// Memory of a server's process tree, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerMemory {
    /// Who the server is.
    pub identity: ServerIdentity,
    /// Its root process.
    pub pid: u32,
    /// Sum of resident sizes: pages that processes share count once for each.
    pub rss: u64,
    /// Sum of proportional sizes: a page shared by `n` processes counts `1/n` for each. `None` in RSS-only mode and
    /// where one process's cannot be read.
    pub pss: Option<u64>,
    /// Processes that live; zombies are none.
    pub processes: u64,
    /// Largest `rss` of all samples so far.
    pub peak_rss: u64,
    /// Largest `pss` of all samples so far.
    pub peak_pss: Option<u64>,
}

/// A server whose tree is sampled.
#[derive(Clone, Debug)]
struct Watched {
    key: ServerKey,
    id: ProcessId,
    identity: ServerIdentity,
}

/// Choices for a memory profiler. Made by [`MemoryProfiler::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryProfilerBuilder {
    interval: Duration,
    rss_only: bool,
    proc_root: PathBuf,
}

impl MemoryProfilerBuilder {
    /// Time between two samples; held between [`MIN_INTERVAL`] and [`MAX_INTERVAL`]. Default: [`DEFAULT_INTERVAL`].
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval.clamp(MIN_INTERVAL, MAX_INTERVAL);
        self
    }

    /// Reads no PSS. To sum up PSS the kernel walks a process's whole address space with its memory map locked; this
    /// spares servers of hundreds of gigabytes.
    pub fn with_rss_only(mut self, rss_only: bool) -> Self {
        self.rss_only = rss_only;
        self
    }

    /// Where `/proc` is mounted. Pids given to [`MemoryProfiler::watch`] are those of this mount.
    pub fn with_proc_root(mut self, path: impl Into<PathBuf>) -> Self {
        self.proc_root = path.into();
        self
    }

    /// Starts the profiler's thread. Where telemetry records no metrics, and where there is no `/proc` (said in one
    /// line), the profiler does nothing.
    pub fn start(self, telemetry: &Telemetry) -> MemoryProfiler {
        if !telemetry.switches().metrics() {
            return MemoryProfiler { shared: None };
        }
        let Some(proc) = ProcRoot::open(self.proc_root) else {
            diagnostics::warn_once("memory profiling is off: there is no Linux /proc here");
            return MemoryProfiler { shared: None };
        };
        let shared = Arc::new(Shared {
            proc: proc.clone(),
            sampler: Mutex::new(Sampler::new(proc, !self.rss_only)),
            watched: Mutex::default(),
            next_key: AtomicU64::new(0),
            latest: Mutex::default(),
            stopped: AtomicBool::new(false),
            wake: (Mutex::default(), Condvar::new()),
            messages: RateLimit::new(Duration::from_secs(60)),
        });
        // The thread holds nothing of telemetry, whose end stops it: it must not keep telemetry from ending.
        let (thread, interval) = (shared.clone(), self.interval);
        let spawned =
            std::thread::Builder::new().name("nemo-gym-memory".to_owned()).spawn(move || thread.run(interval));
        if spawned.is_err() {
            diagnostics::warn_once("memory profiling is off: its thread could not be started");
            return MemoryProfiler { shared: None };
        }
        telemetry.instruments().memory().show(&shared);
        if !telemetry.switches().metrics() {
            shared.stop(); // ended meanwhile
        }
        MemoryProfiler { shared: Some(shared) }
    }
}

/// Samples memory on a thread of its own until it is dropped or telemetry is shut down.
///
/// The gauges `gym.host.memory.*`, `gym.cgroup.memory.*`, `gym.server.memory.*` and `gym.server.processes` show the
/// latest sample. A server's series end with its root process.
#[derive(Debug)]
pub struct MemoryProfiler {
    shared: Option<Arc<Shared>>,
}

impl MemoryProfiler {
    /// Starts a profiler as the configuration has it: one that does nothing where `memory_profiling.enabled` is not set.
    pub fn from_config(telemetry: &Telemetry, config: &MemoryProfilingConfig) -> Self {
        if config.enabled {
            Self::builder().with_interval(config.interval()).start(telemetry)
        } else {
            MemoryProfiler { shared: None }
        }
    }

    /// Choices for a new profiler.
    pub fn builder() -> MemoryProfilerBuilder {
        MemoryProfilerBuilder { interval: DEFAULT_INTERVAL, rss_only: false, proc_root: PathBuf::from("/proc") }
    }

    /// Samples the process tree under `pid` as this server's. Call it for a child that has not been waited for: its
    /// start time is read here, and from then on no other process with the same pid is mistaken for it.
    ///
    /// Returns whether the process was found. It needs no undoing: a server that has ended is forgotten.
    pub fn watch(&self, identity: &ServerIdentity, pid: u32) -> bool {
        let Some(shared) = &self.shared else { return false };
        let Some(stat) = i32::try_from(pid).ok().and_then(|pid| shared.proc.process(pid)) else { return false };
        let mut watched = lock(&shared.watched);
        if !watched.iter().any(|server| server.id == stat.id) {
            let key = shared.next_key.fetch_add(1, Relaxed);
            watched.push(Watched { key, id: stat.id, identity: identity.clone() });
        }
        true
    }

    /// The latest sample; `None` before the first and after the end of telemetry.
    pub fn latest(&self) -> Option<Arc<MemorySample>> {
        self.shared.as_ref()?.latest()
    }

    /// Takes a sample now, on this thread, after the one that may be under way. It blocks: not for async code.
    pub fn sample_now(&self) -> Option<Arc<MemorySample>> {
        let shared = self.shared.as_ref()?;
        shared.sample();
        shared.latest()
    }

    /// Whether samples are taken.
    pub fn is_running(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| !shared.stopped.load(Relaxed))
    }
}

impl Drop for MemoryProfiler {
    /// Ends the series at once. Does not wait for the thread, which may be held up by the kernel; it ends after the
    /// file that it is reading.
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.stop();
        }
    }
}

/// What the profiler, its thread and the gauges share.
#[derive(Debug)]
pub(crate) struct Shared {
    proc: ProcRoot,
    /// Held while a sample is taken: there is one at a time.
    sampler: Mutex<Sampler>,
    watched: Mutex<Vec<Watched>>,
    next_key: AtomicU64,
    latest: Mutex<Option<Arc<MemorySample>>>,
    stopped: AtomicBool,
    wake: (Mutex<()>, Condvar),
    messages: RateLimit,
}

impl Shared {
    fn latest(&self) -> Option<Arc<MemorySample>> {
        lock(&self.latest).clone()
    }

    fn run(&self, interval: Duration) {
        let mut next = Instant::now();
        loop {
            self.sample();
            next += interval;
            // Late by whole intervals (a slow sample, a suspended host): those samples are left out, not made up for.
            next = next.max(Instant::now());
            let mut guard = lock(&self.wake.0);
            while !self.stopped.load(Relaxed) {
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                guard = self.wake.1.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if self.stopped.load(Relaxed) {
                return;
            }
        }
    }

    fn sample(&self) {
        let mut sampler = lock(&self.sampler);
        if self.stopped.load(Relaxed) {
            return;
        }
        let watched = lock(&self.watched).clone();
        // A parser that fails on some kernel's text must not end the profiler.
        match catch_unwind(AssertUnwindSafe(|| sampler.sample(&watched, &self.stopped))) {
            Ok(Some(outcome)) => {
                if !outcome.ended.is_empty() {
                    lock(&self.watched).retain(|server| !outcome.ended.contains(&server.key));
                }
                if let Some(trouble) = outcome.trouble {
                    self.say(trouble);
                }
                let mut latest = lock(&self.latest);
                if !self.stopped.load(Relaxed) {
                    *latest = Some(Arc::new(outcome.sample));
                }
            }
            Ok(None) => {}
            Err(_) => self.say("a sample failed"),
        }
    }

    fn say(&self, what: &str) {
        if self.messages.allow() {
            diagnostics::warn(&format!("memory profiling: {what}"));
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Relaxed);
        *lock(&self.latest) = None;
        // Taking the lock orders this after a waiter's last look at `stopped`.
        drop(lock(&self.wake.0));
        self.wake.1.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
