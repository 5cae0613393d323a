//! Heddle's own algorithms, as printed: oracles in tests, baselines in benchmarks.
//! Nothing in production calls them.

mod aggregated;
mod annealing;
mod presorted;

pub use aggregated::{Aggregation, aggregated};
pub use annealing::{Cooling, anneal};
pub use presorted::presorted;
