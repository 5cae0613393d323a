//! What an action costs: a vector of named resources.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::QuotaName;

/// CPU units in millionths of a core. Below one core it is a share of the
/// node's shared cores; otherwise a whole number of exclusive cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Units(u32);

impl Units {
    /// Millionths in one core.
    pub const CORE: u32 = 1_000_000;

    /// `count` exclusive cores.
    pub const fn cores(count: u16) -> Self {
        Self(count as u32 * Self::CORE)
    }

    /// From a number of cores: a fraction in (0, 1), or a whole number from 1.
    pub fn from_f64(units: f64) -> Result<Self, InvalidUnits> {
        let whole = units.fract() == 0.0 && (1.0..=4096.0).contains(&units);
        let share = (1e-6..1.0).contains(&units);
        if !(whole || share) {
            return Err(InvalidUnits::Number { got: units.to_string() });
        }
        Ok(Self((units * f64::from(Self::CORE)).round() as u32))
    }

    /// As a number of cores.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::CORE)
    }

    /// Millionths of a core.
    pub const fn micros(self) -> u32 {
        self.0
    }

    /// True below one core.
    pub const fn is_share(self) -> bool {
        self.0 < Self::CORE
    }

    /// Cores needed to hold it alone: what `${parallel_num}` becomes.
    pub const fn ceil(self) -> u32 {
        self.0.div_ceil(Self::CORE)
    }
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

/// Units that cannot be offered to an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUnits {
    /// Neither a share nor whole cores.
    #[error(
        "{got} is no CPU unit: give a share above 0 and below 1, or whole cores from 1 to 4096"
    )]
    Number {
        /// What was given.
        got: String,
    },
    /// Nothing offered.
    #[error("no CPU units given: list at least one, such as [1]")]
    Empty,
    /// Not sorted, or more than one share.
    #[error("CPU units must ascend, and only the first may be below 1")]
    Order,
}

/// The CPU units that an action may be given, ascending; only the first may be a
/// share. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitChoice(Vec<Units>);

impl UnitChoice {
    /// Checks the order.
    pub fn new(units: Vec<Units>) -> Result<Self, InvalidUnits> {
        if units.is_empty() {
            return Err(InvalidUnits::Empty);
        }
        let ascending = units.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || units.iter().skip(1).any(|u| u.is_share()) {
            return Err(InvalidUnits::Order);
        }
        Ok(Self(units))
    }

    /// From numbers of cores.
    pub fn from_f64(units: &[f64]) -> Result<Self, InvalidUnits> {
        Self::new(units.iter().map(|u| Units::from_f64(*u)).collect::<Result<_, _>>()?)
    }

    /// One fixed number of units.
    pub fn fixed(units: Units) -> Self {
        Self(vec![units])
    }

    /// All of them, ascending.
    pub fn as_slice(&self) -> &[Units] {
        &self.0
    }

    /// The least that it can run with.
    pub fn smallest(&self) -> Units {
        self.0[0]
    }

    /// The largest that is at most `limit`, else the smallest.
    pub fn at_most(&self, limit: Units) -> Units {
        self.0.iter().copied().rev().find(|u| *u <= limit).unwrap_or(self.0[0])
    }
}

/// The vector of everything an action takes while it runs. Memory is not in it:
/// that belongs to the trajectory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// CPU units, on the node of the trajectory's sandbox.
    pub cpu: UnitChoice,
    /// Amount of each named quota. Taken in the order of names, before the CPU.
    pub quota: BTreeMap<QuotaName, u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_a_share_or_whole_cores() {
        for bad in [0.0, -1.0, 1.5, f64::NAN, f64::INFINITY, 5000.0, 1e-9] {
            assert!(Units::from_f64(bad).is_err(), "{bad}");
        }
        assert!(Units::from_f64(0.25).unwrap().is_share());
        assert_eq!(Units::from_f64(4.0).unwrap(), Units::cores(4));
        assert_eq!(Units::from_f64(0.25).unwrap().ceil(), 1);
    }

    #[test]
    fn choice_is_ascending_with_one_share_at_most() {
        assert_eq!(UnitChoice::from_f64(&[]), Err(InvalidUnits::Empty));
        assert_eq!(UnitChoice::from_f64(&[2.0, 1.0]), Err(InvalidUnits::Order));
        assert_eq!(UnitChoice::from_f64(&[0.2, 0.5]), Err(InvalidUnits::Order));
        let choice = UnitChoice::from_f64(&[0.5, 1.0, 4.0]).unwrap();
        assert_eq!(choice.at_most(Units::cores(3)), Units::cores(1));
        assert_eq!(choice.at_most(Units::from_f64(0.1).unwrap()), choice.smallest());
    }
}
