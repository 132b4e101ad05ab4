//! A process that was stopped and continued: one late sample, and no worker was stuck.
#![cfg(unix)]

mod runtime_support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Rig, multi_thread};

const CHILD: &str = "RUNTIME_SUSPEND_CHILD";

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill");
    assert!(status.success(), "kill {name}");
}

#[test]
fn a_stopped_process_is_late_once_by_as_long_as_it_was_stopped() {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_child", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let mut stdin = child.stdin.take().expect("stdin");
    let ready = lines.by_ref().any(|line| line.ends_with("ready"));
    signal(&child, "-STOP");
    std::thread::sleep(Duration::from_secs(2));
    signal(&child, "-CONT");
    std::thread::sleep(Duration::from_millis(500));
    stdin.write_all(b"report\n").expect("the child reads");
    let report = lines.find(|line| line.contains("report "));
    let status = child.wait().expect("the child ends");
    assert!(ready && status.success());

    let report = report.expect("a report");
    let numbers: Vec<f64> =
        report.split("report ").nth(1).expect("numbers").split(' ').map(|n| n.parse().expect("a number")).collect();
    let [above_one_second, max, count, stalls] = numbers[..] else { panic!("{report}") };
    assert_eq!(above_one_second, 1.0, "{report}");
    assert!((1_800.0..3_500.0).contains(&max), "{report}");
    // About 5 samples after it, and those before it; missed ones are not made up for.
    assert!(count < 30.0, "{report}");
    assert_eq!(stalls, 0.0, "{report}");
}

/// Does nothing unless the test above runs it.
#[test]
fn the_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let rig = Rig::new();
    let runtime = multi_thread(2);
    let interval = Duration::from_millis(100);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry).with_sample_interval(interval).start(runtime.handle());
    rig.collect_until("samples", |c| c.lag().count >= 2);
    let stalls = |rig: &Rig| rig.collect().value("gym.event_loop.stuck_total");
    let before = stalls(&rig);
    println!("ready");
    let mut order = [0; 7];
    std::io::stdin().read_exact(&mut order).expect("an order");
    let lag = rig.collect().lag();
    println!("report {} {} {} {}", lag.above(1000.0), lag.max, lag.count, stalls(&rig) - before);
}
