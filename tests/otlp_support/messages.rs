//! What the crate says, for tests to read.

use std::sync::{Arc, Mutex, OnceLock};

/// What the crate says in this process, through `tracing`.
#[derive(Clone)]
pub struct Messages(Arc<Mutex<String>>);

impl Messages {
    /// From now on; shared by the tests of a process.
    pub fn capture() -> Self {
        static CAPTURED: OnceLock<Messages> = OnceLock::new();
        CAPTURED
            .get_or_init(|| {
                let messages = Messages(Arc::default());
                let writer = messages.clone();
                let subscriber = tracing_subscriber::fmt()
                    .with_ansi(false)
                    .with_max_level(tracing::Level::TRACE)
                    .with_writer(move || writer.clone())
                    .finish();
                // Only what the crate says: the libraries' own debug output holds headers.
                use tracing_subscriber::layer::SubscriberExt;
                let filter =
                    tracing_subscriber::filter::Targets::new().with_target("nemo_gym_telemetry", tracing::Level::TRACE);
                tracing::subscriber::set_global_default(subscriber.with(filter)).unwrap();
                messages
            })
            .clone()
    }

    pub fn all(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    /// The lines that hold this text.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        self.all().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl std::io::Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
