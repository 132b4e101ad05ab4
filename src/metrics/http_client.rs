//! `http.client.*` and `gym.http.*`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use opentelemetry::metrics::{Counter, Histogram, Meter};
use opentelemetry::{KeyValue, StringValue, Value};

use super::bound::LazyHistogram;
use super::{catalog, ms};
use crate::ingress::{Method, Version};

/// Instruments of outgoing calls.
pub(crate) struct HttpClient {
    id: u64,
    duration: Histogram<f64>,
    durations: RwLock<HashMap<DurationsKey, Arc<Durations>>>,
    timeouts: Counter<u64>,
    retries: Counter<u64>,
    connects: Counter<u64>,
    connect_duration: Histogram<f64>,
}

type DurationsKey = (u8, Box<str>, Option<u16>);

/// Servers whose common series are kept at hand. A process that calls more records the others the slower way.
const MAX_DURATIONS: usize = 256;

/// `http.client.request.duration` of one method and server.
pub(crate) struct Durations {
    instrument: Histogram<f64>,
    /// Of answers 200 over HTTP/1.1 and HTTP/2; `None` for a server too many.
    ok: Option<[LazyHistogram; 2]>,
    attributes: Vec<KeyValue>,
}

impl HttpClient {
    pub(super) fn new(meter: &Meter) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            duration: catalog::HTTP_CLIENT_REQUEST_DURATION.f64_histogram(meter),
            durations: RwLock::default(),
            timeouts: catalog::GYM_HTTP_TIMEOUT.u64_counter(meter),
            retries: catalog::GYM_HTTP_RETRY.u64_counter(meter),
            connects: catalog::GYM_HTTP_CONNECT.u64_counter(meter),
            connect_duration: catalog::GYM_HTTP_CONNECT_DURATION.f64_histogram(meter),
        }
    }

    /// Unlike that of any other in this process.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn durations(&self, method: Method, address: &StringValue, port: Option<u16>) -> Arc<Durations> {
        let key = (method as u8, Box::from(address.as_str()), port);
        let known = self.durations.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(durations) = known.get(&key) {
            return durations.clone();
        }
        let keep = known.len() < MAX_DURATIONS;
        drop(known);
        let durations = Arc::new(Durations::new(&self.duration, method, address, port, keep));
        if !keep {
            return durations;
        }
        let mut known = self.durations.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(key).or_insert(durations).clone()
    }

    pub(crate) fn timeout(&self, internal: bool) {
        self.timeouts.add(1, &[KeyValue::new("nemo.gym.http.internal", internal)]);
    }

    pub(crate) fn retry(&self, reason: &'static str) {
        self.retries.add(1, &[KeyValue::new("nemo.gym.http.retry_reason", reason)]);
    }

    pub(crate) fn connect(&self, server: &StringValue) {
        self.connects.add(1, &[destination(server)]);
    }

    pub(crate) fn connected(&self, server: &StringValue, outcome: &'static str, took: Duration) {
        let outcome = KeyValue::new("nemo.gym.http.connection_pool.connect_outcome", outcome);
        self.connect_duration.record(ms(took), &[destination(server), outcome]);
    }
}

fn destination(server: &StringValue) -> KeyValue {
    KeyValue::new("nemo.gym.http.destination.server.name", Value::String(server.clone()))
}

impl Durations {
    fn new(instrument: &Histogram<f64>, method: Method, address: &StringValue, port: Option<u16>, keep: bool) -> Self {
        let mut attributes = Vec::with_capacity(6);
        attributes.push(KeyValue::new("http.request.method", method.as_attribute()));
        if !address.as_str().is_empty() {
            attributes.push(KeyValue::new("server.address", Value::String(address.clone())));
        }
        attributes.extend(port.map(|port| KeyValue::new("server.port", i64::from(port))));
        let ok = |version: Version| {
            let mut attributes = attributes.clone();
            attributes.push(KeyValue::new("http.response.status_code", 200));
            attributes.push(KeyValue::new("network.protocol.version", version.as_str()));
            LazyHistogram::new(instrument, attributes)
        };
        let ok = keep.then(|| [ok(Version::Http11), ok(Version::Http2)]);
        Self { instrument: instrument.clone(), ok, attributes }
    }

    /// `status` is 0 where there was no answer.
    #[inline]
    pub(crate) fn record(
        &self,
        status: u16,
        version: Option<Version>,
        error: Option<&Cow<'static, str>>,
        seconds: f64,
    ) {
        match (&self.ok, version) {
            (Some([ok, _]), Some(Version::Http11)) if status == 200 && error.is_none() => ok.record(seconds),
            (Some([_, ok]), Some(Version::Http2)) if status == 200 && error.is_none() => ok.record(seconds),
            _ => self.record_unusual(status, version, error, seconds),
        }
    }

    #[cold]
    fn record_unusual(&self, status: u16, version: Option<Version>, error: Option<&Cow<'static, str>>, seconds: f64) {
        let mut attributes = self.attributes.clone();
        if status != 0 {
            attributes.push(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        attributes.extend(version.map(|version| KeyValue::new("network.protocol.version", version.as_str())));
        attributes.extend(error.map(|error| KeyValue::new("error.type", error.clone())));
        self.instrument.record(seconds, &attributes);
    }
}
