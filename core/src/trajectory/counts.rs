//! What is open at this moment.

use super::member::State;
use crate::buffer::Running;

/// What is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open groups, evaluations too.
    pub groups: usize,
    /// Trajectories that run.
    pub running: usize,
    /// Trajectories that are being scored.
    pub scoring: usize,
    /// Trajectories that are scored and wait for their group.
    pub scored: usize,
    /// Of them all, what may come to the buffer.
    pub training: Running,
}

impl Counts {
    /// Trajectories that are not ended.
    pub const fn trajectories(&self) -> usize {
        self.running + self.scoring + self.scored
    }

    pub(super) const fn group_opens(&mut self, training: bool) {
        self.groups += 1;
        self.training.groups += training as usize;
    }

    pub(super) const fn group_ends(&mut self, training: bool) {
        self.groups -= 1;
        self.training.groups -= training as usize;
    }

    pub(super) const fn enters(&mut self, state: State, training: bool) {
        if let Some(of_state) = self.of(state) {
            *of_state += 1;
            self.training.trajectories += training as usize;
        }
    }

    pub(super) const fn leaves(&mut self, state: State, training: bool) {
        if let Some(of_state) = self.of(state) {
            *of_state -= 1;
            self.training.trajectories -= training as usize;
        }
    }

    const fn of(&mut self, state: State) -> Option<&mut usize> {
        match state {
            State::Running => Some(&mut self.running),
            State::Scoring => Some(&mut self.scoring),
            State::Scored => Some(&mut self.scored),
            State::Settled | State::Aborted => None,
        }
    }
}
