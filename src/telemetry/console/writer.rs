//! Where console lines go.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};

use crate::diagnostics;

/// How long a full pipe may hold up one batch of lines.
const PATIENCE: Duration = Duration::from_secs(10);

/// A destination of console lines. The three console exporters of a process share one, so that
/// lines of different signals never mix. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LineWriter {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    /// The reader is gone, or the pipe stayed full half-way through a line: nothing more is written.
    broken: AtomicBool,
}

enum Target {
    /// This process's stdout, under the standard library's own lock: the server's `println!` lines
    /// stay whole too.
    Stdout,
    Other(Mutex<Box<dyn Write + Send>>),
}

impl LineWriter {
    pub(crate) fn stdout() -> Self {
        Self::new(Target::Stdout)
    }

    #[cfg_attr(not(test), expect(dead_code, reason = "a place to look at, for tests"))]
    pub(crate) fn other(writer: impl Write + Send + 'static) -> Self {
        Self::new(Target::Other(Mutex::new(Box::new(writer))))
    }

    fn new(target: Target) -> Self {
        Self { shared: Arc::new(Shared { target, broken: AtomicBool::new(false) }) }
    }

    /// Writes whole lines (each ending in `\n`) in one go.
    ///
    /// # Errors
    ///
    /// When the destination is broken. The first failure is told to the operator once; after it
    /// nothing is tried again, so that a closed pipe costs nothing.
    pub(super) fn write_lines(&self, lines: &str) -> OTelSdkResult {
        if self.shared.broken.load(Relaxed) {
            return Err(OTelSdkError::InternalFailure("console is closed".to_owned()));
        }
        let result = match &self.shared.target {
            Target::Stdout => write_all(&mut io::stdout().lock(), lines.as_bytes()),
            Target::Other(writer) => {
                write_all(&mut **writer.lock().unwrap_or_else(PoisonError::into_inner), lines.as_bytes())
            }
        };
        result.map_err(|error| {
            self.shared.broken.store(true, Relaxed);
            diagnostics::warn_once(&format!(
                "console exporter: writing failed ({}), no more lines follow",
                error.kind()
            ));
            OTelSdkError::InternalFailure(format!("console: {}", error.kind()))
        })
    }
}

/// `write_all` that waits for room where stdout is non-blocking.
fn write_all(writer: &mut dyn Write, mut bytes: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let wait = |error: io::Error| match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock if Instant::now() < deadline => {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
        _ => Err(error),
    };
    while !bytes.is_empty() {
        match writer.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) => wait(error)?,
        }
    }
    loop {
        match writer.flush() {
            Ok(()) => return Ok(()),
            Err(error) => wait(error)?,
        }
    }
}

impl fmt::Debug for LineWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.shared.target {
            Target::Stdout => "stdout",
            Target::Other(_) => "other",
        };
        f.debug_struct("LineWriter").field("target", &target).field("broken", &self.shared.broken).finish()
    }
}
