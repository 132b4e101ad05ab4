//! `http.server.*` and the in-flight gauge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};

use super::catalog;
use crate::ingress::{Method, Scheme};

/// Instruments of a server's requests.
pub(crate) struct HttpServer {
    pub(crate) duration: Histogram<f64>,
    pub(crate) response_size: Histogram<u64>,
    active: Arc<ActiveRequests>,
}

impl HttpServer {
    pub(super) fn new(meter: &Meter) -> Self {
        let active = Arc::new(ActiveRequests::default());
        let observed = active.clone();
        catalog::HTTP_SERVER_ACTIVE_REQUESTS.observe_i64_up_down_counter(meter, move |observer| {
            observed.each(|method, scheme, count| {
                observer.observe(
                    count,
                    &[
                        KeyValue::new("http.request.method", method.as_attribute()),
                        KeyValue::new("url.scheme", scheme.as_str()),
                    ],
                );
            });
        });
        let observed = active.clone();
        catalog::GYM_SERVER_REQUESTS_IN_FLIGHT.observe_u64_gauge(meter, move |observer| {
            let (mut seen, mut sum) = (false, 0);
            observed.each(|_, _, count| (seen, sum) = (true, sum + count));
            if seen {
                observer.observe(sum.try_into().unwrap_or(0), &[]);
            }
        });
        Self {
            duration: catalog::HTTP_SERVER_REQUEST_DURATION.f64_histogram(meter),
            response_size: catalog::HTTP_SERVER_RESPONSE_BODY_SIZE.u64_histogram(meter),
            active,
        }
    }

    /// Counts a request in until [`ActiveRequest::end`].
    #[inline]
    pub(crate) fn begin(&self, method: Method, scheme: Scheme) -> ActiveRequest {
        let cell = self.active.cell(method, scheme);
        cell.count.fetch_add(1, Relaxed);
        if !cell.seen.load(Relaxed) {
            cell.seen.store(true, Relaxed);
        }
        ActiveRequest(method, scheme)
    }

    /// Counts a request out.
    #[inline]
    pub(crate) fn end(&self, ActiveRequest(method, scheme): ActiveRequest) {
        self.active.cell(method, scheme).count.fetch_sub(1, Relaxed);
    }
}

/// A request that was counted in. Not `Clone`: it is counted out once.
#[derive(Debug)]
#[must_use]
pub(crate) struct ActiveRequest(Method, Scheme);

/// Plain counters, one for each pair of method and scheme, read by the exporter when it collects: cheaper than an
/// instrument of the SDK, and by construction the same attributes on the way up and on the way down.
#[derive(Default)]
struct ActiveRequests([[Cell; Scheme::COUNT]; Method::COUNT]);

#[derive(Default)]
struct Cell {
    count: AtomicI64,
    seen: AtomicBool,
}

impl ActiveRequests {
    #[inline]
    fn cell(&self, method: Method, scheme: Scheme) -> &Cell {
        &self.0[method as usize][scheme as usize]
    }

    /// Pairs that have had a request.
    fn each(&self, mut f: impl FnMut(Method, Scheme, i64)) {
        for method in Method::ALL {
            for scheme in Scheme::ALL {
                let cell = self.cell(method, scheme);
                if cell.seen.load(Relaxed) {
                    f(method, scheme, cell.count.load(Relaxed));
                }
            }
        }
    }
}
