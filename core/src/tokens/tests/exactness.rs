//! Whatever a client, a template and the engines do: each token that is trained on stands
//! in exactly the context in which it was generated.

use proptest::prelude::*;

use super::log;
use crate::tokens::{Finish, LengthCap, TokenLog};
use crate::version::Version;

#[derive(Debug, Clone)]
enum Step {
    /// The history and further tokens.
    Extend(Vec<u32>),
    /// The history without its last `cut` tokens, and others.
    Rewrite {
        cut: usize,
        tail: Vec<u32>,
    },
    /// The prompt of the last turn again.
    Repeat,
    Append(Vec<u32>),
    NewVersion,
    End(Finish),
    Restart,
    Abandon,
    /// To disk and back.
    Reload,
}

const FINISHES: [Finish; 4] = [Finish::Stop, Finish::ToolCalls, Finish::Length, Finish::Abort];

fn tokens(most: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..3, 0..most)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => tokens(3).prop_map(Step::Extend),
        3 => (0usize..4, tokens(3)).prop_map(|(cut, tail)| Step::Rewrite { cut, tail }),
        1 => Just(Step::Repeat),
        6 => tokens(4).prop_map(Step::Append),
        2 => Just(Step::NewVersion),
        5 => prop::sample::select(&FINISHES[..]).prop_map(Step::End),
        1 => Just(Step::Restart),
        1 => Just(Step::Abandon),
        1 => Just(Step::Reload),
    ]
}

/// A token as the engine generated it.
struct Generated {
    context: Vec<u32>,
    id: u32,
    logprob: f32,
    version: Version,
}

struct World {
    log: TokenLog,
    /// All that was ever generated.
    truth: Vec<Generated>,
    version: Version,
    /// Of the last turn.
    prompt: Vec<u32>,
    /// What that was before the open turn.
    before: Vec<u32>,
    finish: Option<Finish>,
}

impl World {
    fn take(&mut self, step: Step) {
        match step {
            Step::Extend(tail) => {
                let prompt = [self.log.context(), &tail].concat();
                let refused = self.log.in_turn() || prompt.is_empty();
                assert_eq!(self.begin(prompt), !refused);
            }
            Step::Rewrite { cut, tail } => {
                let kept = self.log.len().saturating_sub(cut);
                self.begin([&self.log.context()[..kept], &tail].concat());
            }
            Step::Repeat => {
                let refused = self.log.in_turn() || self.prompt.is_empty();
                assert_eq!(self.begin(self.prompt.clone()), !refused);
            }
            Step::Append(ids) => self.append(&ids),
            Step::NewVersion => self.version.0 += 1,
            Step::End(finish) => {
                if self.log.end_turn(finish).is_ok() {
                    self.finish = Some(finish);
                }
            }
            Step::Restart => {
                if self.log.restart_turn().is_ok() {
                    assert_eq!(self.log.context(), self.prompt);
                }
            }
            Step::Abandon => {
                if self.log.abandon_turn().is_ok() {
                    self.prompt = std::mem::take(&mut self.before);
                }
            }
            Step::Reload if !self.log.in_turn() => {
                let bytes = postcard::to_stdvec(&self.log.record()).unwrap();
                let cap = LengthCap { tokens: 1000, soft_penalty_tokens: None };
                let back = TokenLog::from_record(postcard::from_bytes(&bytes).unwrap(), cap);
                assert_eq!(back.as_ref(), Ok(&self.log));
            }
            Step::Reload => {}
        }
        self.check();
    }

    /// What the engine is sent is in the log, or nothing of it is.
    fn begin(&mut self, prompt: Vec<u32>) -> bool {
        let before = self.log.clone();
        if self.log.begin_turn(&prompt).is_err() {
            assert_eq!(self.log, before);
            return false;
        }
        assert_eq!(self.log.context(), prompt);
        let lost = before.generated() - self.log.generated();
        let repeated = prompt == self.prompt;
        let ended = matches!(self.finish, Some(Finish::Stop | Finish::ToolCalls));
        assert!(lost == 0 || repeated || (lost == 1 && ended), "{lost} tokens lost");
        let earlier = std::mem::replace(&mut self.prompt, prompt);
        self.before = if repeated && lost > 0 { Vec::new() } else { earlier };
        true
    }

    fn append(&mut self, ids: &[u32]) {
        let mut context = self.log.context().to_vec();
        let logprobs: Vec<f32> =
            ids.iter().enumerate().map(|(i, _)| -((self.truth.len() + i) as f32)).collect();
        if self.log.append(ids, &logprobs, self.version).is_err() {
            return;
        }
        for (&id, logprob) in ids.iter().zip(logprobs) {
            let version = self.version;
            self.truth.push(Generated { context: context.clone(), id, logprob, version });
            context.push(id);
        }
    }

    fn check(&self) {
        let ids = self.log.context();
        let mask: Vec<_> = self.log.loss_mask().collect();
        let logprobs: Vec<_> = self.log.logprobs().collect();
        assert_eq!((mask.len(), logprobs.len()), (ids.len(), ids.len()));
        let generated = mask.iter().map(|mask| usize::from(*mask)).sum::<usize>();
        assert_eq!(generated, self.log.generated());
        let mut covered = 0;
        for range in self.log.versions() {
            for at in range.start..range.end {
                // Log-probabilities are unique here, so they name the token.
                let truth = logprobs[at].map(|logprob| &self.truth[-logprob as usize]).unwrap();
                assert_eq!(mask[at], 1);
                assert_eq!(truth.context, ids[..at]);
                assert_eq!((truth.id, truth.version), (ids[at], range.version));
                assert_eq!(Some(truth.logprob), logprobs[at]);
                covered += 1;
            }
        }
        assert_eq!(covered, generated);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn trained_tokens_stand_in_their_context(steps in prop::collection::vec(step(), 0..40)) {
        let mut world = World {
            log: log(),
            truth: Vec::new(),
            version: Version(1),
            prompt: Vec::new(),
            before: Vec::new(),
            finish: None,
        };
        for step in steps {
            world.take(step);
        }
    }
}
