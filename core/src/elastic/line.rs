//! What a decision is made from, and what it says.

use super::work::Work;
use crate::resources::Units;
use crate::time::Time;

/// A node's cores and its line at one instant.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The instant.
    pub now: Time,
    /// Cores that the line's actions may use, those that run included.
    pub cores: u32,
    /// What runs.
    pub running: &'a [Running<'a>],
    /// The first of those that wait, by [`Work::rank`]; more than
    /// [`WINDOW`](super::WINDOW) are not looked at: where all of those start, decide again.
    pub waiting: &'a [Waiting<'a>],
    /// How many more wait behind them.
    pub beyond: usize,
    /// Trajectories that live on the node and have no action waiting: so many may
    /// submit another one.
    pub idle_trajectories: usize,
}

/// An action that runs.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    /// When it is expected to end; in the past where that was wrong.
    pub ends: Time,
    /// What it holds.
    pub units: Units,
    /// Set where it may be given another of its units.
    pub resizable: Option<Resizable<'a>>,
}

/// What is known of a running action that can be resized.
#[derive(Debug, Clone, Copy)]
pub struct Resizable<'a> {
    /// Its choices, from its start.
    pub work: &'a Work,
    /// When it was submitted.
    pub submitted: Time,
    /// The part of it that is still to be done, 0 to 1.
    pub left: f64,
}

/// An action that waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// Its choices.
    pub work: &'a Work,
    /// When it was submitted.
    pub submitted: Time,
    /// True where it may be resized while it runs.
    pub resizable: bool,
}

/// Units for one action of a [`Line`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Its place in [`Line::waiting`] or [`Line::running`].
    pub index: usize,
    /// What it gets.
    pub units: Units,
}

/// What happens now. Resizes that give cores back stand first; all of them go before
/// the starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Of [`Line::running`], each with other units than before.
    pub resizes: Vec<Given>,
    /// Of [`Line::waiting`].
    pub starts: Vec<Given>,
}
