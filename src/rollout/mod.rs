//! The rollout id: which rollout a request belongs to.
//!
//! A Gym fleet hands the id from server to server as a path prefix,
//! `/ng-rollout/{rollout_id}/…` (or `/ng-rollout/{rollout_id}/training-token-capture/…`), and in the
//! body of an agent's `/run`. The layer puts it on the spans of the request as
//! `nemo.gym.rollout.id`; code inside a request reads it with [`current_rollout_id`].

mod id;
mod prefix;
mod scope;

pub use id::{RolloutId, RolloutIdError, rollout_id_from_run_body};
pub(crate) use prefix::{PrefixForm, StrippedPrefix, split_prefix};
pub use prefix::{RolloutPrefix, apply_rollout_prefix, with_rollout_prefix};
pub(crate) use scope::{RolloutScope, rollout_id_in};
pub use scope::{current_rollout_id, set_rollout_id};

/// Span attribute and baggage key of the rollout id.
pub const ROLLOUT_ID: &str = "nemo.gym.rollout.id";
