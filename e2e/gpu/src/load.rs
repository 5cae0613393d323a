//! What is asked of whom, the same in every run.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::settings::Args;

/// Different requests to a service.
const QUESTIONS: usize = 4;

/// Actions in the order in which they are submitted.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Service and request of each action, for each run. Services are drawn with the same
    /// probability.
    pub(crate) runs: Vec<Vec<(usize, usize)>>,
    /// Texts that one action scores.
    pub(crate) candidates: usize,
}

impl Load {
    pub(crate) fn new(args: &Args, candidates: usize) -> Self {
        let mut random = StdRng::seed_from_u64(args.seed);
        let mut action =
            || (random.random_range(0..args.services), random.random_range(0..QUESTIONS));
        let mut run = || (0..args.actions).map(|_| action()).collect();
        Self { runs: args.at_once.iter().map(|_| run()).collect(), candidates }
    }

    /// The same, asked of the first services alone.
    pub(crate) fn of_first(&self, services: usize) -> Self {
        let mut load = self.clone();
        load.actions_mut().for_each(|(service, _)| *service %= services.max(1));
        load
    }

    /// All actions.
    pub(crate) fn actions(&self) -> impl Iterator<Item = &(usize, usize)> {
        self.runs.iter().flatten()
    }

    fn actions_mut(&mut self) -> impl Iterator<Item = &mut (usize, usize)> {
        self.runs.iter_mut().flatten()
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
