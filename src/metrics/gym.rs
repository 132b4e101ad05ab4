//! `gym.rollout.*`, `gym.verify.*` and `gym.model.*`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};

use super::bound::LazyHistogram;
use super::catalog;
use crate::config::ServerIdentity;

/// The API a model server was called by: `nemo.gym.model.dialect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelDialect {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl ModelDialect {
    const ALL: [ModelDialect; 3] = [ModelDialect::ChatCompletions, ModelDialect::Responses, ModelDialect::Messages];

    /// The attribute's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            ModelDialect::ChatCompletions => "chat_completions",
            ModelDialect::Responses => "responses",
            ModelDialect::Messages => "messages",
        }
    }
}

/// The instruments, bound to their few attribute sets.
pub(crate) struct Gym {
    rollout: Outcomes,
    verify: Outcomes,
    model: [Model; 3],
}

struct Outcomes {
    duration: LazyHistogram,
    counts: Arc<Counts>,
}

/// Read by the exporter when it collects; an instrument of the SDK would cost a request ten times as much.
#[derive(Default)]
struct Counts {
    success: AtomicU64,
    failure: AtomicU64,
}

struct Model {
    call: LazyHistogram,
    first_byte: LazyHistogram,
}

impl Gym {
    pub(super) fn new(meter: &Meter, identity: &ServerIdentity) -> Self {
        let verify = Outcomes::new(meter, catalog::GYM_VERIFY_DURATION, catalog::GYM_VERIFY_COMPLETED);
        let counts = verify.counts.clone();
        catalog::GYM_VERIFY_SUCCESS_RATE.observe_f64_gauge(meter, move |observer| {
            let (success, failure) = counts.load();
            if success + failure > 0 {
                observer.observe(success as f64 / (success + failure) as f64, &[]);
            }
        });
        let call = catalog::GYM_MODEL_CALL_DURATION.f64_histogram(meter);
        let first_byte = catalog::GYM_MODEL_TIME_TO_FIRST_BYTE.f64_histogram(meter);
        Self {
            rollout: Outcomes::new(meter, catalog::GYM_ROLLOUT_DURATION, catalog::GYM_ROLLOUT_COMPLETED),
            verify,
            model: ModelDialect::ALL.map(|dialect| Model::new(&call, &first_byte, dialect, identity)),
        }
    }

    pub(crate) fn record_rollout(&self, duration: Duration, success: bool) {
        self.rollout.record(duration, success);
    }

    pub(crate) fn record_verify(&self, duration: Duration, success: bool) {
        self.verify.record(duration, success);
    }

    pub(crate) fn record_model_call(&self, dialect: ModelDialect, duration: Duration) {
        self.model[dialect as usize].call.record(ms(duration));
    }

    pub(crate) fn record_model_first_byte(&self, dialect: ModelDialect, duration: Duration) {
        self.model[dialect as usize].first_byte.record(ms(duration));
    }
}

impl Outcomes {
    fn new(meter: &Meter, duration: catalog::Metric, completed: catalog::Metric) -> Self {
        let counts = Arc::new(Counts::default());
        let observed = counts.clone();
        let key = completed.attributes[0];
        completed.observe_u64_counter(meter, move |observer| {
            let (success, failure) = observed.load();
            for (outcome, count) in [("success", success), ("failure", failure)] {
                if count > 0 {
                    observer.observe(count, &[KeyValue::new(key, outcome)]);
                }
            }
        });
        Self { duration: LazyHistogram::new(&duration.f64_histogram(meter), vec![]), counts }
    }

    fn record(&self, duration: Duration, success: bool) {
        self.duration.record(ms(duration));
        let count = if success { &self.counts.success } else { &self.counts.failure };
        count.fetch_add(1, Relaxed);
    }
}

impl Counts {
    fn load(&self) -> (u64, u64) {
        (self.success.load(Relaxed), self.failure.load(Relaxed))
    }
}

impl Model {
    fn new(
        call: &Histogram<f64>,
        first_byte: &Histogram<f64>,
        dialect: ModelDialect,
        identity: &ServerIdentity,
    ) -> Self {
        let mut attributes = vec![KeyValue::new("nemo.gym.model.dialect", dialect.as_str())];
        attributes.extend(identity.name().map(|name| KeyValue::new("nemo.gym.server.name", name.to_owned())));
        Self {
            call: LazyHistogram::new(call, attributes.clone()),
            first_byte: LazyHistogram::new(first_byte, attributes),
        }
    }
}

pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
