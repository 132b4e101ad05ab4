//! The candidates on the client's side, in front of a middleware that answers by itself: no socket is part of a call.

use nemo_gym_telemetry::Telemetry;
use nemo_gym_telemetry::egress::TracePropagation;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_tracing::TracingMiddleware;

use crate::server::sampled;
use crate::table::Row;
use crate::telemetry;

pub const ROWS: &[Row] = &[
    Row("client-bare", "client alone"),
    Row("client-own-off", "this middleware, off"),
    Row("client-own-unsampled", "– unsampled, metrics"),
    Row("client-own-spans", "– sampled, no metrics"),
    Row("client-own", "– sampled, metrics"),
    Row("client-tracing-unsampled", "reqwest-tracing, unsampled"),
    Row("client-tracing", "– sampled"),
];

struct Canned;

#[async_trait::async_trait]
impl Middleware for Canned {
    async fn handle(
        &self,
        request: reqwest::Request,
        _: &mut http::Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        drop(std::hint::black_box(request));
        Ok(http::Response::new("{}").into())
    }
}

/// The client, and the caller's context current on this thread for the rest of the process.
pub fn client(name: &str) -> ClientWithMiddleware {
    let builder = ClientBuilder::new(reqwest::Client::new());
    let own = |telemetry: Telemetry| TracePropagation::builder().with_telemetry(&telemetry).build();
    let builder = match name.trim_end_matches("-unsampled") {
        "client-bare" => builder,
        "client-own-off" => builder.with(own(Telemetry::disabled())),
        "client-own-spans" => builder.with(own(telemetry::own("all", false))),
        "client-own" => builder.with(own(telemetry::own("all", true))),
        "client-tracing" => {
            version_0_32::global_through_tracing();
            builder.with(TracingMiddleware::default())
        }
        _ => panic!("no candidate {name}"),
    };
    version_0_33::enter_caller(sampled(name));
    version_0_32::enter_caller(sampled(name));
    builder.with(Canned).build()
}

mod version_0_33 {
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};

    pub fn enter_caller(sampled: bool) {
        let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        let caller = SpanContext::new(TraceId::from(7), SpanId::from(7), flags, false, Default::default());
        std::mem::forget(Context::new().with_remote_span_context(caller).attach());
    }
}

/// The newest OpenTelemetry that reqwest-tracing knows: the same pipeline and the same caller on that version.
mod version_0_32 {
    use opentelemetry_0_32::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TracerProvider};
    use opentelemetry_0_32::{Context, global};
    use opentelemetry_sdk_0_32::error::OTelSdkResult;
    use opentelemetry_sdk_0_32::propagation::TraceContextPropagator;
    use opentelemetry_sdk_0_32::trace::{SdkTracerProvider, SpanData, SpanExporter};
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Debug)]
    struct Dropping;

    impl SpanExporter for Dropping {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            crate::telemetry::count_exported(batch.len());
            Ok(())
        }
    }

    pub fn global_through_tracing() {
        let provider = SdkTracerProvider::builder().with_batch_exporter(Dropping).build();
        global::set_text_map_propagator(TraceContextPropagator::new());
        let layer = tracing_opentelemetry_0_33::layer().with_tracer(provider.tracer("peers"));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber).expect("the first subscriber");
        crate::telemetry::drain_by(move || drop(provider.force_flush()));
    }

    pub fn enter_caller(sampled: bool) {
        let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        let caller = SpanContext::new(TraceId::from(7), SpanId::from(7), flags, false, Default::default());
        std::mem::forget(Context::new().with_remote_span_context(caller).attach());
    }
}
