//! Which server does a process belong to?

use std::collections::HashMap;

use super::proc::{ProcessId, ProcessStat};

/// A watched server, by the number it got when it was registered.
pub(super) type ServerKey = u64;

/// Assigns processes to servers, each to one at most: a process belongs to the nearest server root above it. One that
/// lost its parent (a daemonised grandchild) stays with the server under which an earlier sample saw it.
pub(super) fn assign(
    processes: &HashMap<i32, ProcessStat>,
    roots: &HashMap<ProcessId, ServerKey>,
    earlier: impl Fn(ProcessId) -> Option<ServerKey>,
) -> HashMap<i32, ServerKey> {
    let mut owners: HashMap<i32, Option<ServerKey>> = HashMap::with_capacity(processes.len());
    let mut path = Vec::new();
    for start in processes.values() {
        path.clear();
        let mut current = start;
        let mut owner = loop {
            if let Some(known) = owners.get(&current.id.pid) {
                break *known;
            }
            if let Some(root) = roots.get(&current.id) {
                owners.insert(current.id.pid, Some(*root));
                break Some(*root);
            }
            path.push(current.id);
            // A parent is never younger than its child: that pid is another process by now. The length ends a cycle,
            // which only a torn reading can show.
            match processes.get(&current.parent) {
                Some(parent) if parent.id.start <= current.id.start && path.len() <= processes.len() => {
                    current = parent;
                }
                _ => break None,
            }
        };
        for id in path.iter().rev() {
            owner = owner.or_else(|| earlier(*id));
            owners.insert(id.pid, owner);
        }
    }
    owners.into_iter().filter_map(|(pid, owner)| Some((pid, owner?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(i32, i32, u64)]) -> HashMap<i32, ProcessStat> {
        let stat = |&(pid, parent, start): &(i32, i32, u64)| {
            (pid, ProcessStat { id: ProcessId { pid, start }, parent, zombie: false, rss: 0 })
        };
        rows.iter().map(stat).collect()
    }
    fn roots(rows: &[(i32, u64, ServerKey)]) -> HashMap<ProcessId, ServerKey> {
        rows.iter().map(|&(pid, start, key)| (ProcessId { pid, start }, key)).collect()
    }
    fn sorted(owners: HashMap<i32, ServerKey>) -> Vec<(i32, ServerKey)> {
        let mut owners: Vec<_> = owners.into_iter().collect();
        owners.sort_unstable();
        owners
    }

    #[test]
    fn a_server_inside_anothers_tree_keeps_its_own() {
        let processes = table(&[(1, 0, 0), (10, 1, 5), (11, 10, 6), (12, 11, 7), (13, 12, 8), (20, 1, 5)]);
        let owners = assign(&processes, &roots(&[(10, 5, 100), (12, 7, 200)]), |_| None);
        assert_eq!(sorted(owners), [(10, 100), (11, 100), (12, 200), (13, 200)]);
    }

    #[test]
    fn a_reused_pid_is_neither_root_nor_parent() {
        // 10 is a stranger now (started at 50); 11 was the old one's child.
        let processes = table(&[(1, 0, 0), (10, 1, 50), (11, 10, 6), (12, 10, 51)]);
        assert_eq!(sorted(assign(&processes, &roots(&[(10, 5, 100)]), |_| None)), []);
        assert_eq!(sorted(assign(&processes, &roots(&[(10, 50, 100)]), |_| None)), [(10, 100), (12, 100)]);
    }

    #[test]
    fn an_escaped_process_stays_with_its_server_and_its_children_follow() {
        let processes = table(&[(1, 0, 0), (10, 1, 5), (30, 1, 6), (31, 30, 7), (32, 1, 9)]);
        let seen = |id: ProcessId| (id == ProcessId { pid: 30, start: 6 }).then_some(100);
        assert_eq!(sorted(assign(&processes, &roots(&[(10, 5, 100)]), seen)), [(10, 100), (30, 100), (31, 100)]);
    }

    #[test]
    fn what_stands_under_a_root_belongs_to_it_wherever_it_was_before() {
        let processes = table(&[(1, 0, 0), (10, 1, 5), (20, 1, 5), (21, 20, 6)]);
        let owners = assign(&processes, &roots(&[(10, 5, 100), (20, 5, 200)]), |_| Some(100));
        assert_eq!(owners.get(&21), Some(&200));
    }

    #[test]
    fn cycles_end() {
        let processes = table(&[(5, 6, 1), (6, 5, 1), (7, 7, 1), (8, 6, 1)]);
        assert_eq!(sorted(assign(&processes, &roots(&[(99, 1, 1)]), |_| None)), []);
    }
}
