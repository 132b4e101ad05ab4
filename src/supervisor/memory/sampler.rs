//! One sample: the host, the control group, and every watched server's process tree.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use super::cgroup::Cgroup;
use super::proc::{NoRollup, ProcRoot, ProcessId, ProcessStat};
use super::tree::{self, ServerKey};
use super::{HostMemory, MemorySample, ServerMemory, Watched};

/// Reading PSS may take this share of one CPU, because it also stalls the process that is read.
const PSS_SHARE: u32 = 100;

/// What is known of a process of some server's tree.
#[derive(Clone, Copy, Debug)]
struct Member {
    server: ServerKey,
    pss: Pss,
}

#[derive(Clone, Copy, Debug)]
enum Pss {
    NotYetRead,
    Unreadable,
    Bytes(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    rss: u64,
    pss: Option<u64>,
}

/// Takes samples and keeps what one needs of those before.
#[derive(Debug)]
pub(super) struct Sampler {
    proc: ProcRoot,
    cgroup: Option<Cgroup>,
    with_pss: bool,
    /// No known process's PSS is read again before this.
    pss_due: Instant,
    members: HashMap<ProcessId, Member>,
    peaks: HashMap<ServerKey, Peaks>,
    host_peak: u64,
}

/// A sample and what it found out on the way.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) sample: MemorySample,
    /// Servers whose root process is no more.
    pub(super) ended: Vec<ServerKey>,
    /// What could not be read, for a message that names no value.
    pub(super) trouble: Option<&'static str>,
}

impl Sampler {
    pub(super) fn new(proc: ProcRoot, with_pss: bool) -> Self {
        Self {
            cgroup: Cgroup::find(&proc),
            proc,
            with_pss,
            pss_due: Instant::now(),
            members: HashMap::new(),
            peaks: HashMap::new(),
            host_peak: 0,
        }
    }

    /// Samples everything once; `None` when `stop` was set meanwhile.
    pub(super) fn sample(&mut self, watched: &[Watched], stop: &AtomicBool) -> Option<Outcome> {
        let began = Instant::now();
        let taken_at = SystemTime::now();
        let host = self.proc.meminfo().map(|memory| {
            let used = memory.total.saturating_sub(memory.available);
            self.host_peak = self.host_peak.max(used);
            HostMemory { total: memory.total, available: memory.available, used, sampled_peak: self.host_peak }
        });
        let mut trouble = host.is_none().then_some("the host's memory could not be read");
        let cgroup = self.cgroup.as_ref().and_then(Cgroup::read);
        let (mut servers, mut ended) = (Vec::new(), Vec::new());
        if watched.is_empty() {
            self.members.clear();
            self.peaks.clear();
        } else {
            match self.proc.processes() {
                Ok(processes) => {
                    let processes = processes.into_iter().map(|stat| (stat.id.pid, stat)).collect();
                    ended = watched.iter().filter(|server| has_ended(server, &processes)).map(|s| s.key).collect();
                    let live: Vec<&Watched> = watched.iter().filter(|s| !ended.contains(&s.key)).collect();
                    servers = self.servers(&live, &processes, stop)?;
                }
                Err(_) => trouble = Some("the list of processes could not be read"),
            }
        }
        let sample = MemorySample { taken_at, took: began.elapsed(), host, cgroup, servers };
        Some(Outcome { sample, ended, trouble })
    }

    fn servers(
        &mut self,
        live: &[&Watched],
        processes: &HashMap<i32, ProcessStat>,
        stop: &AtomicBool,
    ) -> Option<Vec<ServerMemory>> {
        let roots: HashMap<ProcessId, ServerKey> = live.iter().map(|server| (server.id, server.key)).collect();
        let is_live = |key: &ServerKey| live.iter().any(|server| server.key == *key);
        let earlier = |id: ProcessId| self.members.get(&id).map(|member| member.server).filter(|key| is_live(key));
        let owners = tree::assign(processes, &roots, earlier);

        let mut sums: HashMap<ServerKey, Sum> = HashMap::with_capacity(live.len());
        let mut members = HashMap::with_capacity(owners.len());
        let pss_due = self.with_pss && Instant::now() >= self.pss_due;
        let mut spent = Duration::ZERO;
        for (pid, server) in owners {
            if stop.load(Relaxed) {
                return None;
            }
            let Some(stat) = processes.get(&pid) else { continue };
            let mut member = Member { server, pss: Pss::NotYetRead };
            if let Some(known) = self.members.get(&stat.id) {
                member.pss = known.pss;
            }
            let mut rss = stat.rss;
            if self.with_pss && !stat.zombie && (pss_due || matches!(member.pss, Pss::NotYetRead)) {
                let began = Instant::now();
                let read = self.proc.rollup(stat.id);
                spent += began.elapsed();
                match read {
                    Ok(rollup) => {
                        rss = rollup.rss;
                        member.pss = Pss::Bytes(rollup.pss);
                    }
                    Err(NoRollup::Gone) => continue,
                    Err(NoRollup::Unreadable) => member.pss = Pss::Unreadable,
                }
            }
            // A zombie is remembered, for the sake of its children, and counts for nothing.
            members.insert(stat.id, member);
            if !stat.zombie {
                sums.entry(server).or_default().add(rss, member.pss);
            }
        }
        self.members = members;
        self.pss_due = self.pss_due.max(Instant::now()) + spent * PSS_SHARE;
        self.peaks.retain(|key, _| is_live(key));
        Some(live.iter().map(|server| self.server(server, sums.remove(&server.key).unwrap_or_default())).collect())
    }

    fn server(&mut self, server: &Watched, sum: Sum) -> ServerMemory {
        let pss = sum.pss.filter(|_| self.with_pss);
        let peaks = self.peaks.entry(server.key).or_default();
        peaks.rss = peaks.rss.max(sum.rss);
        peaks.pss = peaks.pss.max(pss);
        ServerMemory {
            identity: server.identity.clone(),
            pid: server.id.pid.unsigned_abs(),
            rss: sum.rss,
            pss,
            processes: sum.processes,
            peak_rss: peaks.rss,
            peak_pss: peaks.pss,
        }
    }
}

/// The sums over one server's tree.
#[derive(Debug)]
struct Sum {
    rss: u64,
    /// `None` once one process's could not be read: a part is not the whole.
    pss: Option<u64>,
    processes: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Self { rss: 0, pss: Some(0), processes: 0 }
    }
}

impl Sum {
    fn add(&mut self, rss: u64, pss: Pss) {
        self.processes += 1;
        self.rss = self.rss.saturating_add(rss);
        self.pss = match (self.pss, pss) {
            // Read some time ago, perhaps; it cannot exceed what is resident now.
            (Some(sum), Pss::Bytes(pss)) => Some(sum.saturating_add(pss.min(rss))),
            _ => None,
        };
    }
}

/// A server has ended when its root process is gone, is another one, or is a zombie that nothing lives under. (A main
/// thread that has exited before the others leaves a zombie with children.)
fn has_ended(server: &Watched, processes: &HashMap<i32, ProcessStat>) -> bool {
    let Some(root) = processes.get(&server.id.pid).filter(|stat| stat.id == server.id) else { return true };
    let below = || tree::assign(processes, &HashMap::from([(server.id, server.key)]), |_| None).into_keys();
    root.zombie && below().all(|pid| processes.get(&pid).is_none_or(|stat| stat.zombie))
}
