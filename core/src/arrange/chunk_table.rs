//! The best totals of every prefix of a line, on chunks of GPUs.

use super::Arrangement;
use super::chunks::{Chunks, SIZES};
use super::task::Task;

/// No state, or none before.
const NONE: u32 = u32::MAX;

/// The least sum of durations of the first k tasks within free chunks, for every k:
/// Tangram's Algorithm 3 with the operator that Algorithm 4 means. A state is what is
/// left of the chunks; there are few, since a chunk is only split when none of the
/// size is left.
#[derive(Debug)]
pub struct ChunkTable {
    /// For every prefix, the state with the least total.
    best: Vec<(f64, u32)>,
    /// For every prefix and state, the state before and the units taken from it.
    origins: Vec<Vec<(u32, u8)>>,
}

impl ChunkTable {
    /// For the longest prefix of `tasks` that fits into `chunks`.
    pub fn new(tasks: &[Task], chunks: Chunks) -> Self {
        let states = States::new(chunks);
        let mut totals = vec![f64::INFINITY; states.len()];
        let start = states.index(chunks);
        totals[start] = 0.0;
        let mut table = Self { best: vec![(0.0, start as u32)], origins: Vec::new() };
        for task in tasks {
            let mut next = vec![f64::INFINITY; states.len()];
            let mut origins = vec![(NONE, 0); states.len()];
            for (state, total) in totals.iter().enumerate().filter(|(_, total)| total.is_finite()) {
                for choice in task.choices() {
                    let Some(level) = SIZES.iter().position(|&size| size == choice.units) else {
                        continue;
                    };
                    let to = states.after[state][level];
                    if to != NONE && total + choice.duration < next[to as usize] {
                        next[to as usize] = total + choice.duration;
                        origins[to as usize] = (state as u32, choice.units as u8);
                    }
                }
            }
            let least = next.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
            match least {
                Some((state, &total)) if total.is_finite() => {
                    table.best.push((total, state as u32));
                }
                _ => break,
            }
            table.origins.push(origins);
            totals = next;
        }
        table
    }

    /// Tasks of the longest prefix that fits.
    pub fn longest(&self) -> usize {
        self.best.len() - 1
    }

    /// The least sum of durations of the first `prefix` tasks; `None` where they do
    /// not fit.
    pub fn total(&self, prefix: usize) -> Option<f64> {
        self.best.get(prefix).map(|&(total, _)| total)
    }

    /// The units that lead to [`Self::total`].
    pub fn arrangement(&self, prefix: usize) -> Option<Arrangement> {
        let &(total, mut state) = self.best.get(prefix)?;
        let mut units = vec![0; prefix];
        for k in (0..prefix).rev() {
            let (before, taken) = self.origins[k][state as usize];
            units[k] = u64::from(taken);
            state = before;
        }
        Some(Arrangement { total, units })
    }
}

/// What may be left of the chunks, numbered.
struct States {
    limits: [u32; 4],
    /// For each state, the one after taking a chunk of each size.
    after: Vec<[u32; 4]>,
}

impl States {
    fn new(chunks: Chunks) -> Self {
        let limits = chunks.limits();
        let mut states = Self { limits, after: Vec::new() };
        let mut counts = [0; 4];
        for _ in 0..chunks.states() {
            let at = Chunks::new(counts);
            states.after.push(SIZES.map(|size| {
                at.take(size)
                    .filter(|rest| rest.counts().iter().zip(limits).all(|(c, limit)| *c <= limit))
                    .map_or(NONE, |rest| states.index(rest) as u32)
            }));
            for (count, limit) in counts.iter_mut().zip(limits) {
                if *count < limit {
                    *count += 1;
                    break;
                }
                *count = 0;
            }
        }
        states
    }

    fn len(&self) -> usize {
        self.after.len()
    }

    fn index(&self, chunks: Chunks) -> usize {
        let places = chunks.counts().into_iter().zip(self.limits);
        places.rev().fold(0, |index, (count, limit)| index * (limit as usize + 1) + count as usize)
    }
}
