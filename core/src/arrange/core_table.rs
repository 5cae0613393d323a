//! The best totals of every prefix of a line, on cores.

use super::Arrangement;
use super::task::Task;

/// The least sum of durations of the first k tasks within c units, for every k and
/// c: Tangram's Algorithm 3 with the basic operator. Building it takes a pass over
/// the units for every choice of every task; each answer is then a look-up, so an
/// eviction step of Algorithm 1 costs nothing anew.
#[derive(Debug)]
pub struct CoreTable<'a> {
    tasks: &'a [Task],
    width: usize,
    /// `totals[k * width + c]`; infinite where the prefix does not fit.
    totals: Vec<f64>,
}

impl<'a> CoreTable<'a> {
    /// For the longest prefix of `tasks` that fits into `units`.
    pub fn new(tasks: &'a [Task], units: usize) -> Self {
        let mut needed = 0_u64;
        let fitting = tasks.iter().take_while(|task| {
            needed = needed.saturating_add(task.smallest().units);
            needed <= units as u64
        });
        let tasks = &tasks[..fitting.count()];
        let width = units + 1;
        let mut totals = vec![f64::INFINITY; width * (tasks.len() + 1)];
        totals[..width].fill(0.0);
        for (k, task) in tasks.iter().enumerate() {
            let (before, after) = totals.split_at_mut((k + 1) * width);
            let before = &before[k * width..];
            for choice in task.choices() {
                let Ok(taken) = usize::try_from(choice.units) else { break };
                if taken > units {
                    break;
                }
                for (slot, total) in after[taken..width].iter_mut().zip(before) {
                    *slot = slot.min(total + choice.duration);
                }
            }
        }
        Self { tasks, width, totals }
    }

    /// Tasks of the longest prefix that fits.
    pub fn longest(&self) -> usize {
        self.tasks.len()
    }

    /// The least sum of durations of the first `prefix` tasks within `units`; `None`
    /// where they do not fit.
    pub fn total(&self, prefix: usize, units: usize) -> Option<f64> {
        if prefix > self.tasks.len() {
            return None;
        }
        let total = self.totals[prefix * self.width + units.min(self.width - 1)];
        total.is_finite().then_some(total)
    }

    /// The units that lead to [`Self::total`]; of equal totals the one that leaves
    /// later tasks the fewest units.
    pub fn arrangement(&self, prefix: usize, units: usize) -> Option<Arrangement> {
        let total = self.total(prefix, units)?;
        let mut left = units.min(self.width - 1);
        let mut chosen = vec![0; prefix];
        for k in (0..prefix).rev() {
            let (row, before) = ((k + 1) * self.width, k * self.width);
            let choice = self.tasks[k].choices().iter().find(|choice| {
                choice.units <= left as u64 && {
                    let rest = self.totals[before + left - choice.units as usize];
                    // The same sum as when the table was built, bit for bit.
                    (rest + choice.duration).to_bits() == self.totals[row + left].to_bits()
                }
            })?;
            chosen[k] = choice.units;
            left -= choice.units as usize;
        }
        Some(Arrangement { total, units: chosen })
    }
}
