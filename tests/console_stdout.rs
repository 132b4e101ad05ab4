//! `exporter=console`: what a process writes to stdout, and what becomes of it when nobody reads.

mod signals_support;

use std::process::Stdio;
use std::time::Duration;

use nemo_gym_telemetry::{ServerIdentity, ServerType, init_telemetry, init_tracing};
use opentelemetry::trace::{Span as _, TraceContextExt as _, Tracer as _, TracerProvider as _};
use serde_json::Value;
use signals_support::{child, is_child, json_lines, run};
use tracing::info;

const CONSOLE: [(&str, &str); 4] = [
    ("NEMO_GYM_OTEL_EXPORTER", "console"),
    ("NEMO_GYM_OTEL_LOGS_ENABLED", "1"),
    ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ("OTEL_BLRP_SCHEDULE_DELAY", "20"),
];

#[test]
#[ignore = "a process of its own"]
fn child_with_sixteen_threads() {
    if !is_child() {
        return;
    }
    let telemetry = init_telemetry(ServerIdentity::new("console_server", ServerType::ResourcesServers));
    init_tracing(&telemetry);
    let tracer = telemetry.tracer_provider().tracer("test");
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let tracer = &tracer;
            scope.spawn(move || {
                for i in 0..40 {
                    tracer.in_span("work", |context| {
                        info!("thread {thread}\nline {i} {}", "é".repeat(i * 20));
                        context.span().set_attribute(opentelemetry::KeyValue::new("i", i as i64));
                    });
                    println!("{{\"own\": \"line of the server\"}}");
                }
            });
        }
    });
    info!("outside");
    telemetry.shutdown_blocking(Duration::from_secs(10));
}

#[test]
fn lines_are_whole_and_carry_the_identity() {
    let (stdout, _) = run(child("child_with_sixteen_threads", &CONSOLE));
    let lines = json_lines(&stdout);
    let with = |key: &str| lines.iter().filter(move |line| line.get(key).is_some()).collect::<Vec<_>>();
    let (spans, logs, metrics, own) = (with("parent_id"), with("severity_text"), with("resource_metrics"), with("own"));
    let work: Vec<_> = spans.iter().filter(|span| span["name"] == "work").collect();
    assert_eq!((work.len(), logs.len(), own.len()), (640, 641, 640));
    assert!(!metrics.is_empty());
    for line in spans.iter().chain(&logs) {
        assert_eq!(line["resource"]["attributes"]["service.name"], "nemo-gym/console_server");
    }
    // The documented one-liner: trace id, service, kind, name.
    for span in &work {
        let [trace_id, service, kind, name] =
            [&span["trace_id"], &span["resource"]["attributes"]["service.name"], &span["kind"], &span["name"]];
        assert_eq!(span["context"]["trace_id"], format!("0x{}", trace_id.as_str().unwrap()));
        assert!(service.is_string());
        assert_eq!((kind.as_str(), name.as_str()), (Some("SpanKind.INTERNAL"), Some("work")));
    }
    let span_of = |id: &Value| work.iter().any(|span| &span["span_id"] == id);
    for log in &logs {
        if log["body"] == "outside" {
            assert_eq!((&log["trace_id"], &log["span_id"]), (&Value::Null, &Value::Null));
        } else {
            assert!(span_of(&log["span_id"]), "{log}");
        }
    }
}

#[test]
fn jq_reads_the_lines() {
    if std::process::Command::new("jq").arg("--version").stdout(Stdio::null()).status().is_err() {
        assert_ne!(std::env::var("NEMO_GYM_TELEMETRY_REQUIRE_ALL").as_deref(), Ok("1"), "jq is missing");
        eprintln!("skipped: jq is missing");
        return;
    }
    let (stdout, _) = run(child("child_with_sixteen_threads", &CONSOLE));
    let spans: Vec<String> =
        json_lines(&stdout).into_iter().filter(|line| line["name"] == "work").map(|line| line.to_string()).collect();
    let mut jq = std::process::Command::new("jq")
        .args(["-r", r#"[.trace_id, .resource.attributes."service.name", .kind, .name] | @tsv"#])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = jq.stdin.take().unwrap();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, spans.join("\n").as_bytes()));
    let output = jq.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 640);
    for line in text.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        assert_eq!((fields.len(), fields[0].len()), (4, 32), "{line}");
        assert_eq!(fields[1..], ["nemo-gym/console_server", "SpanKind.INTERNAL", "work"]);
    }
}

#[test]
#[ignore = "a process of its own"]
fn child_whose_reader_leaves() {
    if !is_child() {
        return;
    }
    let telemetry = init_telemetry(ServerIdentity::new("console_server", ServerType::ResourcesServers));
    let tracer = telemetry.tracer_provider().tracer("test");
    let spans = |count| (0..count).for_each(|_| tracer.start("work").end());
    signals_support::eventually("the reader leaves", || {
        spans(10);
        telemetry.delivery().spans.lost_total() > 0
    });
    spans(100);
    let report = telemetry.shutdown_blocking(Duration::from_secs(5));
    assert!(!report.timed_out, "{report:?}");
    assert!(report.delivery.spans.lost_total() >= 100, "{report:?}");
    // The test harness would panic when it writes its result to the broken pipe.
    eprintln!("the child ends well");
    std::process::exit(0);
}

#[test]
fn a_reader_that_leaves_is_said_once_and_harms_nobody() {
    let mut process = child("child_whose_reader_leaves", &CONSOLE).spawn().unwrap();
    let mut stdout = process.stdout.take().unwrap();
    let mut first = [0; 200];
    std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
    drop(stdout);
    let output = process.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("the child ends well"), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert_eq!(stderr.matches("console exporter: writing failed").count(), 1, "{stderr}");
}
