//! Section 6.4: what scheduling costs.

use super::OURS;
use super::coding::{NODES, batch, cluster};
use crate::paper::figure::{Figure, lower};

pub(super) fn figure() -> Figure {
    Figure::clocked(
        [lower(
            "tangram-overhead",
            "001 Table 1, 6.4",
            "overhead over execution, batch 1536",
            0.03,
        )],
        &[
            "the workload of tangram-act-cpu; the 99th percentile of a scheduling round on this machine",
            "what the agent adds is not simulated: make bench measures it",
        ],
        |trial| {
            let batch = batch(trial, 1536);
            let (report, _) = trial.simulate(&cluster(NODES), &batch, OURS)?;
            Ok([report.decision_us.p99 * 1e-6 / report.exec_s.mean])
        },
    )
}
