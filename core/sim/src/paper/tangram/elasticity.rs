//! Figure 9: elastic against fixed degrees.

use super::OURS;
use super::coding::{ASSUMED, NODES, batch, cluster, serve};
use crate::paper::figure::{Figure, higher};
use crate::paper::trial::{Failed, Trial};
use crate::policy::Policy;
use crate::workload::UNIT;

pub(super) fn figures() -> [Figure; 3] {
    [
        Figure::simulated(
            [higher(
                "tangram-elasticity-dop4",
                "001 Fig. 9, 6.4",
                "ACT ratio against a fixed degree of 4, batch 256",
                2.0,
            )],
            ASSUMED,
            |trial| ratio(trial, 256, 4),
        ),
        Figure::simulated(
            [higher(
                "tangram-elasticity-dop16",
                "001 Fig. 9, 6.4",
                "ACT ratio against a fixed degree of 16, batch 1280",
                3.0,
            )],
            ASSUMED,
            |trial| ratio(trial, 1280, 16),
        ),
        Figure::simulated(
            [higher(
                "tangram-elasticity-1x",
                "001 Fig. 9, 6.4",
                "ACT ratio against a fixed degree of 4, batch 1280",
                1.8,
            )],
            ASSUMED,
            |trial| ratio(trial, 1280, 4),
        ),
    ]
}

fn ratio(trial: &mut Trial<'_>, size: usize, degree: u64) -> Result<[f64; 1], Failed> {
    let (batch, cluster) = (batch(trial, size), cluster(NODES));
    let fixed = serve(trial, &cluster, &batch, Policy::Fixed { units: degree * UNIT })?;
    let ours = serve(trial, &cluster, &batch, OURS)?;
    Ok([fixed.act / ours.act])
}
