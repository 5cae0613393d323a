//! What a simulation comes to.

use std::collections::BTreeMap;

use serde::Serialize;

/// The result of one simulation. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// How many ran.
    pub trajectories: usize,
    /// How many actions they had.
    pub actions: usize,
    /// Action completion time: from submission to completion.
    pub act_s: Distribution,
    /// From submission to start.
    pub queue_s: Distribution,
    /// From start to completion, restores included.
    pub exec_s: Distribution,
    /// From the first arrival to the end of the last trajectory.
    pub makespan_s: f64,
    /// By pool: the part of its unit-seconds that ran an action.
    pub utilization: BTreeMap<String, f64>,
    /// By pool: the part of its unit-seconds that was held.
    pub reserved: BTreeMap<String, f64>,
    /// Wall-clock time of a scheduling round, in microseconds: the one part that
    /// differs from run to run.
    pub decision_us: Decisions,
}

/// Mean and percentiles by nearest rank; all 0 of nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Distribution {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Distribution {
    /// Of nanoseconds, in seconds.
    pub fn of(mut nanos: Vec<u64>) -> Self {
        if nanos.is_empty() {
            return Self::default();
        }
        nanos.sort_unstable();
        let sum: u128 = nanos.iter().map(|&time| u128::from(time)).sum();
        let at = |p: f64| nearest_rank(&nanos, p) as f64 / 1e9;
        Self {
            mean: sum as f64 / nanos.len() as f64 / 1e9,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Percentiles of the time of a scheduling round, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Decisions {
    pub p50: f64,
    pub p99: f64,
}

impl Decisions {
    /// Of nanoseconds.
    pub fn of(mut nanos: Vec<u64>) -> Self {
        if nanos.is_empty() {
            return Self::default();
        }
        nanos.sort_unstable();
        let at = |p: f64| nearest_rank(&nanos, p) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99) }
    }
}

/// `sorted[ceil(p * n) - 1]`, of at least one.
fn nearest_rank(sorted: &[u64], p: f64) -> u64 {
    // Whole percents, so that 0.9 * 10 is 9 and not a little more.
    let percent = (p * 100.0).round() as usize;
    let rank = (percent * sorted.len()).div_ceil(100);
    sorted[rank.max(1) - 1]
}
