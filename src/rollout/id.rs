//! A valid rollout id, and how it is read from a `/run` body.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// A rollout's id: `^[A-Za-z0-9][A-Za-z0-9._-]*$`, upstream's pattern.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RolloutId(Arc<str>);

impl RolloutId {
    /// Checks the pattern.
    ///
    /// # Errors
    /// [`RolloutIdError::Malformed`] when the text does not match it.
    pub fn new(text: &str) -> Result<Self, RolloutIdError> {
        if Self::is_valid(text) { Ok(Self(text.into())) } else { Err(RolloutIdError::Malformed) }
    }

    pub(crate) fn is_valid(text: &str) -> bool {
        let bytes = text.as_bytes();
        bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn to_value(&self) -> opentelemetry::Value {
        self.0.clone().into()
    }
}

impl fmt::Debug for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RolloutId({})", self.0)
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for RolloutId {
    type Err = RolloutIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

/// Why a rollout id was rejected. The rejected text is not repeated: it came from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutIdError {
    /// The id does not match the pattern.
    #[error("a rollout id must match ^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    Malformed,
    /// `_ng_rollout_id` is not a string.
    #[error("_ng_rollout_id must be a string")]
    NotAString,
    /// An index field is not a non-negative integer.
    #[error("{0} must be a non-negative integer")]
    BadIndex(&'static str),
}

/// Reads the rollout id from the body of an agent's `/run`, as upstream does: an explicit
/// `_ng_rollout_id`, else `<_ng_task_index>-<_ng_rollout_index>`, with `-a<n>` appended when
/// `_ng_attempt_index` is `n > 0`. `None` when the body names no rollout (an index is missing or null).
///
/// # Errors
/// When a field is there but is not what it must be. Nothing is guessed: a wrong id would put
/// another rollout's spans into this one.
pub fn rollout_id_from_run_body(body: &Value) -> Result<Option<RolloutId>, RolloutIdError> {
    match body.get("_ng_rollout_id") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => return RolloutId::new(text).map(Some),
        Some(_) => return Err(RolloutIdError::NotAString),
    }
    let task = index(body, "_ng_task_index")?;
    let rollout = index(body, "_ng_rollout_index")?;
    let attempt = index(body, "_ng_attempt_index")?.unwrap_or(0);
    let (Some(task), Some(rollout)) = (task, rollout) else { return Ok(None) };
    let text = if attempt > 0 { format!("{task}-{rollout}-a{attempt}") } else { format!("{task}-{rollout}") };
    Ok(Some(RolloutId(text.into())))
}

fn index(body: &Value, field: &'static str) -> Result<Option<u64>, RolloutIdError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or(RolloutIdError::BadIndex(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_by_the_pattern() {
        for good in ["3-0", "abc.1", "A", "0", "a_b-c.d", "3-0-a2"] {
            assert_eq!(RolloutId::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-bad", ".a", "_a", "a/b", "a b", "ä", "a\n", "a%20", " a", "a "] {
            assert_eq!(RolloutId::new(bad), Err(RolloutIdError::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn ids_from_run_bodies() {
        let id = |body: Value| rollout_id_from_run_body(&body).map(|id| id.map(|id| id.to_string()));
        assert_eq!(id(json!({"_ng_task_index": 3, "_ng_rollout_index": 0})), Ok(Some("3-0".into())));
        assert_eq!(
            id(json!({"_ng_task_index": 3, "_ng_rollout_index": 0, "_ng_attempt_index": 2})),
            Ok(Some("3-0-a2".into()))
        );
        assert_eq!(
            id(json!({"_ng_task_index": 3, "_ng_rollout_index": 0, "_ng_attempt_index": 0})),
            Ok(Some("3-0".into()))
        );
        assert_eq!(
            id(json!({"_ng_task_index": 3, "_ng_rollout_index": 0, "_ng_rollout_id": "abc.1"})),
            Ok(Some("abc.1".into()))
        );
        for nothing in [
            json!({}),
            json!(null),
            json!([1]),
            json!("x"),
            json!({"_ng_task_index": 3}),
            json!({"_ng_rollout_id": null}),
        ] {
            assert_eq!(id(nothing), Ok(None));
        }
        assert_eq!(id(json!({"_ng_rollout_id": ""})), Err(RolloutIdError::Malformed));
        assert_eq!(id(json!({"_ng_rollout_id": "-bad/1", "_ng_task_index": 3})), Err(RolloutIdError::Malformed));
        assert_eq!(id(json!({"_ng_rollout_id": 7})), Err(RolloutIdError::NotAString));
        for bad in [json!(-1), json!(1.5), json!("3"), json!(true), json!([])] {
            assert_eq!(
                id(json!({"_ng_task_index": bad, "_ng_rollout_index": 0})),
                Err(RolloutIdError::BadIndex("_ng_task_index"))
            );
            assert_eq!(
                id(json!({"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_attempt_index": bad})),
                Err(RolloutIdError::BadIndex("_ng_attempt_index"))
            );
        }
    }
}
