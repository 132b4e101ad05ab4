//! The memory limit that the control groups set: what this process may use, where the host's total would mislead.
//!
//! Version 2 (`memory.max`) and version 1 (`memory.limit_in_bytes`). A group is also bound by those above it: the
//! tightest limit counts, and the use is the one of the group that sets it, so that the difference is what is left.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use procfs::ProcessCGroups;
use procfs::process::MountInfo;

use super::CgroupMemory;
use super::proc::ProcRoot;

/// Version 1 says "no limit" by the largest multiple of the page size.
const NO_LIMIT_FROM: u64 = 1 << 60;

/// Where this process's memory limits stand.
#[derive(Debug)]
pub(super) struct Cgroup {
    /// This process's group first, then those above it as far as they can be seen.
    groups: Vec<PathBuf>,
    limit: &'static str,
    usage: &'static str,
}

impl Cgroup {
    /// `None` where no memory controller can be seen.
    pub(super) fn find(proc: &ProcRoot) -> Option<Self> {
        let own: ProcessCGroups = proc.own("cgroup")?;
        let text = fs::read(proc.path.join("self").join("mountinfo")).ok()?;
        let mounts: Vec<MountInfo> = String::from_utf8_lossy(&text)
            .lines()
            .filter(|line| line.contains(" - cgroup"))
            .filter_map(|line| MountInfo::from_line(line).ok())
            .collect();
        let controls_memory = |names: &[String]| names.iter().any(|name| name == "memory");
        // A host in hybrid mode has both: the controller is where its name is.
        let v1 = own.0.iter().find(|group| controls_memory(&group.controllers)).and_then(|group| {
            let mount = mounts.iter().find(|m| m.fs_type == "cgroup" && m.super_options.contains_key("memory"))?;
            Some(Self {
                groups: upwards(mount, &group.pathname)?,
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
            })
        });
        v1.or_else(|| {
            let group = own.0.iter().find(|group| group.hierarchy == 0 && group.controllers.is_empty())?;
            let mount = mounts.iter().find(|m| m.fs_type == "cgroup2")?;
            Some(Self { groups: upwards(mount, &group.pathname)?, limit: "memory.max", usage: "memory.current" })
        })
    }

    /// The tightest limit; `None` where nothing limits.
    pub(super) fn read(&self) -> Option<CgroupMemory> {
        let number = |group: &Path, file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let (limit, group) = self
            .groups
            .iter()
            .filter_map(|group| Some((number(group, self.limit).filter(|limit| *limit < NO_LIMIT_FROM)?, group)))
            .min_by_key(|(limit, _)| *limit)?;
        Some(CgroupMemory { limit, usage: number(group, self.usage)? })
    }
}

/// The group's directory and those above it up to the mount point.
fn upwards(mount: &MountInfo, group: &str) -> Option<Vec<PathBuf>> {
    let mount_point = unescape(mount.mount_point.as_os_str().as_bytes());
    let group = Path::new(group);
    // A group outside the namespace's root is not under this mount at all.
    if group.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let mount_root = unescape(mount.root.as_bytes());
    // In a container that shares the host's namespace the mount shows the group itself, whatever its path is there.
    let below = group.strip_prefix(&mount_root).unwrap_or(Path::new(""));
    let directory = mount_point.join(below);
    let start = if directory.is_dir() { directory } else { mount_point.clone() };
    Some(start.ancestors().take_while(|path| path.starts_with(&mount_point)).map(Path::to_path_buf).collect())
}

/// The kernel writes space, tab, newline and backslash in paths as three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let code = match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        out.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(out))
}
