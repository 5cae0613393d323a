//! Whatever services and callers do: each trajectory is scored once, with what a service
//! has said, and in the end nothing is held.

use proptest::prelude::*;

use super::world::{World, busy, fault, service, teacher, trajectory};
use crate::fault::{Fault, FaultKind};

#[derive(Debug, Clone)]
enum Step {
    Score(usize, &'static str, Option<f64>, bool),
    Cancel(usize),
    Answer(usize, Answer),
    Pass(f64),
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Good,
    NoNumber,
    Broken,
    Late,
    Busy(u64),
    Wrong,
}

impl Answer {
    fn outcome(self, reward: f64) -> Result<f64, Fault> {
        match self {
            Self::Good => Ok(reward),
            Self::NoNumber => Ok(f64::NAN),
            Self::Broken => Err(fault(FaultKind::Infrastructure)),
            Self::Late => Err(fault(FaultKind::Timeout)),
            Self::Busy(secs) => Err(busy(secs)),
            Self::Wrong => Err(fault(FaultKind::Action)),
        }
    }
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        5 => Just(Answer::Good),
        1 => Just(Answer::NoNumber),
        5 => Just(Answer::Broken),
        1 => Just(Answer::Late),
        2 => prop_oneof![Just(0u64), 1u64..300].prop_map(Answer::Busy),
        1 => Just(Answer::Wrong),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (
            0usize..12,
            prop::sample::select(&["math", "swe", "web"][..]),
            prop::option::weighted(0.3, 0.0f64..1.0),
            any::<bool>(),
        )
            .prop_map(|(n, on, reward, taught)| Step::Score(n, on, reward, taught)),
        2 => (0usize..12).prop_map(Step::Cancel),
        10 => (any::<usize>(), answer()).prop_map(|(pick, answer)| Step::Answer(pick, answer)),
        4 => (0.1f64..20.0).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn each_is_scored_once(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::new(vec![
            service("a", &["math"]),
            teacher("t", &["math"]),
            service("b", &["math", "swe"]),
            teacher("u", &[]),
        ]);
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Score(n, on, reward, taught) => world.ask(n, on, reward, taught),
                Step::Cancel(n) => world.cancel(n),
                Step::Answer(pick, answer) => world.answer(pick, answer.outcome(n as f64)),
                Step::Pass(secs) => world.pass(secs),
            }
        }
        // The services are well again, and answer all.
        for _ in 0..2000 {
            if world.open.is_empty() && world.calls.is_empty() {
                break;
            }
            while !world.calls.is_empty() {
                world.answer(0, Ok(1.0));
            }
            world.pass(1.0);
        }
        prop_assert!(world.open.is_empty() && world.calls.is_empty(), "{:?}", world.rewards);
        world.pass(100_000.0);
        prop_assert_eq!(world.rewards.next_deadline(), None);
        for (_, result) in &world.scored {
            // What is no number was no number of a service either.
            prop_assert!(result.as_ref().is_ok_and(|reward| *reward >= 0.0) || result.is_err());
        }
    }

    #[test]
    fn a_service_that_never_works_ends_in_faults(
        answers in prop::collection::vec((answer(), 0.1f64..5.0), 1..20),
    ) {
        let mut world = World::new(vec![service("a", &[])]);
        (0..5).for_each(|n| world.score(n, "math"));
        for (answer, secs) in answers.iter().cycle().take(2000) {
            let broken = match answer {
                Answer::Good | Answer::NoNumber | Answer::Wrong => Answer::Broken,
                broken => *broken,
            };
            world.answer(0, broken.outcome(0.0));
            world.pass(*secs);
        }
        for n in 0..5 {
            let (_, result) = world.scored.iter().find(|(id, _)| *id == trajectory(n)).unwrap();
            let kind = result.as_ref().unwrap_err().kind;
            prop_assert!(matches!(kind, FaultKind::Infrastructure | FaultKind::Timeout));
        }
    }
}
