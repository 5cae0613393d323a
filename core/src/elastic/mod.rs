//! How many units each scalable action of a node's line gets, and when: the decision
//! of the default policy, [`Elastic`], and of ARL-Tangram's Algorithms 1 and 2
//! ([`tangram`]) as its baseline.
//!
//! Views in, decisions out: nothing here holds cores or knows a queue. The rule and
//! what it was measured to do are in `docs/elastic.md`.

mod arrivals;
mod backfill;
mod chunk_decide;
mod chunk_line;
mod decide;
mod line;
mod malleable;
mod remaining;
mod roll_out;
mod room;
mod rule;
mod tangram;
#[cfg(test)]
mod tests;
mod together;
mod work;

pub use arrivals::{Arrivals, Newcomers};
pub use chunk_decide::{CHUNK_WINDOW, ElasticChunks};
pub use chunk_line::{ChunkLine, ChunkPool, ChunkWaiting, Demand};
pub use decide::{Elastic, WINDOW};
pub use line::{Decision, Given, Line, Resizable, Running, Waiting};
pub use remaining::Remaining;
pub use tangram::{tangram, tangram_on_chunks};
pub use work::{Choice, InvalidWork, Work};
