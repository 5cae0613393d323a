//! Trajectories of the text's agents.

use crate::paper::random::Random;

/// What the text leaves open, for all that runs on [`super::rollout`].
pub(super) const ASSUMED: &[&str] = &[
    "100 trajectories for each worker of the baseline on 64 GPUs (000 7.1), of groups of 16",
    "tokens of a prompt's group are log-normal with mean 5,000 and cv 0.7, and within a group with cv 0.7, at most 40k (000 7, Fig. 2, Fig. 5: the values are lost)",
    "a step takes some 1,000 tokens, and its tool 0.41 s, log-normal, cv 2 (000 Table 1, Qwen3-14B, coding)",
    "a token's time is a roofline: weights (003 Table 3) and the contexts of 8,000 tokens of all that run, at 3.35 TB/s (003 Table 2); memory bounds what runs at once",
    "lengths are predicted with an error of cv 0.3, and predictions do not improve; nothing migrates",
];

/// Most tokens (000, section 7).
const CAP: f64 = 40_000.0;
/// Samples of a prompt (000, section 7).
const GROUP: usize = 16;
/// Mean seconds of a tool (000, Table 1).
const TOOL: f64 = 0.41;
/// Tokens of a step.
const STEP: f64 = 1_000.0;

/// Steps, one after another.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Tokens of each, and seconds of the tool after it.
    pub(super) steps: Vec<(f64, f64)>,
    /// Tokens that it is thought to have.
    pub(super) predicted: f64,
}

/// Coefficient of variation of what is predicted, over what comes.
pub(super) const ERROR: f64 = 0.3;

/// So many trajectories, whose lengths are predicted with an error.
pub(super) fn draw(random: &mut Random, count: usize, error: f64) -> Vec<Shape> {
    let mut shapes = Vec::with_capacity(count);
    while shapes.len() < count {
        let mean = random.log_normal(5_000.0, 0.7);
        for _ in 0..GROUP.min(count - shapes.len()) {
            let tokens = random.log_normal(mean, 0.7).clamp(16.0, CAP);
            let steps = (tokens / STEP).ceil().max(1.0) as usize;
            let each = tokens / steps as f64;
            let step = |_| (each, random.log_normal(TOOL, 2.0));
            let steps = (0..steps).map(step).collect();
            shapes.push(Shape { steps, predicted: tokens * random.log_normal(1.0, error) });
        }
    }
    shapes
}
