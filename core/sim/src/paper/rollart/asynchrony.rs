//! Training beside rollout, within a bound of staleness.

use super::row;
use crate::paper::groups::{Groups, Settings};
use crate::paper::trial::{Failed, Trial};
use crate::paper::{Better, Figure};

/// Groups of a batch, and trajectories of a group (003, 7.1).
const GROUPS: usize = 64;
const GROUP: u32 = 8;
/// Mean seconds of a trajectory: generation of Figure 3, 54% of 366 s.
const ROLLOUT: f64 = 198.0;
/// Seconds of training (003, Fig. 3: 23%).
const TRAINING: f64 = 84.0;
/// Seconds to push and pull the weights of Qwen3-32B, and what stays exposed of it
/// (003, Table 4).
const TRANSFER: (f64, f64) = (157.0, 9.6);
/// Steps that are measured, after as many to warm up.
const STEPS: u32 = 5;

const ASSUMED: &[&str] = &[
    "64 groups of 8 (003 7.1) on 512 environments; a trajectory takes 198 s on average (003 Fig. 3: 54% of 366 s), log-normal, cv 0.6, at most 6 times the mean (003 8: 5 to 9 times), however many run",
    "training takes 84 s (003 Fig. 3); weights are pushed and pulled in 157 s, of which 9.6 s are exposed where rollout goes on (003 Table 4)",
    "staleness, abortion and batches by the core's own Trajectories and Buffer; hardware affinity has no part",
];

/// Figure 10: step times of systems.
pub(super) fn systems() -> Figure {
    Figure::simulated(
        [
            row("rollart-step-sync", "003 Fig. 10, 7.2", "step time of Sync+ over ours, bound 1", 2.05, Better::Higher),
            row("rollart-step-one-off", "003 Fig. 10, 7.2", "step time of One-off over ours, bound 1", 1.35, Better::Higher),
            row("rollart-one-off-sync", "003 7.2", "step time of Sync+ over One-off", 1.52, Better::Equal),
        ],
        ASSUMED,
        |trial| {
            let ours = step(trial, 1)?;
            let mut rollouts = 0.0;
            for _ in 0..STEPS {
                let mut all = groups(trial, 1);
                for _ in 0..GROUPS {
                    all.open()?;
                }
                all.batch(false)?;
                rollouts += all.now() / f64::from(STEPS);
            }
            let sync = rollouts + TRAINING + TRANSFER.0;
            let one_off = rollouts.max(TRAINING + TRANSFER.0 - TRANSFER.1) + TRANSFER.1;
            Ok([sync / ours, one_off / ours, sync / one_off])
        },
    )
}

/// Figure 13: larger bounds.
pub(super) fn bounds() -> Figure {
    Figure::simulated(
        [row("rollart-bound", "003 Fig. 13, R4", "most step time of bound 1 over that of a bound of 2 to 6", 1.22, Better::Equal)],
        ASSUMED,
        |trial| {
            let one = step(trial, 1)?;
            let mut most = 1.0_f64;
            for bound in 2..=6 {
                most = most.max(one / step(trial, bound)?);
            }
            Ok([most])
        },
    )
}

fn groups<'a>(trial: &'a mut Trial<'_>, bound: u32) -> Groups<'a> {
    let settings =
        Settings { needed: GROUP, redundant: 0, batch: GROUPS, slots: GROUPS * GROUP as usize, bound };
    let random = &mut trial.random;
    Groups::new(settings, || random.log_normal(ROLLOUT, 0.6).min(6.0 * ROLLOUT))
}

/// Mean seconds of a step: batch, suspend, update, resume, train beside rollout (003, 6.2).
fn step(trial: &mut Trial<'_>, bound: u32) -> Result<f64, Failed> {
    let mut all = groups(trial, bound);
    let mut from = 0.0;
    for i in 0..2 * STEPS {
        if i == STEPS {
            from = all.now();
        }
        all.batch(true)?;
        all.pause(TRANSFER.1);
        all.next_version()?;
        // The next batch is trained on when this one is done, and its weights are pushed
        // and pulled meanwhile.
        all.run(TRAINING + TRANSFER.0 - TRANSFER.1, true)?;
    }
    Ok((all.now() - from) / f64::from(STEPS))
}
