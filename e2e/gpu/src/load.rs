//! What is asked of whom, the same in every run.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// Different requests to a service.
const QUESTIONS: usize = 4;

/// Actions in the order in which they are submitted.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Service and request of each.
    pub(crate) actions: Vec<(usize, usize)>,
    /// Texts that one action scores.
    pub(crate) candidates: usize,
}

impl Load {
    pub(crate) fn new(seed: u64, services: usize, actions: usize, candidates: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let actions = (0..actions)
            .map(|_| (random.random_range(0..services), random.random_range(0..QUESTIONS)))
            .collect();
        Self { actions, candidates }
    }

    /// The same, asked of the first services alone.
    pub(crate) fn of_first(&self, services: usize) -> Self {
        let actions = self.actions.iter().map(|(of, question)| (of % services.max(1), *question));
        Self { actions: actions.collect(), candidates: self.candidates }
    }

    /// Only the first of them.
    pub(crate) fn first(&self, actions: usize) -> Self {
        let actions = self.actions.iter().take(actions).copied().collect();
        Self { actions, candidates: self.candidates }
    }

    /// The body of a request.
    pub(crate) fn body(question: usize, candidates: usize) -> String {
        let texts: Vec<String> = (0..candidates)
            .map(|n| format!(" answer {n}: {}", "because it is so, ".repeat(8)))
            .collect();
        let question = format!("question {question}: {}", "why is it so? ".repeat(8));
        serde_json::json!({"text_1": question, "text_2": texts}).to_string()
    }
}
