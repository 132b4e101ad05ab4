//! A thin layer over `procfs`: one directory that looks like `/proc`, and the few facts a sample needs from it.
//!
//! Every read may fail, because processes end while they are looked at. The directory is a parameter, so that tests
//! can lay out what a real kernel cannot be made to show.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use procfs::ProcError;
use procfs::process::{Process, Stat};
use procfs::{FromBufRead, FromRead};

/// A process is its pid and its start time (clock ticks since boot): a pid alone is given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProcessId {
    pub(super) pid: i32,
    pub(super) start: u64,
}

/// What `/proc/<pid>/stat` says, as far as a sample needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessStat {
    pub(super) id: ProcessId,
    pub(super) parent: i32,
    /// Has no memory any more: its main thread has exited.
    pub(super) zombie: bool,
    /// Resident bytes. Kernels from 6.2 on keep it per CPU: it may be some hundred KiB off.
    pub(super) rss: u64,
}

/// What `/proc/<pid>/smaps_rollup` says, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rollup {
    pub(super) rss: u64,
    pub(super) pss: u64,
}

/// Why there is no [`Rollup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRollup {
    /// The process has ended, or is another one by now.
    Gone,
    /// The process is there; its memory map may not be read (another user's) or the kernel has no such file.
    Unreadable,
}

/// Host memory in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemInfo {
    pub(super) total: u64,
    pub(super) available: u64,
}

/// A directory laid out like `/proc`.
#[derive(Clone, Debug)]
pub(super) struct ProcRoot {
    pub(super) path: PathBuf,
    page_size: u64,
}

impl ProcRoot {
    /// `None` where there is nothing like `/proc`.
    pub(super) fn open(path: PathBuf) -> Option<Self> {
        path.join("meminfo").is_file().then(|| Self { path, page_size: procfs::page_size() })
    }

    /// Every process that can be read, at about the same time. Those that end meanwhile are left out.
    pub(super) fn processes(&self) -> std::io::Result<Vec<ProcessStat>> {
        let mut found = Vec::with_capacity(512);
        let mut buffer = Vec::with_capacity(1024);
        for entry in fs::read_dir(&self.path)? {
            let Ok(entry) = entry else { continue };
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if let Ok(mut file) = File::open(entry.path().join("stat")) {
                found.extend(self.read_stat(pid, &mut file, &mut buffer));
            }
        }
        Ok(found)
    }

    /// One process.
    pub(super) fn process(&self, pid: i32) -> Option<ProcessStat> {
        let mut file = File::open(self.path.join(pid.to_string()).join("stat")).ok()?;
        self.read_stat(pid, &mut file, &mut Vec::with_capacity(1024))
    }

    fn read_stat(&self, pid: i32, file: &mut File, buffer: &mut Vec<u8>) -> Option<ProcessStat> {
        buffer.clear();
        file.read_to_end(buffer).ok()?;
        parse_stat(pid, buffer, self.page_size)
    }

    /// Resident and proportional size of one process. The kernel walks the whole address space with the process's
    /// memory map locked, which takes about a second for 100 GB of small pages.
    pub(super) fn rollup(&self, id: ProcessId) -> Result<Rollup, NoRollup> {
        // The open directory belongs to this process and no later one: what follows cannot mix two.
        let process = Process::new_with_root(self.path.join(id.pid.to_string())).map_err(|_| NoRollup::Gone)?;
        let stat = |process: &Process| {
            let mut file = process.open_relative("stat").ok()?;
            self.read_stat(id.pid, &mut file, &mut Vec::with_capacity(1024)).filter(|stat| stat.id == id)
        };
        if stat(&process).is_none() {
            return Err(NoRollup::Gone);
        }
        let sum = |rollup: procfs::process::SmapsRollup| {
            let map = &rollup.memory_map_rollup.iter().next()?.extension.map;
            Some(Rollup { rss: *map.get("Rss")?, pss: *map.get("Pss")? })
        };
        match process.smaps_rollup() {
            Ok(rollup) => sum(rollup).ok_or(NoRollup::Unreadable),
            // No such process (ESRCH) is also what a process says whose memory is gone or never was.
            Err(ProcError::NotFound(_)) => match stat(&process) {
                Some(stat) if !stat.zombie => Err(NoRollup::Unreadable),
                _ => Err(NoRollup::Gone),
            },
            Err(_) => Err(NoRollup::Unreadable),
        }
    }

    /// Total and available memory. Read here and not by `procfs`, which asks for fields that sandboxed kernels leave
    /// out.
    pub(super) fn meminfo(&self) -> Option<MemInfo> {
        let text = fs::read_to_string(self.path.join("meminfo")).ok()?;
        let field = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(MemInfo { total: field("MemTotal")?, available: field("MemAvailable")? })
    }

    /// A file of this process's own directory, parsed.
    pub(super) fn own<T: FromBufRead>(&self, name: &str) -> Option<T> {
        T::from_file(self.path.join("self").join(name)).ok()
    }
}

/// `pid (name) S ppid …`. The name may hold anything, parentheses, spaces and bytes that are no text included.
fn parse_stat(pid: i32, text: &[u8], page_size: u64) -> Option<ProcessStat> {
    // procfs slices around the parentheses: look that both are where it expects them.
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    if open == 0 || close < open || text.get(close + 1) != Some(&b' ') || text.len() < close + 3 {
        return None;
    }
    let stat = Stat::from_read(text).ok().filter(|stat| stat.pid == pid)?;
    Some(ProcessStat {
        id: ProcessId { pid, start: stat.starttime },
        parent: stat.ppid,
        zombie: matches!(stat.state, 'Z' | 'X' | 'x'),
        rss: stat.rss.saturating_mul(page_size),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &[u8], state: char, rss: u64) -> Vec<u8> {
        let mut text = b"42 (".to_vec();
        text.extend_from_slice(name);
        text.extend_from_slice(format!(") {state} 7 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 {rss} 0").as_bytes());
        text.extend_from_slice(&b" 0".repeat(27));
        text
    }

    #[test]
    fn the_name_may_hold_anything() {
        for name in [&b"a) R 1 (b"[..], b"with space", b"two\\nlines", b"", b"()", b")))", b"\xff\xfe", b"a) Z 1"] {
            let stat = parse_stat(42, &line(name, 'S', 3), 4096).expect("parsed");
            assert_eq!((stat.id, stat.parent), (ProcessId { pid: 42, start: 99 }, 7), "{name:?}");
            assert_eq!((stat.zombie, stat.rss), (false, 3 * 4096), "{name:?}");
        }
    }

    #[test]
    fn junk_is_no_process_and_no_panic() {
        let whole = line(b"x", 'R', 1);
        for cut in 0..whole.len() - 60 {
            assert!(parse_stat(42, &whole[..cut], 4096).is_none(), "cut at {cut}");
        }
        for junk in
            [&b"(x) R 1"[..], b")x( R", b"42 (x)", b"42 (x) ", b"\0\0\0", b"(", b")", "42 (x)\u{1F600}".as_bytes()]
        {
            assert!(parse_stat(42, junk, 4096).is_none(), "{junk:?}");
        }
        assert!(parse_stat(43, &whole, 4096).is_none(), "another process's line");
        assert_eq!(parse_stat(42, &line(b"x", 'Z', u64::MAX), 4096).map(|s| (s.zombie, s.rss)), Some((true, u64::MAX)));
    }
}
