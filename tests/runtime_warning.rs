//! The warning about stuck workers: said while the worker is stuck, once a minute at most.

mod runtime_support;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nemo_gym_telemetry::runtime::RuntimeMonitor;
use runtime_support::{Rig, multi_thread};
use tracing::{Event, Level, Subscriber, field::Field, field::Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Message<'a>(&'a mut String);
        impl Visit for Message<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    *self.0 = format!("{value:?}");
                }
            }
        }
        if event.metadata().target() == "nemo_gym_telemetry" && *event.metadata().level() == Level::WARN {
            let mut message = String::new();
            event.record(&mut Message(&mut message));
            self.0.lock().expect("no panic").push(message);
        }
    }
}

#[test]
fn a_stuck_worker_is_warned_about_while_it_is_stuck_and_not_again_soon() {
    let warnings = Warnings::default();
    let subscriber = tracing_subscriber::registry().with(warnings.clone());
    tracing::subscriber::set_global_default(subscriber).expect("the first subscriber");
    let rig = Rig::new();
    let runtime = multi_thread(4);
    let _monitor = RuntimeMonitor::builder(&rig.telemetry)
        .with_runtime_name("policy")
        .with_stuck_threshold(Duration::from_millis(150))
        .start(runtime.handle());
    rig.collect_until("a wake", |c| c.value_of("gym.event_loop.lag_last_ms", Some("policy")).is_some());

    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let first = runtime.spawn(async move { blocked.recv_timeout(Duration::from_secs(20)) });
    // Seen while the worker is blocked: nothing releases it before.
    rig.collect_until("a warning", |_| !warnings.0.lock().expect("no panic").is_empty());
    release.send(()).expect("the worker waits");
    runtime.block_on(first).expect("no panic").expect("released");
    for stalls in 2..4 {
        // A worker that takes the next task before it parks publishes nothing between the two: one stall, not two.
        rig.collect_until("progress", |c| c.value_of("gym.event_loop.stuck_workers", Some("policy")) == Some(0.0));
        runtime.spawn(async { thread::sleep(Duration::from_millis(400)) });
        rig.collect_until("a stall", |c| {
            c.value_of("gym.event_loop.stuck_total", Some("policy")) >= Some(stalls.into())
        });
    }

    let warnings = warnings.0.lock().expect("no panic");
    let [warning] = &warnings[..] else { panic!("{warnings:#?}") };
    let (head, rest) = warning.split_once(", no progress for ").expect("an age");
    assert_eq!(head, "tokio runtime \"policy\": 1 of 4 workers stuck");
    let age: u32 = rest.split(' ').next().expect("a number").parse().expect("a number");
    assert!((150..2000).contains(&age), "{warning}");
    assert!(rest.contains("(threshold 150 ms)"), "{warning}");
}
