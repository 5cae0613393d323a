//! What the five source texts measured, simulated again: ARL-Tangram (001), Heddle (000),
//! RollArt (003), DARTS (002) and the lesson on long tails (004).
//!
//! A [`Figure`] is data, its rows, and one function that measures a value for each of
//! them on a workload drawn from the distributions that the text states. The function
//! never sees a row, so no number of a text can decide its own result. To add a row, add
//! it to its figure (or a figure to its file's `figures`), with one more value.

mod darts;
mod figure;
mod groups;
mod heddle;
mod long_tail;
mod outcome;
mod random;
mod rollart;
mod tangram;
#[cfg(test)]
mod tests;
mod trial;

pub use figure::{Better, Figure, Row};
pub use outcome::Outcome;
pub use trial::{Failed, Trial};

/// All figures, in the order of the texts' numbers.
pub fn figures() -> Vec<Figure> {
    [
        heddle::figures(),
        tangram::figures(),
        darts::figures(),
        rollart::figures(),
        long_tail::figures(),
    ]
    .concat()
}
