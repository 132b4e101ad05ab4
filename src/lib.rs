//! OpenTelemetry for Rust servers in a NeMo Gym fleet: tower/axum middleware, a reqwest middleware and a tokio runtime
//! monitor. One rollout is one trace, across processes and languages.
//!
//! | who | writes |
//! |---|---|
//! | server author | [`GymTelemetryLayer`] on the router, [`serve`] around it |
//! | caller author | [`TracePropagation`] in a reqwest-middleware client |
//! | supervisor author | [`TelemetryConfig`], [`configure_telemetry_env`], [`supervisor`] |
//! | `main` | [`init_telemetry`], [`Telemetry::shutdown`] |
//! | anyone in between | [`span`], [`rollout`], [`sandbox`], [`job`] |
//!
//! ```no_run
//! use axum::{Router, routing::post};
//! use nemo_gym_telemetry::ingress::GymTelemetryLayer;
//! use nemo_gym_telemetry::{ServerIdentity, ServerType, init_telemetry, serve};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let telemetry = init_telemetry(ServerIdentity::new("my_resources", ServerType::ResourcesServers));
//!     let app = Router::new()
//!         .route("/verify", post(|| async { r#"{"reward": 1.0}"# }))
//!         .layer(GymTelemetryLayer::new(&telemetry));
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//!     serve(listener, app, &telemetry).await
//! }
//! ```
//!
//! Telemetry is off until the environment turns it on (`NEMO_GYM_OTEL_ENABLED=1`), never fails a start-up or a request,
//! and costs one relaxed atomic load a request while it is off.
//!
//! # Pages
//!
//! Placement, spans and metrics of servers: [`ingress`]; of clients: [`egress`]; [`propagation`]; variables:
//! [`config`]; exporters, shutdown and loss: [`telemetry`]; the tokio monitor: [`runtime`].
#![doc = concat!("\n\n", include_str!("../docs/fleets.md"))]
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations)]

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod config;
mod diagnostics;
pub mod egress;
pub mod ingress;
pub mod job;
pub mod metrics;
pub mod propagation;
pub mod rollout;
pub mod runtime;
pub mod sandbox;
pub mod span;
pub mod span_group;
pub mod startup;
#[cfg(feature = "supervisor")]
pub mod supervisor;
pub mod telemetry;

pub use config::{
    ConfigError, Environment, MemoryProfilingConfig, ServerIdentity, ServerType, TELEMETRY_CONFIG_KEY, TelemetryConfig,
    TelemetryEnv, configure_telemetry_env, configure_telemetry_env_in, is_telemetry_env_enabled,
    is_telemetry_env_enabled_in, is_telemetry_metrics_enabled, is_telemetry_metrics_enabled_in,
    memory_profiling_config_from_env, memory_profiling_config_from_env_in, strip_telemetry_env,
};
pub use egress::TracePropagation;
pub use ingress::GymTelemetryLayer;
pub use opentelemetry;
pub use propagation::GymPropagator;
pub use rollout::{apply_rollout_prefix, current_rollout_id};
pub use span::{client_span, managed_span, safe_set_span_attributes, span_cm, trace_fn};
pub use span_group::{ALL_GROUPS, CROSS_PROCESS_SPINE, SpanGroup, SpanGroups, is_span_group_enabled};
pub use telemetry::logs::init_tracing;
pub use telemetry::{
    DeliveryReport, ShutdownGuard, ShutdownReport, SignalDelivery, Telemetry, TelemetryBuilder, get_telemetry,
    init_telemetry, is_metrics_exporter_active, serve, shutdown_telemetry,
};
