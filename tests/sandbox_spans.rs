//! Sandbox wrappers: spans, metrics, and what happens to those that fail or are dropped.

mod supervisor_support;

use std::future::{pending, ready};
use std::time::Duration;

use nemo_gym_telemetry::opentelemetry::trace::{Status, TraceContextExt as _, Tracer as _, TracerProvider as _};
use nemo_gym_telemetry::opentelemetry::{Context, KeyValue, context::FutureExt as _};
use nemo_gym_telemetry::sandbox::{Sandbox, SandboxProvider};
use nemo_gym_telemetry::{Environment, Telemetry};
use supervisor_support::{Fixture, attribute, model, names};

#[derive(Debug, thiserror::Error)]
#[error("cannot run {0}")]
struct ExecFailed(&'static str);

const SECRET: &str = "curl -H 'Authorization: Bearer abc'";

fn fixture(groups: &str) -> Fixture {
    let environment = [("NEMO_GYM_OTEL_ENABLED", "1"), ("NEMO_GYM_OTEL_SPAN_GROUPS", groups)];
    Fixture::new(model(), Environment::from_iter(environment))
}

async fn started(provider: &SandboxProvider) -> Sandbox<u32> {
    provider.start(ready(Ok::<_, ExecFailed>(7)), |sandbox| Some(format!("box-{sandbox}"))).await.unwrap()
}

#[tokio::test]
async fn a_sandbox_from_start_to_stop() {
    let fixture = fixture("sandbox");
    let docker = SandboxProvider::new(&fixture.telemetry, "docker");
    docker.record_create_retry();
    docker.record_create_retry();
    let sandbox = started(&docker).await;
    assert_eq!((sandbox.id(), sandbox.get_ref()), (Some("box-7"), &7));
    assert_eq!(fixture.value("gym.sandbox.active"), Some(1.0));
    let code = sandbox.exec(ready(Ok::<_, ExecFailed>(3)), |code| Some(*code)).await.unwrap();
    assert_eq!(code, 3);
    let stopped = sandbox.stop(|inner| async move { Ok::<_, ExecFailed>(inner) }).await.unwrap();
    assert_eq!(stopped, 7);
    assert_eq!(fixture.value("gym.sandbox.active"), Some(0.0));

    for name in ["gym.sandbox.start", "gym.sandbox.exec", "gym.sandbox.stop"] {
        let span = fixture.span(name);
        assert_eq!(attribute(&span, "nemo.gym.sandbox.provider").as_deref(), Some("docker"));
        assert_eq!(attribute(&span, "nemo.gym.sandbox.id").as_deref(), Some("box-7"), "{name}");
        assert_eq!(span.status, Status::Unset, "an exit code is no error");
        assert_eq!(span.instrumentation_scope.name(), "nemo.lens.helpers");
    }
    assert_eq!(attribute(&fixture.span("gym.sandbox.exec"), "nemo.gym.sandbox.return_code").as_deref(), Some("3"));
    for name in ["gym.sandbox.startup_duration_ms", "gym.sandbox.exec_duration_ms"] {
        let points = fixture.points(name);
        assert_eq!((points.len(), points[0].count), (1, 1));
        assert_eq!(points[0].attributes["nemo.gym.sandbox.provider"], "docker");
    }
    assert_eq!(fixture.value("gym.sandbox.create_retry_total"), Some(2.0));
}

#[tokio::test]
async fn errors_are_told_by_their_type_and_never_by_their_text() {
    let fixture = fixture("sandbox");
    let docker = SandboxProvider::new(&fixture.telemetry, "docker");
    let failed = docker.start(ready(Err::<u32, _>(ExecFailed(SECRET))), |_| None).await;
    assert_eq!(failed.unwrap_err().to_string(), format!("cannot run {SECRET}"), "handed on unchanged");
    assert_eq!(fixture.value("gym.sandbox.active"), None);
    let sandbox = started(&docker).await;
    sandbox.exec(ready(Err::<(), _>(ExecFailed(SECRET))), |()| None).await.unwrap_err();
    sandbox.stop(|_| ready(Err::<(), _>(ExecFailed(SECRET)))).await.unwrap_err();
    assert_eq!(fixture.value("gym.sandbox.active"), Some(0.0), "a failed stop is a stop");

    let spans = fixture.spans();
    assert_eq!(names(&spans), ["gym.sandbox.start", "gym.sandbox.start", "gym.sandbox.exec", "gym.sandbox.stop"]);
    for span in [&spans[0], &spans[2], &spans[3]] {
        assert_eq!(attribute(span, "error.type").as_deref(), Some("ExecFailed"));
        assert_eq!(span.status, Status::error(""));
    }
    assert_eq!(attribute(&spans[2], "nemo.gym.sandbox.error_type").as_deref(), Some("ExecFailed"));
    assert!(!format!("{spans:?}").contains("Bearer"));
    assert_eq!(fixture.points("gym.sandbox.startup_duration_ms")[0].count, 2, "failures are samples too");
}

#[tokio::test(start_paused = true)]
async fn cancelled_operations_do_not_leak() {
    let fixture = fixture("sandbox");
    let docker = SandboxProvider::new(&fixture.telemetry, "docker");
    let moment = Duration::from_millis(10);
    for _ in 0..5 {
        let start = docker.start(pending::<Result<u32, ExecFailed>>(), |_| None);
        tokio::time::timeout(moment, start).await.unwrap_err();
    }
    drop(docker.start(pending::<Result<u32, ExecFailed>>(), |_| None)); // never polled: never begun
    assert_eq!(fixture.value("gym.sandbox.active"), None);
    let sandbox = started(&docker).await;
    let exec = sandbox.exec(pending::<Result<(), ExecFailed>>(), |()| None);
    tokio::time::timeout(moment, exec).await.unwrap_err();
    assert_eq!(fixture.value("gym.sandbox.active"), Some(1.0));
    let stop = sandbox.stop(|_| pending::<Result<(), ExecFailed>>());
    tokio::time::timeout(moment, stop).await.unwrap_err();
    drop(started(&docker).await);
    assert_eq!(started(&docker).await.into_inner(), 7);
    assert_eq!(fixture.value("gym.sandbox.active"), Some(0.0));

    let spans = fixture.spans();
    let cancelled = spans.iter().filter(|s| attribute(s, "error.type").as_deref() == Some("cancelled"));
    assert_eq!(cancelled.count(), 7);
    assert_eq!(spans.len(), 10, "started = ended");
}

#[tokio::test]
async fn a_panic_is_one() {
    let fixture = fixture("sandbox");
    let docker = SandboxProvider::new(&fixture.telemetry, "docker");
    let sandbox = started(&docker).await;
    let task = tokio::spawn(async move {
        let broken = async { if true { panic!("as the test wants it") } else { Ok::<(), ExecFailed>(()) } };
        let _ = sandbox.exec(broken, |()| None).await;
    });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(attribute(&fixture.span("gym.sandbox.exec"), "error.type").as_deref(), Some("panic"));
    assert_eq!(fixture.value("gym.sandbox.active"), Some(0.0));
}

#[tokio::test]
async fn spans_nest_both_ways() {
    let fixture = fixture("sandbox");
    let tracer = fixture.telemetry.tracer_provider().tracer("test");
    let outer = Context::new().with_span(tracer.start_with_context("outer", &Context::new()));
    let docker = SandboxProvider::new(&fixture.telemetry, "docker");
    let create = async {
        tracer.start_with_context("inner", &Context::current());
        Ok::<_, ExecFailed>(())
    };
    let _sandbox = docker.start(create, |()| None).with_context(outer.clone()).await.unwrap();
    let start = fixture.span("gym.sandbox.start");
    assert_eq!(start.parent_span_id, outer.span().span_context().span_id());
    assert_eq!(fixture.span("inner").parent_span_id, start.span_context.span_id());
    assert_eq!(start.attributes, [KeyValue::new("nemo.gym.sandbox.provider", "docker")], "no id is no attribute");
}

#[tokio::test]
async fn off_and_group_off_record_nothing() {
    let fixture = fixture("server");
    for telemetry in [&fixture.telemetry, &Telemetry::disabled()] {
        let docker = SandboxProvider::new(telemetry, "docker");
        docker.record_create_retry();
        let sandbox = started(&docker).await;
        assert_eq!(sandbox.exec(ready(Ok::<_, ExecFailed>(1)), |_| Some(1)).await.unwrap(), 1);
        sandbox.stop(|_| ready(Ok::<_, ExecFailed>(()))).await.unwrap();
    }
    assert!(fixture.spans().is_empty());
    for name in ["active", "startup_duration_ms", "exec_duration_ms", "create_retry_total"] {
        assert!(fixture.points(&format!("gym.sandbox.{name}")).is_empty(), "{name}");
    }
}

#[test]
fn futures_may_cross_threads() {
    fn check<T: Send>(_: T) {}
    let docker = SandboxProvider::new(&Telemetry::disabled(), "docker");
    check(docker.start(ready(Ok::<_, ExecFailed>(1)), |_| None));
}
