//! What the turns of a task look like, the recent ones weighing most.

use super::cost::Turn;
use super::event::Usage;

/// Sums in which an observation's weight halves after `half_life` further ones.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Profile {
    /// Turns ever seen.
    pub(super) seen: u64,
    turns: f64,
    trajectories: f64,
    prefill: f64,
    decode: f64,
    context: f64,
}

impl Profile {
    pub(super) fn observe(&mut self, usage: Usage, first_turn: bool, half_life: u32) {
        let keep = (-1.0 / f64::from(half_life.max(1))).exp2();
        let prompt = f64::from(usage.prompt_tokens);
        let output = f64::from(usage.output_tokens);
        let decay = |sum: &mut f64, value: f64| *sum = *sum * keep + value;
        decay(&mut self.turns, 1.0);
        decay(&mut self.trajectories, f64::from(u8::from(first_turn)));
        decay(&mut self.prefill, (prompt - f64::from(usage.cached_tokens)).max(0.0));
        decay(&mut self.decode, output);
        decay(&mut self.context, prompt + output / 2.0);
        self.seen += 1;
    }

    /// The mean turn; `None` before the first.
    pub(super) fn turn(&self) -> Option<Turn> {
        let mean = |sum: f64| sum / self.turns;
        (self.seen > 0).then(|| Turn {
            prefill: mean(self.prefill),
            decode: mean(self.decode),
            context: mean(self.context),
        })
    }

    /// Turns of a trajectory, in the mean; at least 1.
    pub(super) fn turns_per_trajectory(&self) -> f64 {
        if self.trajectories > 0.0 { (self.turns / self.trajectories).max(1.0) } else { 1.0 }
    }
}
