//! Tasks that stay in their request.

use opentelemetry::Context;
use opentelemetry::context::FutureExt as _;
use tokio::task::JoinHandle;

/// [`tokio::spawn`] that takes the current context along: spans made in the task are children of the span that is
/// current here, outgoing calls carry its trace, and [`current_rollout_id`](crate::rollout::current_rollout_id) knows
/// the rollout. `tracing`'s own `in_current_span` does not do that for spans made by this crate.
///
/// For a `JoinSet` or another runtime, `future.with_current_context()` of
/// [`FutureExt`](opentelemetry::context::FutureExt) does the same.
///
/// # Panics
/// Outside a tokio runtime, as [`tokio::spawn`] does.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future.with_current_context())
}

/// [`tokio::task::spawn_blocking`] that takes the current context along, as [`spawn`] does.
///
/// # Panics
/// Outside a tokio runtime, as [`tokio::task::spawn_blocking`] does.
#[track_caller]
pub fn spawn_blocking<F, R>(f: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let cx = Context::current();
    tokio::task::spawn_blocking(move || {
        let _attached = cx.attach();
        f()
    })
}
