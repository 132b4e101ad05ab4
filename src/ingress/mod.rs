#![doc = include_str!("../../docs/server.md")]

mod attributes;
mod body;
mod builder;
mod future;
mod http;
mod layer;
mod report;
mod request;
mod route;
mod service;
mod text;

pub use body::ResponseBody;
pub use builder::{GymTelemetryLayerBuilder, InboundContext};
pub use future::ResponseFuture;
pub(crate) use http::{Method, Scheme, Version, status_text};
pub use layer::GymTelemetryLayer;
pub(crate) use report::ReportRouteLayer;
pub(crate) use route::gym_template;
pub use service::GymTelemetryService;
pub(crate) use text::Text;
