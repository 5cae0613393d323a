//! How much a worker slows down with the size of its group.

/// The factor by which the token time grows with the number of trajectories that
/// share a worker, `F` in Heddle's Formula 2. It never decreases, and its last
/// value holds for all larger groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Interference(Vec<f64>);

/// A curve that slows nothing down, or speeds up with more work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidInterference {
    /// No value.
    #[error("it is empty: give the factor of a group of one at least, such as [1.0]")]
    Empty,
    /// Not a factor.
    #[error("the factor at size {size} must be above 0 and finite, got {got}")]
    Factor {
        /// Size of the group, from 1.
        size: usize,
        /// What was given.
        got: f64,
    },
    /// Smaller than the one before.
    #[error("the factor at size {size} is below the one before: factors must not decrease")]
    Decreasing {
        /// Size of the group, from 1.
        size: usize,
    },
}

impl Interference {
    /// `factors[s - 1]` is the factor of a group of `s`.
    pub fn new(factors: Vec<f64>) -> Result<Self, InvalidInterference> {
        if factors.is_empty() {
            return Err(InvalidInterference::Empty);
        }
        for (i, factor) in factors.iter().enumerate() {
            if !(*factor > 0.0 && factor.is_finite()) {
                return Err(InvalidInterference::Factor { size: i + 1, got: *factor });
            }
            if i > 0 && *factor < factors[i - 1] {
                return Err(InvalidInterference::Decreasing { size: i + 1 });
            }
        }
        Ok(Self(factors))
    }

    /// The factor of a group of `size`, 0 for none.
    pub fn at(&self, size: usize) -> f64 {
        match size {
            0 => 0.0,
            size => self.0[size.min(self.0.len()) - 1],
        }
    }

    /// The given factors, by size from 1.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }
}
