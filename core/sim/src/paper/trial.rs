//! One drawing of a workload.

use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_core::placement::{InvalidInterference, PlanError};

use super::random::Random;
use crate::cluster::Cluster;
use crate::engine::{Refused, simulate};
use crate::policy::Policy;
use crate::report::Report;
use crate::workload::Trajectory;
use crate::world::Record;

/// Why there is no value.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The simulator refused the workload.
    #[error("the simulator refused a workload: {0}")]
    Refused(#[from] Refused),
    /// There is no plan.
    #[error("no plan: {0}")]
    Plan(#[from] PlanError),
    /// A curve that is none.
    #[error("the interference: {0}")]
    Interference(#[from] InvalidInterference),
    /// The core refused an event.
    #[error("the core refused: {}", .0.message)]
    Core(Fault),
}

/// What a figure is measured with.
pub struct Trial<'c> {
    /// Draws the workload.
    pub random: Random,
    clock: &'c mut dyn FnMut() -> Duration,
}

impl<'c> Trial<'c> {
    /// The drawing of `seed` for the figure `of`.
    pub(super) fn new(seed: u64, of: &str, clock: &'c mut dyn FnMut() -> Duration) -> Self {
        // FNV-1a, so that figures draw apart from one another.
        let name = of.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { random: Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name), clock }
    }

    /// Runs a workload under a policy.
    pub fn simulate(
        &mut self,
        cluster: &Cluster,
        workload: &[Trajectory],
        policy: Policy,
    ) -> Result<(Report, Vec<Record>), Failed> {
        Ok(simulate(cluster, workload, policy, &mut || (self.clock)())?)
    }

    /// The seconds that something took: the least of `times` runs, which what else runs
    /// on the machine disturbs least.
    pub fn time<T>(&mut self, times: usize, mut run: impl FnMut() -> T) -> f64 {
        let mut once = || {
            let before = (self.clock)();
            std::hint::black_box(run());
            (self.clock)().saturating_sub(before).as_secs_f64()
        };
        (0..times).map(|_| once()).fold(f64::INFINITY, f64::min)
    }
}
