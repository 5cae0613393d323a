//! What is known of an action: how long it lasts with how many units.

use std::time::Duration;

use crate::resources::{UnitChoice, Units};
use crate::time::Time;

/// One way to run an action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// What it takes.
    pub units: Units,
    /// How long it then lasts.
    pub seconds: f64,
}

impl Choice {
    /// Core-seconds.
    pub fn cost(self) -> f64 {
        self.seconds * self.units.as_f64()
    }
}

/// The ways to run an action: more units, less time. Never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    choices: Vec<Choice>,
    /// What it may be overtaken for.
    patience: Duration,
    /// Seconds that its trajectory goes on after it.
    tail: f64,
}

/// Numbers that describe no action.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidWork {
    /// Negative, or no number.
    #[error("a duration must be a finite number of seconds, 0 or more, got {got}")]
    Duration {
        /// What was given.
        got: f64,
    },
    /// Not a fraction.
    #[error("the serial fraction must lie in 0 to 1, got {got}")]
    Serial {
        /// What was given.
        got: f64,
    },
}

impl Work {
    /// From a duration for each of the units. What is not faster than fewer units is of
    /// no use and left out.
    pub fn new(
        units: &UnitChoice,
        mut seconds: impl FnMut(Units) -> f64,
    ) -> Result<Self, InvalidWork> {
        let mut choices: Vec<Choice> = Vec::with_capacity(units.as_slice().len());
        for &units in units.as_slice() {
            let seconds = seconds(units);
            if !(seconds >= 0.0 && seconds.is_finite()) {
                return Err(InvalidWork::Duration { got: seconds });
            }
            if choices.last().is_none_or(|last| seconds < last.seconds) {
                choices.push(Choice { units, seconds });
            }
        }
        let patience = self::seconds(choices[0].cost());
        Ok(Self { choices, patience, tail: 0.0 })
    }

    /// By Amdahl's law: `duration * (serial + (1 - serial) / units)` seconds; a share of
    /// a core takes its time at one unit.
    pub fn amdahl(units: &UnitChoice, duration: f64, serial: f64) -> Result<Self, InvalidWork> {
        if !(0.0..=1.0).contains(&serial) {
            return Err(InvalidWork::Serial { got: serial });
        }
        Self::new(units, |units| duration * (serial + (1.0 - serial) / units.as_f64().max(1.0)))
    }

    /// As part of a trajectory that goes on for `tail` seconds after it; in its line it is
    /// overtaken only by those that are submitted within `patience` after it.
    #[must_use]
    pub fn followed_by(self, tail: f64, patience: Duration) -> Self {
        Self { patience, tail, ..self }
    }

    /// The same as it would be if it lasted so many `seconds` on `units`.
    #[must_use]
    pub(super) fn lasting(&self, units: Units, seconds: f64) -> Self {
        let expected = self.choices.iter().rfind(|choice| choice.units <= units);
        let factor = seconds / expected.unwrap_or(&self.choices[0]).seconds;
        if !(factor.is_finite() && factor >= 0.0) {
            return self.clone();
        }
        let longer = |choice: &Choice| Choice { seconds: choice.seconds * factor, ..*choice };
        let choices: Vec<Choice> = self.choices.iter().map(longer).collect();
        let own = self.patience == self::seconds(self.choices[0].cost());
        let patience = if own { self::seconds(choices[0].cost()) } else { self.patience };
        Self { choices, patience, tail: self.tail }
    }

    /// In the place that `before` had in a line, and followed by the same: what is known of an
    /// action that waits may change, its rank does not.
    #[must_use]
    pub fn in_place_of(self, before: &Self) -> Self {
        self.followed_by(before.tail, before.patience)
    }

    /// Seconds that its trajectory goes on after it.
    pub fn tail(&self) -> f64 {
        self.tail
    }

    /// All of them, ascending in units and descending in time.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// The one with the fewest units.
    pub fn least(&self) -> Choice {
        self.choices[0]
    }

    /// The largest with at most `cores`, else the smallest.
    pub fn at_most(&self, cores: u32) -> Choice {
        let fits = |choice: &&Choice| choice.units.ceil() <= cores;
        self.choices.iter().rev().find(fits).copied().unwrap_or(self.choices[0])
    }

    /// Its place in a line, the earliest first: the shorter first, but an action is
    /// overtaken only by those that are submitted within its own work, in seconds on one
    /// core, after it (or another patience: [`Self::followed_by`]). It never changes while the action waits.
    pub fn rank(&self, submitted: Time) -> Time {
        submitted + self.patience
    }
}

/// Seconds, however many.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
