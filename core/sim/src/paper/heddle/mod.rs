//! Heddle (000): where, when and on how many GPUs trajectories generate.

mod model;
mod planner;
mod rollout;
mod shape;
mod systems;

use super::figure::{Figure, equal, higher, lower};

pub(super) fn figures() -> Vec<Figure> {
    let mut figures = vec![planner::figure()];
    figures.extend(systems::figures());
    figures.extend([
        Figure::beyond(
            [
                equal("heddle-tail-over-median", "000 Fig. 4", "longest completion over the median", 4.0),
            ],
            "a property of the text's own runs, given by a figure that is lost: lengths are drawn, not generated",
        ),
        Figure::beyond(
            [higher("heddle-prediction-recall", "000 Fig. 13", "recall of long trajectories (the values are lost)", 1.0)],
            "depends on a trained model's behaviour: a predictor fine-tuned on real contexts",
        ),
        Figure::beyond(
            [
                lower("heddle-prediction-time", "000 Table 1", "seconds to predict, Qwen3-14B, coding", 0.099),
                lower("heddle-migration-time", "000 Table 1", "seconds to migrate a KV cache, Qwen3-14B, coding", 0.27),
            ],
            "depends on hardware: a model that runs on a GPU, and RDMA between GPUs",
        ),
    ]);
    figures
}
