//! What an array is in, and what is to be done next. Pure: time is given, and what is done is said.

use std::{path::PathBuf, time::Duration};

use crate::assemble::State;

/// The first pause after a server has failed; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// How long members are waited for at most if those on servers may be enough, which only `serve` sees.
const PERHAPS: Duration = Duration::from_mins(1);
/// A server that was up for this long begins anew with the pauses.
const PROVEN: Duration = Duration::from_mins(5);

/// Times are those since the daemon began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Members are late, or something forbids the start.
    Waiting { why: String, since: Duration },
    /// A server has been started, and doesn't answer yet.
    Starting { since: Duration },
    /// A server has it. `silent`: it hasn't answered lately, for the reason.
    Serving { control: PathBuf, since: Duration, silent: Option<String> },
    /// Its server was told to end. It is started again when a person does so.
    Stopped { since: Duration },
    /// Its server could not start, or died. It is started again at `until`.
    Failed { why: String, since: Duration, until: Duration },
}

/// What is to be done with an array.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Start a server.
    Start,
    /// Follow the server with this control socket.
    Follow(PathBuf),
}

/// How a server has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was told to.
    Ordered,
    /// It was not.
    Died(String),
}

/// See the module.
#[derive(Debug)]
pub struct Course {
    pub phase: Phase,
    /// Servers that failed, one after the other.
    pub failures: u32,
    /// Since when it has been waited for members that could be done without.
    enough_since: Option<Duration>,
}

impl Course {
    pub fn new(now: Duration) -> Self {
        let why = "its members have not been looked for yet".to_owned();
        Self { phase: Phase::Waiting { why, since: now }, failures: 0, enough_since: None }
    }

    /// Whether it is to be looked for: by and by what is missing may be there.
    pub fn is_sought(&self, now: Duration) -> bool {
        match &self.phase {
            // One that was stopped another process may start.
            Phase::Waiting { .. } | Phase::Stopped { .. } => true,
            Phase::Failed { until, .. } => now >= *until,
            Phase::Starting { .. } | Phase::Serving { .. } => false,
        }
    }

    /// It was looked for. `patience`: for how long members that could be done without are waited for, from
    /// when the others were there. Where disks come one by one, the last one isn't done without.
    pub fn looked(&mut self, state: &State, patience: Option<Duration>, now: Duration) -> Action {
        let waits_since = match &self.phase {
            Phase::Starting { .. } | Phase::Serving { .. } => return Action::Nothing,
            Phase::Waiting { since, .. } => *since,
            _ => now,
        };
        if let State::Served(control) = state {
            return Action::Follow(control.clone());
        }
        match &self.phase {
            Phase::Stopped { .. } => return Action::Nothing,
            Phase::Failed { until, .. } if now < *until => return Action::Nothing,
            _ => {}
        }
        let is_enough = matches!(state, State::Late { enough: true, .. });
        self.enough_since = is_enough.then(|| self.enough_since.unwrap_or(now));
        let is_over = |since: Duration| patience.is_some_and(|limit| now.saturating_sub(since) >= limit);
        let why = match state {
            State::Served(_) | State::Ready => return self.starts(now),
            State::Perhaps(_)
                if now.saturating_sub(waits_since) >= patience.unwrap_or(PERHAPS).min(PERHAPS) =>
            {
                return self.starts(now);
            }
            State::Late { .. } if self.enough_since.is_some_and(is_over) => return self.starts(now),
            State::Late { why, .. } | State::Perhaps(why) | State::Hopeless(why) => why.clone(),
        };
        self.phase = Phase::Waiting { why, since: waits_since };
        Action::Nothing
    }

    fn starts(&mut self, now: Duration) -> Action {
        self.enough_since = None;
        self.phase = Phase::Starting { since: now };
        Action::Start
    }

    /// A server answers.
    pub fn answers(&mut self, control: PathBuf, now: Duration) {
        if let Phase::Serving { silent, .. } = &mut self.phase {
            *silent = None;
            return;
        }
        self.phase = Phase::Serving { control, since: now, silent: None };
    }

    /// The server doesn't answer, and hasn't ended.
    pub fn is_silent(&mut self, why: String) {
        if let Phase::Serving { silent, .. } = &mut self.phase {
            silent.get_or_insert(why);
        }
    }

    /// A server could not start.
    pub fn not_started(&mut self, why: String, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        let doublings = self.failures.saturating_sub(1).min(PAUSE_MAX.as_secs().ilog2() + 1);
        let pause = FIRST_PAUSE.saturating_mul(1 << doublings).min(PAUSE_MAX);
        self.phase = Phase::Failed { why, since: now, until: now + pause };
    }

    /// The server has ended.
    pub fn ended(&mut self, ending: Ending, now: Duration) {
        match ending {
            Ending::Ordered => {
                self.failures = 0;
                self.phase = Phase::Stopped { since: now };
            }
            Ending::Died(why) => {
                if let Phase::Serving { since, .. } = self.phase
                    && now.saturating_sub(since) >= PROVEN
                {
                    self.failures = 0;
                }
                self.not_started(why, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn late(enough: bool) -> State {
        State::Late { why: "slot 1 is missing".to_owned(), enough }
    }

    fn died() -> Ending {
        Ending::Died("its server was ended by signal 9".to_owned())
    }

    #[test]
    fn late_members_are_waited_for_as_long_as_the_configuration_says() {
        let mut course = Course::new(at(0));
        assert_eq!(course.looked(&late(true), Some(at(30)), at(1)), Action::Nothing);
        assert!(course.is_sought(at(1)));
        assert_eq!(course.looked(&late(true), Some(at(30)), at(30)), Action::Nothing);
        assert_eq!(course.looked(&late(true), Some(at(30)), at(31)), Action::Start);
        assert_eq!(course.phase, Phase::Starting { since: at(31) });
    }

    #[test]
    fn the_last_member_is_waited_for_from_when_the_others_are_there() {
        let mut course = Course::new(at(0));
        for (enough, now, expected) in [
            (false, 0, Action::Nothing),
            (true, 1000, Action::Nothing),
            (true, 1029, Action::Nothing),
            (false, 1030, Action::Nothing),
            (true, 1031, Action::Nothing),
            (true, 1060, Action::Nothing),
            (true, 1061, Action::Start),
        ] {
            assert_eq!(course.looked(&late(enough), Some(at(30)), at(now)), expected, "{now}");
        }
        // What has failed begins anew.
        course.ended(died(), at(1062));
        assert_eq!(course.looked(&late(true), Some(at(30)), at(1063)), Action::Nothing);
    }

    #[test]
    fn what_lacks_data_or_has_no_limit_is_waited_for_without_end() {
        for (state, patience) in [
            (late(false), Some(at(30))),
            (late(true), None),
            (State::Hopeless("md has it".into()), Some(at(0))),
        ] {
            let mut course = Course::new(at(0));
            assert_eq!(course.looked(&state, patience, at(1_000_000)), Action::Nothing);
            assert!(matches!(course.phase, Phase::Waiting { since, .. } if since == at(0)));
        }
    }

    #[test]
    fn what_servers_may_have_is_left_to_them_after_a_minute_or_sooner() {
        let perhaps = State::Perhaps("one may be late".to_owned());
        for (patience, limit) in [(None, 60), (Some(at(5)), 5), (Some(at(90)), 60)] {
            let mut course = Course::new(at(0));
            assert_eq!(course.looked(&perhaps, patience, at(limit - 1)), Action::Nothing, "{patience:?}");
            assert_eq!(course.looked(&perhaps, patience, at(limit)), Action::Start, "{patience:?}");
        }
    }

    #[test]
    fn a_server_that_died_is_started_again_after_pauses_that_double() {
        let mut course = Course::new(at(0));
        let mut now = 0;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            assert_eq!(course.looked(&State::Ready, None, at(now)), Action::Start);
            course.answers("/c".into(), at(now));
            course.ended(died(), at(now));
            assert!(!course.is_sought(at(now + pause - 1)));
            assert_eq!(course.looked(&State::Ready, None, at(now + pause - 1)), Action::Nothing);
            now += pause;
            assert!(course.is_sought(at(now)));
        }
        assert_eq!(course.failures, 9);
        course.looked(&State::Ready, None, at(now));
        course.answers("/c".into(), at(now));
        course.ended(died(), at(now + 300));
        assert_eq!(course.failures, 1, "it was up for long");
    }

    #[test]
    fn what_a_person_stopped_stays_stopped_until_a_person_starts_it() {
        let mut course = Course::new(at(0));
        course.looked(&State::Ready, None, at(0));
        course.answers("/c".into(), at(1));
        course.ended(Ending::Ordered, at(2));
        assert_eq!(course.looked(&State::Ready, Some(at(0)), at(1000)), Action::Nothing);
        assert_eq!(course.phase, Phase::Stopped { since: at(2) });
        let served = State::Served("/d".into());
        assert_eq!(course.looked(&served, None, at(1001)), Action::Follow("/d".into()));
    }

    #[test]
    fn a_server_of_others_is_followed_and_none_is_started_beside_it() {
        let mut course = Course::new(at(0));
        assert_eq!(course.looked(&State::Served("/c".into()), None, at(0)), Action::Follow("/c".into()));
        course.answers("/c".into(), at(0));
        assert_eq!(course.looked(&State::Ready, None, at(1)), Action::Nothing);
        course.is_silent("no answer".into());
        assert_eq!(course.looked(&State::Ready, None, at(2)), Action::Nothing);
        assert!(matches!(&course.phase, Phase::Serving { silent: Some(_), .. }));
        course.answers("/c".into(), at(3));
        assert!(matches!(&course.phase, Phase::Serving { silent: None, since, .. } if *since == at(0)));
    }
}
