//! Training beside rollout, within a bound of staleness.

use crate::paper::figure::{Figure, equal, higher};
use crate::paper::groups::{Groups, Settings};
use crate::paper::random::Random;
use crate::paper::trial::{Failed, Trial};

/// Groups of a batch of 128 (003, Fig. 3), and trajectories of a group (003, 7.1).
const GROUPS: usize = 16;
const GROUP: u32 = 8;
/// Seconds of the slowest trajectory of 128 (003, Fig. 3: generation 54% and environments'
/// resets 15% of 366 s).
const SLOWEST: f64 = 253.0;
/// The longest over the mean (003, section 8).
const LONGEST: f64 = 9.0;
/// Seconds of training (003, Fig. 3: 23% of 366 s).
const TRAINING: f64 = 84.0;
/// Seconds to push and pull the weights of Qwen3-8B, and what stays exposed of it
/// (003, Table 4).
const TRANSFER: (f64, f64) = (38.6, 1.4);
/// Steps that are measured, after as many to warm up.
const STEPS: u32 = 5;

const ASSUMED: &[&str] = &[
    "Qwen3-8B: 16 groups of 8 on 128 environments (003 Fig. 3); trajectories are log-normal, cv 1, at most 9 times the mean (003 8), the slowest of 128 takes 253 s on average (003 Fig. 3: 69% of 366 s), however many run",
    "training takes 84 s (003 Fig. 3); weights are pushed and pulled in 38.6 s, of which 1.4 s are exposed where rollout goes on (003 Table 4)",
    "staleness, abortion and batches by the core's own Trajectories and Buffer; hardware affinity has no part",
];

/// Figure 10: step times of systems.
pub(super) fn systems() -> Figure {
    Figure::simulated(
        [
            higher(
                "rollart-step-sync",
                "003 Fig. 10, 7.2",
                "step time of Sync+ over ours, bound 1",
                2.05,
            ),
            higher(
                "rollart-step-one-off",
                "003 Fig. 10, 7.2",
                "step time of One-off over ours, bound 1",
                1.35,
            ),
            equal("rollart-one-off-sync", "003 7.2", "step time of Sync+ over One-off", 1.52),
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
        [equal(
            "rollart-bound",
            "003 Fig. 13, R4",
            "most step time of bound 1 over that of a bound of 2 to 6",
            1.22,
        )],
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
    let settings = Settings {
        needed: GROUP,
        redundant: 0,
        batch: GROUPS,
        slots: GROUPS * GROUP as usize,
        bound,
    };
    let random = &mut trial.random;
    let draw = |random: &mut Random| random.log_normal(1.0, 1.0).min(LONGEST);
    let mean = SLOWEST / random.mean_of_longest(128, 1_000, draw);
    Groups::new(settings, move || mean * draw(random))
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
