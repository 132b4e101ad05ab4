//! The session cookie that every Gym server keeps with its callers.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{COOKIE, SET_COOKIE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::Router;

const TWO_WEEKS: u32 = 14 * 24 * 60 * 60;

#[derive(Debug)]
struct Sessions {
    cookie: String,
    /// Keyed with the process's own random key, so that only cookies of this process are accepted.
    key: RandomState,
}

impl Sessions {
    /// The cookie's value for a session: its id and a signature.
    fn sign(&self, id: &str) -> String {
        format!("{id}.{:016x}", self.key.hash_one(id))
    }

    /// The caller's session, or a new one when the caller has none of ours.
    fn resume(&self, headers: &HeaderMap) -> String {
        let ours = |value: &String| value.split_once('.').is_some_and(|(id, _)| self.sign(id) == *value);
        let sent = cookies(headers).into_iter().filter(|(name, _)| *name == self.cookie).map(|(_, value)| value);
        sent.into_iter().find(ours).unwrap_or_else(|| self.sign(&format!("{:032x}", rand::random::<u128>())))
    }
}

/// The cookies of a request, in the order they were sent.
pub fn cookies(headers: &HeaderMap) -> Vec<(String, String)> {
    let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(';')).filter_map(pair).collect()
}

/// The cookies that a reply sets, without their attributes.
pub fn set_cookies(headers: &HeaderMap) -> Vec<(String, String)> {
    let values = headers.get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
    values.filter_map(|value| pair(value.split(';').next()?)).collect()
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((name.trim().to_owned(), value.trim().to_owned()))
}

/// Keeps a session with every caller, by a cookie named after the server's class and name.
pub fn with_session(router: Router, class: &str, name: &str) -> Router {
    let sessions = Sessions { cookie: format!("{class}___{name}"), key: RandomState::new() };
    router.layer(from_fn_with_state(Arc::new(sessions), keep_session))
}

async fn keep_session(State(sessions): State<Arc<Sessions>>, request: Request, next: Next) -> Response {
    let value = sessions.resume(request.headers());
    let mut response = next.run(request).await;
    // A failed request gets no session, as upstream's fails outside its session middleware.
    if response.status() != StatusCode::INTERNAL_SERVER_ERROR {
        let cookie = format!("{}={value}; path=/; Max-Age={TWO_WEEKS}; httponly; samesite=lax", sessions.cookie);
        if let Ok(cookie) = HeaderValue::try_from(cookie) {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
        response.headers_mut().insert(VARY, HeaderValue::from_static("Cookie"));
    }
    response
}
