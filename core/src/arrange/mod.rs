//! How many units each of several elastic tasks gets, so that their durations sum
//! to the least: `DPArrange` of ARL-Tangram (Algorithms 3 and 4).
//!
//! Candidate sets are prefixes of a line, so one table answers every eviction step
//! of Algorithm 1: [`CoreTable`] for cores, [`ChunkTable`] for aligned chunks of
//! GPUs. [`arrange`] is for one set, of any size: it takes the marginal-gain greedy
//! ([`marginal_gains`]) where that is exact, a table where it is small, and else a
//! search bounded by a Lagrangian relaxation.
//!
//! The pseudo-code of the paper is implemented as it is meant, not as it is printed:
//! - Algorithm 3 counts units that are *used exactly*, from `START` on. `START` is
//!   called with `S_1` before the loop and with `S_{1:i+1}` inside the loop over
//!   units, so it moves with every unit instead of with every task. Here a table
//!   counts units that are *available*: every entry from 0 on has a meaning, and
//!   `START` is not needed.
//! - `END(U) < m` compares units with tasks, although a task may need several. The
//!   sum of the least units decides.
//! - `ISVALID` looks for an exact fill (`r = 0`) and takes exponential time. Whatever
//!   is left over is no fault; a prefix that does not fit has no total.
//! - `n = min(END(U), END(S))` reads the result at a single `j`; with exact fills that
//!   entry may not exist, although fewer units do. See above.
//! - Algorithm 4's `PREV` joins chunks that are not neighbours (8 of one free 4, one
//!   2 and two 1) and never splits one (2 of a free 4 fails). Here a task gets
//!   one aligned chunk, split from the smallest that holds it, which is always best
//!   ([`Chunks::take`]).
//! - Algorithm 2 pops the heap that it copied from instead of the copy, reads `C[0]`
//!   when nothing remains, and gives the first of the rest `depth` as units rather
//!   than as an index into its units. That estimate belongs to the scheduler; nothing
//!   here depends on it.

mod chunk_table;
mod chunks;
mod core_table;
mod greedy;
mod room;
mod search;
mod task;
#[cfg(test)]
mod tests;

pub use chunk_table::ChunkTable;
pub use chunks::Chunks;
pub use core_table::CoreTable;
pub use greedy::marginal_gains;
pub use task::{Choice, InvalidTask, Task};

/// Cells of a table, above which [`arrange`] searches instead (128 MiB).
const CELLS: u64 = 1 << 24;

/// What the tasks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Free {
    /// Interchangeable units.
    Cores(u64),
    /// Aligned chunks of GPUs.
    Chunks(Chunks),
}

/// Units for each task.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrangement {
    /// Sum of the durations, in seconds.
    pub total: f64,
    /// Units of each task, in order.
    pub units: Vec<u64>,
}

/// Why there is no arrangement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArrangeError {
    /// Even the least units of every task are too many.
    #[error("the tasks need at least {needed} units, more than fit into {free}")]
    Infeasible {
        /// Sum of the least units.
        needed: u64,
        /// What is free, in words.
        free: String,
    },
    /// The sum is no finite number.
    #[error("the durations sum to more than a 64-bit number can tell: use smaller ones")]
    Overflow,
    /// No proof of the exact optimum within the memory that is allowed.
    #[error("too many ways to share the units for an exact plan: use fewer tasks or units")]
    TooLarge,
}

/// The least sum of durations with every task given one of its units.
pub fn arrange(tasks: &[Task], free: &Free) -> Result<Arrangement, ArrangeError> {
    let arrangement = match free {
        Free::Cores(units) => on_cores(tasks, *units)?,
        Free::Chunks(chunks) => on_chunks(tasks, *chunks)?,
    };
    if arrangement.total.is_finite() { Ok(arrangement) } else { Err(ArrangeError::Overflow) }
}

fn on_cores(tasks: &[Task], units: u64) -> Result<Arrangement, ArrangeError> {
    let needed = least(tasks);
    let infeasible = || ArrangeError::Infeasible { needed, free: format!("{units} free units") };
    if needed > units {
        return Err(infeasible());
    }
    // Beyond what all can use, units are of no use.
    let most = tasks.iter().map(|task| task.largest().units).fold(0, u64::saturating_add);
    let units = units.min(most);
    if let Some(arrangement) = marginal_gains(tasks, units) {
        return Ok(arrangement);
    }
    let cells = units.saturating_add(1).saturating_mul(tasks.len() as u64 + 1);
    if cells > CELLS {
        return search::arrange(tasks, &room::Cores(units), infeasible);
    }
    let table = CoreTable::new(tasks, units as usize);
    table.arrangement(tasks.len(), units as usize).ok_or_else(infeasible)
}

fn on_chunks(tasks: &[Task], chunks: Chunks) -> Result<Arrangement, ArrangeError> {
    let needed = least(tasks);
    let infeasible = || ArrangeError::Infeasible { needed, free: chunks.to_string() };
    // A task takes one chunk at most.
    let chunks = chunks.at_most(tasks.len() as u64);
    if chunks.states().saturating_mul(tasks.len() as u64 + 1) > CELLS {
        // Where the best for so many single GPUs fits the chunks, it is the best.
        let relaxed = on_cores(tasks, chunks.gpus()).map_err(|error| match error {
            ArrangeError::Infeasible { .. } => infeasible(),
            other => other,
        })?;
        let mut units = relaxed.units.iter();
        if units.try_fold(chunks, |left, &units| left.take(units)).is_some() {
            return Ok(relaxed);
        }
        return search::arrange(tasks, &chunks, infeasible);
    }
    ChunkTable::new(tasks, chunks).arrangement(tasks.len()).ok_or_else(infeasible)
}

fn least(tasks: &[Task]) -> u64 {
    tasks.iter().map(|task| task.smallest().units).fold(0, u64::saturating_add)
}
