//! A histogram bound to one attribute set at its first use.
//!
//! Binding looks the attributes up once instead of at every measurement. It waits for the first measurement
//! because the SDK exports a bound series even while it is empty.

use std::sync::OnceLock;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundHistogram, Histogram};

pub(crate) struct LazyHistogram {
    instrument: Histogram<f64>,
    attributes: Vec<KeyValue>,
    bound: OnceLock<BoundHistogram<f64>>,
}

impl LazyHistogram {
    pub(crate) fn new(instrument: &Histogram<f64>, attributes: Vec<KeyValue>) -> Self {
        Self { instrument: instrument.clone(), attributes, bound: OnceLock::new() }
    }

    #[inline]
    pub(crate) fn record(&self, value: f64) {
        self.bound.get_or_init(|| self.instrument.bind(&self.attributes)).record(value);
    }
}
