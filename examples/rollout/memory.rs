//! The memory of the servers, as a table.

use nemo_gym_telemetry::supervisor::MemorySample;

/// One row per server, and the host below them.
pub fn table(sample: &MemorySample) -> String {
    let mut text =
        format!("{:<26} {:>8} {:>9} {:>10} {:>10} {:>10}\n", "memory of", "pid", "processes", "RSS", "PSS", "peak RSS");
    for server in &sample.servers {
        let name = server.identity.name().unwrap_or("?");
        let pss = server.pss.map_or_else(|| "-".to_owned(), mib);
        text.push_str(&format!(
            "{name:<26} {:>8} {:>9} {:>10} {pss:>10} {:>10}\n",
            server.pid,
            server.processes,
            mib(server.rss),
            mib(server.peak_rss)
        ));
    }
    if let Some(host) = sample.host {
        let (used, total, peak) = (gib(host.used), gib(host.total), gib(host.sampled_peak));
        text.push_str(&format!("host: {used} of {total} used, at most {peak}\n"));
    }
    if let Some(cgroup) = sample.cgroup {
        text.push_str(&format!("control group: {} of at most {} used\n", gib(cgroup.usage), gib(cgroup.limit)));
    }
    text
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1 << 30) as f64)
}
