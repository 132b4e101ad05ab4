//! Requests and replies in the form that Gym servers give them.

use axum::Json;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{Router, get};
use serde_json::{Map, Value, json};

/// A JSON object.
pub type Object = Map<String, Value>;

/// Conversations with images grow large; a body beyond this is refused with 413.
const MAX_BODY_BYTES: usize = 64 << 20;

/// One entry of a 422 reply: what is wrong, where in the request, and what stood there.
#[derive(Clone, Debug)]
pub struct Invalid(Value);

impl Invalid {
    /// A fault of this kind at a path below the body.
    pub fn new(kind: &str, message: &str, path: &[&str], input: Value) -> Self {
        let location: Vec<&str> = std::iter::once("body").chain(path.iter().copied()).collect();
        Self(json!({"type": kind, "loc": location, "msg": message, "input": input}))
    }

    /// A field is not there.
    pub fn missing(path: &[&str], object: &Value) -> Self {
        Self::new("missing", "Field required", path, object.clone())
    }
}

/// A reply that is not a success.
#[derive(Debug)]
pub enum ApiError {
    /// 422: the request is not what it must be.
    Invalid(Vec<Invalid>),
    /// 500: something failed; the text says what.
    Failed(String),
}

impl From<Invalid> for ApiError {
    fn from(fault: Invalid) -> Self {
        Self::Invalid(vec![fault])
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            ApiError::Failed(message) => (StatusCode::INTERNAL_SERVER_ERROR, Json(message)).into_response(),
            ApiError::Invalid(faults) => {
                let detail: Vec<Value> = faults.into_iter().map(|Invalid(fault)| fault).collect();
                (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({"detail": detail}))).into_response()
            }
        }
    }
}

/// Reads a body that must be a JSON object. `models` names the alternatives that a body of another type is held
/// against, where there are several.
pub fn object(body: &Bytes, models: &[&str]) -> Result<Object, ApiError> {
    if body.is_empty() {
        return Err(Invalid::missing(&[], &Value::Null).into());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => {
            let fault = |path: &[&str]| {
                Invalid::new("model_attributes_type", "Input should be a valid dictionary", path, other.clone())
            };
            let faults = models.iter().map(|model| fault(&[model]));
            Err(ApiError::Invalid(if models.is_empty() { vec![fault(&[])] } else { faults.collect() }))
        }
        Err(error) => {
            let location = json!(["body", offset(body, &error)]);
            let fault = json!({"type": "json_invalid", "loc": location, "msg": "JSON decode error", "input": {}});
            Err(Invalid(fault).into())
        }
    }
}

/// Where in the body a JSON error is, as a byte offset.
fn offset(body: &[u8], error: &serde_json::Error) -> usize {
    let before = body.split_inclusive(|&b| b == b'\n').take(error.line().saturating_sub(1));
    before.map(<[u8]>::len).sum::<usize>() + error.column().saturating_sub(1)
}

/// The faults of an object that lacks some of the fields it must have. `path` is where it stands.
pub fn missing(object: &Value, path: &[&str], fields: &[&str]) -> Vec<Invalid> {
    let lacking = fields.iter().filter(|field| object.get(**field).is_none());
    lacking.map(|field| Invalid::missing(&[path, &[field]].concat(), object)).collect()
}

/// `Ok` when there are no faults.
pub fn valid(faults: Vec<Invalid>) -> Result<(), ApiError> {
    if faults.is_empty() { Ok(()) } else { Err(ApiError::Invalid(faults)) }
}

/// Adds what all Gym servers answer alike: liveness probes, unknown paths, wrong methods.
pub fn with_common_routes(mut router: Router) -> Router {
    for path in ["/", "/health", "/healthz", "/livez", "/readyz"] {
        router = router.route(path, get(|| async { Json(json!({"status": "ok"})) }));
    }
    with_limits(router).fallback(not_found)
}

/// Adds the answer to a wrong method, and the largest body that is read.
pub fn with_limits(router: Router) -> Router {
    router.method_not_allowed_fallback(method_not_allowed).layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}

/// 404.
pub async fn not_found() -> impl IntoResponse {
    (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"})))
}

async fn method_not_allowed() -> impl IntoResponse {
    (StatusCode::METHOD_NOT_ALLOWED, Json(json!({"detail": "Method Not Allowed"})))
}
