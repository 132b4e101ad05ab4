//! `gym.rollout.*`, `gym.verify.*` and `gym.model.*`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};

use super::bound::{LazyCounter, LazyHistogram};
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
    verify_rate: Arc<Rate>,
    model: [Model; 3],
}

struct Outcomes {
    duration: LazyHistogram,
    success: LazyCounter,
    failure: LazyCounter,
}

struct Model {
    call: LazyHistogram,
    first_byte: LazyHistogram,
}

#[derive(Default)]
struct Rate {
    success: AtomicU64,
    failure: AtomicU64,
}

impl Gym {
    pub(super) fn new(meter: &Meter, identity: &ServerIdentity) -> Self {
        let verify_rate = Arc::new(Rate::default());
        let observed = verify_rate.clone();
        catalog::GYM_VERIFY_SUCCESS_RATE.observe_f64_gauge(meter, move |observer| {
            let (success, failure) = (observed.success.load(Relaxed), observed.failure.load(Relaxed));
            if success + failure > 0 {
                observer.observe(success as f64 / (success + failure) as f64, &[]);
            }
        });
        let call = catalog::GYM_MODEL_CALL_DURATION.f64_histogram(meter);
        let first_byte = catalog::GYM_MODEL_TIME_TO_FIRST_BYTE.f64_histogram(meter);
        Self {
            rollout: Outcomes::new(meter, catalog::GYM_ROLLOUT_DURATION, catalog::GYM_ROLLOUT_COMPLETED),
            verify: Outcomes::new(meter, catalog::GYM_VERIFY_DURATION, catalog::GYM_VERIFY_COMPLETED),
            verify_rate,
            model: ModelDialect::ALL.map(|dialect| Model::new(&call, &first_byte, dialect, identity)),
        }
    }

    pub(crate) fn record_rollout(&self, duration: Duration, success: bool) {
        self.rollout.record(duration, success);
    }

    pub(crate) fn record_verify(&self, duration: Duration, success: bool) {
        self.verify.record(duration, success);
        let count = if success { &self.verify_rate.success } else { &self.verify_rate.failure };
        count.fetch_add(1, Relaxed);
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
        let key = completed.attributes[0];
        let completed = completed.u64_counter(meter);
        Self {
            duration: LazyHistogram::new(&duration.f64_histogram(meter), vec![]),
            success: LazyCounter::new(&completed, vec![KeyValue::new(key, "success")]),
            failure: LazyCounter::new(&completed, vec![KeyValue::new(key, "failure")]),
        }
    }

    fn record(&self, duration: Duration, success: bool) {
        self.duration.record(ms(duration));
        if success { &self.success } else { &self.failure }.add(1);
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
