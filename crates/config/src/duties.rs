//! What the daemon does for an array beside serving it.

use std::{str::FromStr, time::Duration};

use thiserror::Error;

/// The names of the days, as a week begins.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MINUTES: u16 = 24 * 60;

/// Of an `[[array]]`, or of `[defaults]`. What isn't said is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// How often all parity is compared with the data.
    pub check_every: Option<Every>,
    /// When that may be under way.
    pub check_window: Option<Window>,
    /// Arrays of one group lend each other their spares.
    pub spare_group: Option<String>,
    /// What is done about disks that are failing.
    pub health: Option<Health>,
}

impl Duties {
    /// With what `others` say where these say nothing.
    pub fn or(self, others: &Self) -> Self {
        Self {
            check_every: self.check_every.or(others.check_every),
            check_window: self.check_window.or(others.check_window),
            spare_group: self.spare_group.or_else(|| others.spare_group.clone()),
            health: self.health.or(others.health),
        }
    }
}

/// `never`, or a time such as `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// Not at all.
    Never,
    /// After this time, counted from begin to begin.
    Time(Duration),
}

/// A text that is no time between checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a time between checks is \"never\", or an hour at least, such as \"30days\" or \"12h\"")]
pub struct NoTime;

impl FromStr for Every {
    type Err = NoTime;

    fn from_str(text: &str) -> Result<Self, NoTime> {
        if text == "never" {
            return Ok(Self::Never);
        }
        match humantime::parse_duration(text) {
            Ok(time) if time >= Duration::from_hours(1) => Ok(Self::Time(time)),
            _ => Err(NoTime),
        }
    }
}

/// What is done about members that say of themselves that they are failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// They aren't asked.
    Off,
    /// It is told.
    #[default]
    Warn,
    /// It is told, and a spare takes their place.
    Replace,
}

/// A text that is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("there are \"warn\", \"replace\" and \"off\"")]
pub struct NoHealth;

impl FromStr for Health {
    type Err = NoHealth;

    fn from_str(text: &str) -> Result<Self, NoHealth> {
        match text {
            "off" => Ok(Self::Off),
            "warn" => Ok(Self::Warn),
            "replace" => Ok(Self::Replace),
            _ => Err(NoHealth),
        }
    }
}

/// Times of a week, local ones: `01:00-06:00`, `Sat,Sun 22:00-06:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The days on which it begins, from Monday.
    days: [bool; 7],
    /// Minutes of the day. Where the end isn't behind the begin it is one of the next day.
    from: u16,
    to: u16,
}

/// A text that is no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a window is FROM-TO, such as \"01:00-06:00\", or days and that, such as \"Sat,Sun 22:00-06:00\" (Mon Tue Wed Thu Fri Sat Sun)"
)]
pub struct NoWindow;

impl Window {
    /// Whether it is open on this day (0 is Monday) at this minute.
    pub fn is_open(&self, day: usize, minute: u16) -> bool {
        let begun_today = self.days[day % 7] && minute >= self.from;
        let begun_yesterday = self.days[(day + 6) % 7];
        if self.from < self.to {
            begun_today && minute < self.to
        } else {
            begun_today || begun_yesterday && minute < self.to
        }
    }
}

impl FromStr for Window {
    type Err = NoWindow;

    fn from_str(text: &str) -> Result<Self, NoWindow> {
        let (days, times) = match text.trim().rsplit_once(' ') {
            None => ([true; 7], text.trim()),
            Some((names, times)) => {
                let mut days = [false; 7];
                for name in names.split(',') {
                    let is_it = |day: &str| day.eq_ignore_ascii_case(name.trim());
                    days[DAYS.iter().position(|day| is_it(day)).ok_or(NoWindow)?] = true;
                }
                (days, times)
            }
        };
        let (from, to) = times.split_once('-').ok_or(NoWindow)?;
        let (from, to) = (minutes(from).ok_or(NoWindow)?, minutes(to).ok_or(NoWindow)?);
        if from == DAY_MINUTES || from == to { Err(NoWindow) } else { Ok(Self { days, from, to }) }
    }
}

/// Minutes of the day, of `HH:MM`.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.len() == 2 && !text.starts_with('+'));
    let all = number(hours)? * 60 + number(minutes).filter(|minutes| *minutes < 60)?;
    (all <= DAY_MINUTES).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_open_from_its_begin_to_its_end_on_its_days() {
        let window: Window = "01:00-06:30".parse().unwrap();
        for (minute, is_open) in [(59, false), (60, true), (389, true), (390, false)] {
            assert_eq!(window.is_open(3, minute), is_open, "{minute}");
        }
        let night: Window = "sat,Sun 22:00-06:00".parse().unwrap();
        for (day, minute, is_open) in [
            (5, 1319, false), // Saturday, 21:59
            (5, 1320, true),
            (5, 100, false), // the night to Saturday
            (6, 100, true),
            (6, 1330, true),
            (0, 359, true), // Monday, 5:59
            (0, 360, false),
            (0, 1330, false),
        ] {
            assert_eq!(night.is_open(day, minute), is_open, "{day} {minute}");
        }
        let day: Window = "00:00-24:00".parse().unwrap();
        assert!((0..1440).all(|minute| day.is_open(0, minute)));
    }

    #[test]
    fn what_is_no_window_or_no_time_is_refused() {
        for text in [
            "",
            "1-2",
            "01:00",
            "01:00-01:00",
            "24:00-01:00",
            "Mon",
            "Mun 01:00-02:00",
            "01:60-02:00",
            "+1:00-02:00",
            "25:00-02:00",
        ] {
            assert_eq!(text.parse::<Window>(), Err(NoWindow), "{text}");
        }
        for text in ["", "30", "59m", "-1d", "always"] {
            assert_eq!(text.parse::<Every>(), Err(NoTime), "{text}");
        }
        assert_eq!("never".parse(), Ok(Every::Never));
        assert_eq!("30days".parse(), Ok(Every::Time(Duration::from_hours(720))));
    }
}
