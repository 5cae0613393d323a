//! DARTS (002): redundancy within a prompt.

use rollwright_core::arrange::{Choice, InvalidTask, Task, marginal_gains};

use super::figure::{Figure, Row, equal, higher};

const MODEL: &str =
    "depends on a trained model's behaviour: lengths change because the model learns to be concise";

const LEARNED: [Row; 10] = [
    higher("darts-throughput-verl", "002 Fig. 8", "most throughput over VeRL", 1.77),
    higher(
        "darts-throughput-tail-batching",
        "002 Fig. 8",
        "most throughput over Tail Batching",
        1.43,
    ),
    higher("darts-ablation-sampling", "002 Table 3", "speed-up with dual-end sampling", 1.40),
    higher("darts-ablation-allocation", "002 Table 3", "speed-up with adaptive allocation", 1.63),
    higher("darts-ratio", "002 Table 4", "speed-up at L:K = 1:7, Qwen2.5-Math-7B", 1.45),
    higher("darts-scale", "002 Table 5", "speed-up on 64 GPUs, Qwen2.5-Math-7B", 1.55),
    higher("darts-multimodal", "002 5.3", "speed-up on Geo3K, Qwen2.5-VL-3B", 1.20),
    higher("darts-coding", "002 5.3", "speed-up on Eurus-2, Phi-3-mini", 1.15),
    equal("darts-budget", "002 Appendix B", "the best budget over NM", 1.5),
    higher("darts-bbh", "002 Table 2", "BIG-Bench Hard, Qwen2.5-32B", 84.7),
];

pub(super) fn figures() -> Vec<Figure> {
    vec![
        Figure::simulated(
            [equal(
                "darts-pruned-share",
                "002 4.3.1",
                "part of the prompts whose budget is at its upper bound, which are pruned",
                0.05,
            )],
            &[
                "256 prompts, M = 8, M_low = M, M_up = 2M, a budget of 1.5 NM (002 Appendix B)",
                "standard deviations of prompts' lengths are log-normal, cv 0.3-1 (002 Fig. 5: the values are lost)",
                "Algorithm 1 by the core's greedy of marginal gains",
            ],
            |trial| {
                let random = &mut trial.random;
                let cv = random.log_uniform(0.3, 1.0);
                let deviations: Vec<f64> = (0..256).map(|_| random.log_normal(1.0, cv)).collect();
                Ok([saturated(&deviations, 8)])
            },
        ),
        Figure::beyond(LEARNED, MODEL),
        Figure::beyond(
            [higher(
                "darts-ablation-streaming",
                "002 Table 3",
                "speed-up with token-level streaming",
                1.09,
            )],
            "depends on hardware: how long training's forward pass takes beside generation",
        ),
    ]
}

/// The part of the prompts that Algorithm 1 gives 2M of a budget of 1.5 NM.
fn saturated(deviations: &[f64], group: u64) -> f64 {
    let least = deviations.iter().copied().fold(f64::INFINITY, f64::min);
    let most = deviations.iter().copied().fold(0.0, f64::max);
    let task = |deviation: &f64| -> Result<Task, InvalidTask> {
        let weight = (deviation - least) / (most - least);
        let choice = |units| Choice { units, duration: weight / units as f64 };
        Task::new((group..=2 * group).map(choice))
    };
    let Ok(tasks) = deviations.iter().map(task).collect::<Result<Vec<_>, _>>() else { return 0.0 };
    let budget = deviations.len() as u64 * group * 3 / 2;
    let units = marginal_gains(&tasks, budget).map(|plan| plan.units).unwrap_or_default();
    let saturated = units.iter().filter(|&&units| units == 2 * group).count();
    saturated as f64 / deviations.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_goes_to_the_prompts_that_vary() {
        // Two prompts of no weight and two of full weight: 8 units each for the latter
        // are all that 1.5 NM leaves beyond M.
        assert!((saturated(&[1.0, 1.0, 5.0, 5.0], 8) - 0.5).abs() < 1e-12);
    }
}
