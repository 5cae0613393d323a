//! Section 6.4: what scheduling costs.

use super::coding::{NODES, batch, cluster};
use super::{OURS, row};
use crate::paper::{Better, Figure};

pub(super) fn figure() -> Figure {
    Figure::clocked(
        [row("tangram-overhead", "001 Table 1, 6.4", "overhead over execution, batch 1536", 0.03, Better::Lower)],
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
