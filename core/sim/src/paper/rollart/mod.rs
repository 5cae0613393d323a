//! RollArt (003): trajectories that run apart, and training beside them.

mod asynchrony;
mod environments;

use super::{Better, Figure, Row};

const HARDWARE: &str = "depends on hardware: it was measured on H800 and H20 GPUs and their links";
const MODEL: &str = "depends on a trained model's behaviour: a score that training has to reach";

pub(super) fn figures() -> Vec<Figure> {
    let mut figures = vec![environments::batched(), environments::redundant(), environments::reward_gpus()];
    figures.extend([asynchrony::systems(), asynchrony::bounds()]);
    figures.extend([
        Figure::beyond(
            [row("rollart-time-to-score", "003 Fig. 10(a)", "time to a score of 0.85, over Sync+", 2.05, Better::Higher)],
            MODEL,
        ),
        Figure::beyond(
            [
                row("rollart-affinity-prefill", "003 Fig. 4(a)", "rollout time on H800 over H20, FrozenLake", 0.53, Better::Lower),
                row("rollart-affinity-decode", "003 Fig. 4(b)", "rollout time on H20 over H800, GEM-math", 0.49, Better::Lower),
                row("rollart-affinity-h800", "003 Fig. 11(a)", "step time of H800 alone over the mixture", 1.37, Better::Higher),
                row("rollart-affinity-h20", "003 Fig. 11(a)", "step time of H20 alone over the mixture", 1.68, Better::Higher),
                row("rollart-rdma", "003 Table 3", "TCP over RDMA, Qwen3-32B", 3.14, Better::Higher),
                row("rollart-weight-transfer", "003 Fig. 14(a)", "step time with synchronous over asynchronous transfer", 1.16, Better::Higher),
                row("rollart-exposed-pull", "003 Table 4", "seconds of exposed pull, Qwen3-32B", 9.6, Better::Lower),
                row("rollart-pd-dense", "003 Table 5", "colocated over disaggregated, 2P2D, Qwen3-32B", 1.05, Better::Higher),
                row("rollart-pd-moe", "003 Table 5", "colocated over disaggregated, 2P2D, Qwen3-30B-A3B", 1.21, Better::Higher),
                row("rollart-production", "003 Fig. 15(c)", "end-to-end speed-up by tuning in production", 1.66, Better::Higher),
            ],
            HARDWARE,
        ),
        Figure::beyond(
            [row("rollart-reset-success", "003 8", "resets that succeed with the image caches", 0.9999, Better::Higher)],
            "depends on hardware: registries, networks and disks of a cluster",
        ),
    ]);
    figures
}

fn row(
    name: &'static str,
    source: &'static str,
    quantity: &'static str,
    paper: f64,
    better: Better,
) -> Row {
    Row { name, source, quantity, paper, better }
}
