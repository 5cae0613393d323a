//! How long things take, learned for each service and degree.

use std::collections::BTreeMap;
use std::time::Duration;

use super::tenant::Kind;

/// Weight of a new measurement in the exponentially weighted mean.
const WEIGHT: f64 = 0.25;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// From the order to launch until it is verified resident.
    Launch,
    /// From the order to wake until it is verified resident.
    Wake,
    /// From the order to evict until the memory is back.
    Evict,
    /// An action on its engine.
    Run,
}

/// Means, in seconds.
#[derive(Debug, Default)]
pub(super) struct Learned(BTreeMap<(Kind, Phase), f64>);

impl Learned {
    pub(super) fn measured(&mut self, kind: Kind, phase: Phase, took: Duration) {
        let took = took.as_secs_f64();
        let mean = self.0.entry((kind, phase)).or_insert(took);
        *mean += WEIGHT * (took - *mean);
    }

    /// `None` before the first measurement.
    pub(super) fn mean(&self, kind: Kind, phase: Phase) -> Option<Duration> {
        let mean = self.0.get(&(kind, phase))?;
        Some(Duration::try_from_secs_f64(*mean).unwrap_or(Duration::MAX))
    }
}
