//! The environment variables through which the halves of a start-up meet.
//!
//! Names and meaning are the Python original's: either side may be Python.

use std::time::{Duration, SystemTime};

use crate::config::variables::{
    NEMO_GYM_STARTUP_SERVE_NS, NEMO_GYM_STARTUP_SETUP_DONE_NS, NEMO_GYM_STARTUP_SPAWN_NS, NEMO_GYM_STARTUP_TRACEPARENT,
};
use crate::config::{ChildCommand, Environment};
use crate::diagnostics;

/// A start-up that takes longer is none: the variable is left over from another process.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Tells a worker process of this server, before it is spawned, when the main process handed over to it. The worker
/// then reports `gym.server.startup.worker` from that moment.
pub fn announce_worker<C: ChildCommand>(command: &mut C) {
    command.std_command().env(NEMO_GYM_STARTUP_SERVE_NS, nanoseconds(SystemTime::now()));
}

/// The moment as these variables have it.
pub(crate) fn nanoseconds(at: SystemTime) -> String {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// What a server was told about its own start.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables {
    spawn: Option<u64>,
    setup_done: Option<u64>,
    serve: Option<u64>,
    pub(super) worker: bool,
    pub(super) traceparent: Option<String>,
}

/// Where a start-up began and, if it did, when the preparations were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) spawn: Option<SystemTime>,
    pub(super) setup_done: Option<SystemTime>,
    pub(super) serve: Option<SystemTime>,
}

impl Variables {
    pub(super) fn read(environment: &Environment) -> Self {
        let number = |name| {
            let text = environment.get(name)?;
            // Digits only: a sign, a fraction or an exponent is not what a supervisor writes.
            let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
            number.filter(|n| *n > 0).or_else(|| ignore(name))
        };
        Self {
            spawn: number(NEMO_GYM_STARTUP_SPAWN_NS),
            setup_done: number(NEMO_GYM_STARTUP_SETUP_DONE_NS),
            serve: number(NEMO_GYM_STARTUP_SERVE_NS),
            worker: environment.get(NEMO_GYM_STARTUP_SERVE_NS).is_some(),
            traceparent: environment.get(NEMO_GYM_STARTUP_TRACEPARENT).map(str::to_owned),
        }
    }

    /// The times that make sense for a program whose own code began at `entered`: none in the future, none of another
    /// day, the end of the preparations not before their beginning. What does not is ignored, with one warning.
    pub(super) fn before(&self, entered: SystemTime) -> Before {
        let oldest = entered.checked_sub(LONGEST).unwrap_or(SystemTime::UNIX_EPOCH);
        let within = |name, number: Option<u64>, earliest: SystemTime| {
            let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(number?));
            at.filter(|at| (earliest..=entered).contains(at)).or_else(|| ignore(name))
        };
        let spawn = within(NEMO_GYM_STARTUP_SPAWN_NS, self.spawn, oldest);
        Before {
            spawn,
            setup_done: within(NEMO_GYM_STARTUP_SETUP_DONE_NS, self.setup_done, spawn.unwrap_or(oldest)),
            serve: within(NEMO_GYM_STARTUP_SERVE_NS, self.serve, oldest),
        }
    }
}

fn ignore<T>(name: &str) -> Option<T> {
    diagnostics::warn_once(&format!("{name} is no time at which this process can have been started; ignored"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
    }

    const NOW: u64 = 1_800_000_000_000_000_000;

    fn before(spawn: &str, setup_done: &str) -> Before {
        let environment =
            Environment::from_iter([(NEMO_GYM_STARTUP_SPAWN_NS, spawn), (NEMO_GYM_STARTUP_SETUP_DONE_NS, setup_done)]);
        Variables::read(&environment).before(at(NOW))
    }

    #[test]
    fn good_times() {
        let found = before(&format!(" {} ", NOW - 900), &(NOW - 300).to_string());
        assert_eq!(found.spawn, Some(at(NOW - 900)));
        assert_eq!(found.setup_done, Some(at(NOW - 300)));
        assert_eq!(before(&NOW.to_string(), &NOW.to_string()).setup_done, Some(at(NOW)));
    }

    #[test]
    fn junk_is_no_time() {
        let day_and_more = NOW - 25 * 3600 * 1_000_000_000;
        for junk in [
            "",
            " ",
            "0",
            "-5",
            "+1800000000000000000",
            "1.8e18",
            "1_800_000_000_000_000_000",
            "now",
            "18446744073709551615",
            "99999999999999999999999",
            "1800000000",           // seconds
            "1800000000000",        // milliseconds
            "１８００",             // digits of another script
            &(NOW + 1).to_string(), // the future
            &day_and_more.to_string(),
        ] {
            let found = before(junk, &(NOW - 300).to_string());
            assert_eq!(found.spawn, None, "{junk}");
            assert_eq!(found.setup_done, Some(at(NOW - 300)), "the other variable stays good");
        }
    }

    #[test]
    fn reversed_order_drops_the_later_fact() {
        let found = before(&(NOW - 300).to_string(), &(NOW - 900).to_string());
        assert_eq!((found.spawn, found.setup_done), (Some(at(NOW - 300)), None));
    }
}
