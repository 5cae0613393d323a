//! RollArt (003): trajectories that run apart, and training beside them.

mod asynchrony;
mod environments;

use super::figure::{Figure, Row, higher, lower};

const HARDWARE: &str = "depends on hardware: it was measured on H800 and H20 GPUs and their links";
const MODEL: &str = "depends on a trained model's behaviour: a score that training has to reach";

const ON_HARDWARE: [Row; 14] = [
    higher(
        "rollart-throughput-sync",
        "003 Fig. 10(b)",
        "most throughput over Sync, affinity included",
        4.58,
    ),
    higher(
        "rollart-step-areal",
        "003 Fig. 10, 7.2",
        "step time of AReaL over RollArt, mostly by affinity",
        1.31,
    ),
    higher(
        "rollart-scaling",
        "003 Fig. 10(c)",
        "most throughput over the baselines, 64-128 GPUs",
        2.08,
    ),
    higher(
        "rollart-reward-utilization",
        "003 Fig. 12, R3",
        "utilization of reward GPUs, serverless",
        0.88,
    ),
    lower(
        "rollart-affinity-prefill",
        "003 Fig. 4(a)",
        "rollout time on H800 over H20, FrozenLake",
        0.53,
    ),
    lower(
        "rollart-affinity-decode",
        "003 Fig. 4(b)",
        "rollout time on H20 over H800, GEM-math",
        0.49,
    ),
    higher(
        "rollart-affinity-h800",
        "003 Fig. 11(a)",
        "step time of H800 alone over the mixture",
        1.37,
    ),
    higher(
        "rollart-affinity-h20",
        "003 Fig. 11(a)",
        "step time of H20 alone over the mixture",
        1.68,
    ),
    higher("rollart-rdma", "003 Table 3", "TCP over RDMA, Qwen3-32B", 29.649 / 9.442),
    higher(
        "rollart-weight-transfer",
        "003 Fig. 14(a)",
        "step time with synchronous over asynchronous transfer",
        1.16,
    ),
    lower("rollart-exposed-pull", "003 Table 4", "seconds of exposed pull, Qwen3-32B", 9.6),
    higher(
        "rollart-pd-dense",
        "003 Table 5",
        "colocated over disaggregated, 2P2D, Qwen3-32B",
        1.05,
    ),
    higher(
        "rollart-pd-moe",
        "003 Table 5",
        "colocated over disaggregated, 2P2D, Qwen3-30B-A3B",
        1.21,
    ),
    higher(
        "rollart-production",
        "003 Fig. 15(c)",
        "end-to-end speed-up by tuning in production",
        1.66,
    ),
];

pub(super) fn figures() -> Vec<Figure> {
    let mut figures =
        vec![environments::batched(), environments::redundant(), environments::reward_gpus()];
    figures.extend([asynchrony::systems(), asynchrony::bounds()]);
    figures.extend([
        Figure::beyond(
            [higher(
                "rollart-time-to-score",
                "003 Fig. 10(a)",
                "time to a score of 0.85, over Sync+",
                2.05,
            )],
            MODEL,
        ),
        Figure::beyond(ON_HARDWARE, HARDWARE),
        Figure::beyond(
            [higher(
                "rollart-reset-success",
                "003 8",
                "resets that succeed with the image caches",
                0.9999,
            )],
            "depends on hardware: registries, networks and disks of a cluster",
        ),
    ]);
    figures
}
