//! The layer and what its services share.

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::builder::{GymTelemetryLayerBuilder, InboundContext};
use super::route::Routes;
use super::service::GymTelemetryService;
use super::text::Text;
use crate::telemetry::Telemetry;

/// A [`tower_layer::Layer`] that gives a server its part in the fleet's telemetry. See the
/// [module](super) for what it records and where to put it.
///
/// Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct GymTelemetryLayer {
    state: Arc<LayerState>,
}

/// What a layer was built with; the same for all its requests.
pub(crate) struct LayerState {
    pub(crate) telemetry: Telemetry,
    pub(crate) routes: Routes,
    pub(crate) server_name: Option<Text>,
    pub(crate) inbound: InboundContext,
    pub(crate) excluded: Vec<String>,
    pub(crate) https: bool,
    pub(crate) record_query: bool,
    pub(crate) body_sizes: bool,
    pub(crate) request_headers: Vec<CapturedHeader>,
    pub(crate) response_headers: Vec<CapturedHeader>,
}

/// A header that goes on spans, and the attribute it becomes.
#[derive(Debug)]
pub(crate) struct CapturedHeader {
    pub(crate) name: http::HeaderName,
    pub(crate) key: opentelemetry::Key,
}

impl GymTelemetryLayer {
    /// The layer of the process-wide telemetry, which is initialised from the environment if nobody has
    /// done so. Without `NEMO_GYM_OTEL_ENABLED` in the environment it costs one relaxed atomic load a request.
    pub fn from_env() -> Self {
        Self::builder().build()
    }

    /// The layer of this telemetry, with the defaults of the builder.
    pub fn new(telemetry: &Telemetry) -> Self {
        Self::builder().with_telemetry(telemetry).build()
    }

    /// Choices for a layer.
    pub fn builder() -> GymTelemetryLayerBuilder {
        GymTelemetryLayerBuilder::default()
    }

    pub(super) fn from_state(state: LayerState) -> Self {
        Self { state: Arc::new(state) }
    }
}

impl<S> Layer<S> for GymTelemetryLayer {
    type Service = GymTelemetryService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GymTelemetryService::new(inner, self.state.clone())
    }
}

impl fmt::Debug for GymTelemetryLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GymTelemetryLayer").field("telemetry", &self.state.telemetry).finish_non_exhaustive()
    }
}
