//! Contiguous stages in wall-clock time.

use std::time::{Duration, Instant, SystemTime};

/// More stages than a start-up can have; further ones lengthen the last.
const MAX_STAGES: usize = 64;

/// A moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    wall: SystemTime,
    monotonic: Instant,
}

impl Stamp {
    /// Now. Reads again where the thread was held up between the two clocks, so that they tell the same moment.
    pub(crate) fn now() -> Self {
        let read = || {
            let (before, wall, monotonic) = (Instant::now(), SystemTime::now(), Instant::now());
            (monotonic - before, Self { wall, monotonic })
        };
        let mut best = read();
        for _ in 0..3 {
            if best.0 < Duration::from_micros(20) {
                break;
            }
            best = std::cmp::min_by_key(best, read(), |(gap, _)| *gap);
        }
        best.1
    }
}

/// A slice of a start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) began: SystemTime,
    pub(crate) ended: SystemTime,
}

impl Stage {
    pub(crate) fn duration(&self) -> Duration {
        self.ended.duration_since(self.began).unwrap_or_default()
    }
}

/// Stages without a gap: each begins where the one before has ended.
///
/// One reading of the wall clock, the rest by the monotonic clock: a clock that is set meanwhile cannot turn a stage
/// around.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    anchor: Stamp,
    began: SystemTime,
    stages: Vec<Stage>,
}

impl Timeline {
    /// A timeline that begins `at` a moment of this one, and tells the time as this one does as long as the wall clock
    /// agrees: a server may be started again days later.
    #[cfg(feature = "supervisor")]
    pub(crate) fn branch(&self, at: Stamp) -> Self {
        let ours = self.wall(at);
        let agrees = at.wall.duration_since(ours).is_ok_and(|behind| behind < Duration::from_secs(1));
        Self::new(Stamp { wall: if agrees { ours } else { at.wall }, ..at })
    }

    /// A timeline that begins at `anchor`.
    pub(crate) fn new(anchor: Stamp) -> Self {
        Self { anchor, began: anchor.wall, stages: Vec::new() }
    }

    /// Puts a stage before everything else; none where its beginning is unknown or not before all that.
    pub(crate) fn prepend(&mut self, name: &'static str, began: Option<SystemTime>) {
        if let Some(began) = began.filter(|began| *began < self.began) {
            self.stages.insert(0, Stage { name, began, ended: self.began });
            self.began = began;
        }
    }

    /// Ends the stage that began at the previous mark, `at` this moment, and names it. An earlier moment than the
    /// previous mark's is taken as that one; an empty stage is left out.
    pub(crate) fn mark(&mut self, name: &'static str, at: Stamp) {
        let (began, ended) = (self.ended(), self.wall(at));
        if ended <= began {
            return;
        }
        let full = self.stages.len() >= MAX_STAGES;
        match self.stages.last_mut().filter(|_| full) {
            Some(last) => last.ended = ended,
            None => self.stages.push(Stage { name, began, ended }),
        }
    }

    /// The moment on this timeline's clock.
    pub(crate) fn wall(&self, at: Stamp) -> SystemTime {
        let anchor = self.anchor;
        match at.monotonic.checked_duration_since(anchor.monotonic) {
            Some(after) => anchor.wall + after,
            None => anchor.wall.checked_sub(anchor.monotonic - at.monotonic).unwrap_or(anchor.wall),
        }
    }

    pub(crate) fn anchor(&self) -> SystemTime {
        self.anchor.wall
    }
    pub(crate) fn began(&self) -> SystemTime {
        self.began
    }
    pub(crate) fn ended(&self) -> SystemTime {
        self.stages.last().map_or(self.began, |stage| stage.ended)
    }
    pub(crate) fn stages(&self) -> &[Stage] {
        &self.stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(stamp: Stamp, ms: u64) -> Stamp {
        let by = Duration::from_millis(ms);
        Stamp { wall: stamp.wall + by, monotonic: stamp.monotonic + by }
    }
    fn sum(timeline: &Timeline) -> Duration {
        timeline.stages().iter().map(Stage::duration).sum()
    }
    fn assert_contiguous(timeline: &Timeline) {
        assert_eq!(timeline.stages().first().map(|s| s.began), Some(timeline.began()));
        assert!(timeline.stages().windows(2).all(|pair| pair[0].ended == pair[1].began));
        assert_eq!(sum(timeline), timeline.ended().duration_since(timeline.began()).unwrap());
    }

    #[test]
    fn stages_are_contiguous_and_sum_up_to_the_whole() {
        let start = Stamp::now();
        let mut timeline = Timeline::new(start);
        timeline.mark("one", after(start, 10));
        timeline.mark("backwards", after(start, 5));
        timeline.mark("two", after(start, 30));
        timeline.prepend("before", Some(start.wall - Duration::from_millis(7)));
        timeline.prepend("not before", Some(start.wall));
        timeline.prepend("unknown", None);
        assert_eq!(timeline.stages().iter().map(|s| s.name).collect::<Vec<_>>(), ["before", "one", "two"]);
        assert_eq!(sum(&timeline), Duration::from_millis(37));
        assert_contiguous(&timeline);
    }

    #[test]
    fn a_wall_clock_that_jumps_does_not_turn_a_stage_around() {
        let start = Stamp::now();
        let mut timeline = Timeline::new(start);
        let jumped = Stamp { wall: start.wall - Duration::from_secs(3600), ..after(start, 20) };
        timeline.mark("one", jumped);
        assert_eq!(sum(&timeline), Duration::from_millis(20));
    }

    #[cfg(feature = "supervisor")]
    #[test]
    fn a_branch_follows_the_wall_clock_only_where_it_left_ours() {
        let start = Stamp::now();
        let timeline = Timeline::new(start);
        let late = |ms| Stamp { wall: after(start, 50).wall + Duration::from_millis(ms), ..after(start, 50) };
        assert_eq!(timeline.branch(late(3)).began(), after(start, 50).wall);
        assert_eq!(timeline.branch(late(5000)).began(), late(5000).wall);
        let back = Stamp { wall: start.wall, ..after(start, 50) };
        assert_eq!(timeline.branch(back).began(), start.wall, "never in the server's future");
    }

    #[test]
    fn marks_without_end_do_not_grow() {
        let start = Stamp::now();
        let mut timeline = Timeline::new(start);
        for i in 1..10_000 {
            timeline.mark("again", after(start, i));
        }
        assert_eq!(timeline.stages().len(), MAX_STAGES);
        assert_eq!(sum(&timeline), Duration::from_millis(9_999));
        assert_contiguous(&timeline);
    }
}
