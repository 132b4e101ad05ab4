//! The rollout a request belongs to, carried in the OpenTelemetry context.

use std::sync::{Arc, Mutex, OnceLock};

use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, KeyValue};

use super::{PrefixForm, ROLLOUT_ID, RolloutId};

/// One request's rollout id, set once, and the spans that must get it. Shared by all contexts of the request.
///
/// The spans are taken out when the request ends: their contexts hold this scope in turn.
#[derive(Debug, Default)]
pub(crate) struct RolloutScope {
    id: OnceLock<RolloutId>,
    /// The form of the path prefix that brought it.
    form: Option<PrefixForm>,
    spans: Mutex<Vec<Context>>,
}

impl RolloutScope {
    pub(crate) fn new(id: Option<RolloutId>, form: Option<PrefixForm>) -> Arc<Self> {
        Arc::new(Self { id: id.map(OnceLock::from).unwrap_or_default(), form, spans: Mutex::default() })
    }

    pub(crate) fn form(&self) -> Option<PrefixForm> {
        self.form
    }

    pub(crate) fn id(&self) -> Option<&RolloutId> {
        self.id.get()
    }

    /// Registers the request's spans, to be told of an id that comes later.
    pub(crate) fn open(&self, spans: impl IntoIterator<Item = Context>) {
        self.spans.lock().unwrap_or_else(|e| e.into_inner()).extend(spans);
    }

    pub(crate) fn close(&self) {
        self.spans.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }

    /// Takes the id, once; the first one stays.
    fn set(&self, id: &RolloutId) {
        if self.id.set(id.clone()).is_ok() {
            for cx in self.spans.lock().unwrap_or_else(|e| e.into_inner()).iter() {
                cx.span().set_attribute(KeyValue::new(ROLLOUT_ID, id.to_value()));
            }
        }
    }
}

/// The rollout id of the context: the request's own, else the caller's baggage.
pub(crate) fn rollout_id_in(cx: &Context) -> Option<RolloutId> {
    if let Some(id) = cx.get::<Arc<RolloutScope>>().and_then(|scope| scope.id()) {
        return Some(id.clone());
    }
    baggage_rollout_id(cx)
}

fn baggage_rollout_id(cx: &Context) -> Option<RolloutId> {
    let baggage = cx.baggage();
    if baggage.is_empty() {
        return None;
    }
    RolloutId::new(baggage.get(ROLLOUT_ID)?.as_str()).ok()
}

/// The rollout id of the request that this code runs in: in its handler, in its response body, and in what it
/// starts through this crate's spawn helpers. From the path prefix, from [`set_rollout_id`], or from the
/// caller's baggage `nemo.gym.rollout.id`, in this order. `None` outside a request and with telemetry off.
pub fn current_rollout_id() -> Option<RolloutId> {
    Context::map_current(rollout_id_in)
}

/// Gives the request's open spans the rollout id that only its handler could know, for example from a `/run`
/// body (see [`super::rollout_id_from_run_body`]). The first id of a request stays. Outside a request it only
/// marks the current span.
pub fn set_rollout_id(id: &RolloutId) {
    Context::map_current(|cx| match cx.get::<Arc<RolloutScope>>() {
        Some(scope) => scope.set(id),
        None if cx.has_active_span() => cx.span().set_attribute(KeyValue::new(ROLLOUT_ID, id.to_value())),
        None => {}
    })
}
