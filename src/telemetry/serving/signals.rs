//! SIGTERM and SIGINT, heard on a thread of their own.
//!
//! A runtime whose threads are all blocked hears no signal, and the handler that tokio installs has
//! replaced the default action: the process could only be killed. So the second signal must not depend
//! on the application's runtime.

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// The first signal, to come.
#[derive(Debug)]
pub(super) struct Signals {
    first: oneshot::Receiver<()>,
}

impl Signals {
    /// From now on a first signal is reported, and a second one ends the process at once.
    pub(super) fn listen() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let mut both = Both::register(&runtime)?;
        let (mut sender, first) = oneshot::channel();
        std::thread::Builder::new().name("gym-signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = both.next() => {}
                    // Nobody serves any more, and not because of a signal.
                    () = sender.closed() => return,
                }
                let _ = sender.send(());
                let number = both.next().await;
                std::process::exit(128 + number);
            });
        })?;
        Ok(Self { first })
    }

    /// Completes at the first signal.
    pub(super) async fn first(self) {
        if self.first.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(unix)]
struct Both {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Both {
    fn register(runtime: &Runtime) -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let _inside = runtime.enter();
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next signal's number.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}

#[cfg(not(unix))]
struct Both;

#[cfg(not(unix))]
impl Both {
    fn register(_: &Runtime) -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> i32 {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        2
    }
}
