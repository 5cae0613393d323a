//! A task that may run on several numbers of units.

/// One way to run a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Units that it takes.
    pub units: u64,
    /// Seconds that it then lasts.
    pub duration: f64,
}

/// A task and the numbers of units that it may get.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Ascending units, descending durations; never empty.
    choices: Vec<Choice>,
}

/// Choices that are none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidTask {
    /// Nothing to choose from.
    #[error("no units are given: list at least one, such as [1]")]
    Empty,
    /// Zero, or not larger than the one before.
    #[error("units must ascend from 1 on")]
    Order,
    /// Negative, or no number.
    #[error("a duration must be a finite number of seconds, 0 or more, got {got}")]
    Duration {
        /// What was given.
        got: f64,
    },
}

impl Task {
    /// From choices with ascending units. What is not faster than a choice of fewer
    /// units is of no use and left out.
    pub fn new(choices: impl IntoIterator<Item = Choice>) -> Result<Self, InvalidTask> {
        let mut useful: Vec<Choice> = Vec::new();
        let mut last = 0;
        for choice in choices {
            if choice.units <= last {
                return Err(InvalidTask::Order);
            }
            last = choice.units;
            if !(choice.duration >= 0.0 && choice.duration.is_finite()) {
                return Err(InvalidTask::Duration { got: choice.duration });
            }
            if useful.last().is_none_or(|best| choice.duration < best.duration) {
                useful.push(choice);
            }
        }
        if useful.is_empty() {
            return Err(InvalidTask::Empty);
        }
        Ok(Self { choices: useful })
    }

    /// The useful choices: more units, less time.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// The fewest units.
    pub fn smallest(&self) -> Choice {
        self.choices[0]
    }

    /// The least time.
    pub fn largest(&self) -> Choice {
        self.choices[self.choices.len() - 1]
    }
}
