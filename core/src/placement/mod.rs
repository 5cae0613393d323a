//! Where trajectories generate: which worker takes which of them, and which
//! workers a GPU budget should buy (Heddle, sections 5 and 6).
//!
//! The time of a group is `interference(size) * token_time * longest length`, and
//! a plan is as slow as its slowest group. Lemma 5.1 (groups are stretches of the
//! lengths in descending order) also holds for workers of different speed, because
//! sizes do not change in its swap. Which worker takes which stretch is not given
//! by speed: one long trajectory on a slow worker can free the fast one for a large
//! group. So every order of the workers counts here.
//!
//! Instead of the paper's O(n^2 m) table, the makespan itself is searched. For a
//! bound on it, the farthest position that a set of workers can reach is simple to
//! compute, since farther is always better. The search bisects the floating-point
//! numbers between two bounds and jumps to attainable products on the way, so it
//! ends at the least attainable product, exactly: the computed product is
//! monotone in each factor, and every comparison is made on it.
//!
//! Where a fleet has too many combinations of used workers for a table, a Lagrangian
//! relaxation bounds what they can cover: a price for each kind of worker, and the
//! cheapest path through the lengths. It leaves so few combinations that those of
//! sixteen kinds with several workers each can be looked at; where it does not, prices are
//! made anew for the rest of the way and the workers that are left there.
//!
//! [`baseline`] keeps the paper's own algorithms, as oracles and for comparison.

mod alike;
mod allocation;
pub mod baseline;
mod classes;
mod combinations;
mod fleet;
mod interference;
mod layers;
mod prices;
mod reach;
mod search;
#[cfg(test)]
mod tests;
mod workers;

pub use allocation::{Allocation, Degree, allocate};
pub use interference::{Interference, InvalidInterference};
pub use workers::{Placement, place};

/// Most distinct token times in one placement.
pub const MAX_KINDS: usize = 16;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Trajectories, but nothing to run them on.
    #[error("no worker is given: at least one is needed")]
    NoWorker,
    /// More kinds than the search takes.
    #[error("{got} distinct token times: at most {MAX_KINDS}")]
    TooManyKinds {
        /// How many there are.
        got: usize,
    },
    /// The budget does not buy one worker.
    #[error("{gpus} GPUs do not hold one worker: the smallest degree is {smallest}")]
    BudgetTooSmall {
        /// The budget.
        gpus: u64,
        /// The least that a worker takes.
        smallest: u64,
    },
    /// The makespan is no finite number.
    #[error("the makespan is larger than a 64-bit number can tell: use smaller lengths or times")]
    Overflow,
    /// No proof of the exact optimum within the memory that is allowed.
    #[error(
        "too many combinations of workers for an exact plan: \
         use fewer distinct token times, or fewer workers"
    )]
    TooLarge,
}
