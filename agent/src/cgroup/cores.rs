use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::CgroupError;

/// Highest core number that is believed; bounds what a range can expand to.
const MAX_CORE: u32 = 65_535;

/// A set of logical CPUs by the kernel's numbers, written as the kernel does: `0-3,8`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreList(BTreeSet<u32>);

impl CoreList {
    /// True when no core is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many cores are in it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The cores in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Cores that are in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// Cores that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CoreList {
    fn from_iter<I: IntoIterator<Item = u32>>(cores: I) -> Self {
        Self(cores.into_iter().collect())
    }
}

impl FromStr for CoreList {
    type Err = CgroupError;

    fn from_str(text: &str) -> Result<Self, CgroupError> {
        let bad = || CgroupError::BadCoreList { text: text.chars().take(80).collect() };
        let mut cores = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let low: u32 = low.trim().parse().map_err(|_| bad())?;
            let high: u32 = high.trim().parse().map_err(|_| bad())?;
            if low > high || high > MAX_CORE {
                return Err(bad());
            }
            cores.extend(low..=high);
        }
        Ok(Self(cores))
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(low) = rest.next() {
            let mut high = low;
            while rest.next_if_eq(&(high + 1)).is_some() {
                high += 1;
            }
            if low == high {
                write!(f, "{separator}{low}")?;
            } else {
                write!(f, "{separator}{low}-{high}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// CPU that an action may use.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuGrant {
    /// Cores that it may run on, at least one.
    pub cores: CoreList,
    /// CPU units: whole exclusive cores, or below 1 a share, weighed against the
    /// other actions on the same cores. Above 0.
    pub units: f64,
}

impl CpuGrant {
    /// The grant, if it makes sense.
    pub(crate) fn checked(&self) -> Result<&Self, CgroupError> {
        if self.cores.is_empty() || !self.units.is_finite() || self.units <= 0.0 {
            return Err(CgroupError::BadGrant { cores: self.cores.to_string(), units: self.units });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_list_reads_back_as_written(cores in proptest::collection::btree_set(0u32..300, 0..40)) {
            let list = CoreList(cores);
            prop_assert_eq!(list.to_string().parse::<CoreList>().unwrap(), list);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9,\\- a]{0,20}") {
            let _ = text.parse::<CoreList>();
        }
    }

    #[test]
    fn the_kernels_form_is_understood() {
        let list: CoreList = "0-3,8\n".parse().unwrap();
        assert_eq!(list, CoreList::from_iter([0, 1, 2, 3, 8]));
        assert_eq!("".parse::<CoreList>().unwrap(), CoreList::default());
        assert!("3-1".parse::<CoreList>().is_err());
        assert!("0-4000000000".parse::<CoreList>().is_err());
    }
}
