//! The scheduler against the plain policy: whatever the capacity and the calls between
//! steps, a sequence gets the tokens that it would get alone.

use proptest::prelude::*;
use tokio::time::Instant;

use super::{Engine, Finish, Generation, Request};
use crate::config::{Capacity, Config};
use crate::policy::{ContextHash, Policy};
use crate::tokenizer::{MESSAGE_END, Token};

#[derive(Debug, Clone)]
enum Act {
    Submit { prompt: Vec<Token>, max_tokens: usize, rank: i64 },
    Step,
    Keep { clear: bool },
    InPlace,
    Resume,
    Flush,
    Close(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (prop::collection::vec(97u32..99, 1..12), 1usize..20, -2i64..3)
            .prop_map(|(prompt, max_tokens, rank)| Act::Submit { prompt, max_tokens, rank }),
        8 => Just(Act::Step),
        1 => any::<bool>().prop_map(|clear| Act::Keep { clear }),
        1 => Just(Act::InPlace),
        2 => Just(Act::Resume),
        1 => Just(Act::Flush),
        1 => (0usize..8).prop_map(Act::Close),
    ]
}

/// What the policy alone says.
fn alone(config: &Config, prompt: &[Token], max_tokens: usize) -> (Vec<Token>, Finish) {
    let policy = Policy { seed: config.seed, mean_tokens: config.mean_tokens };
    let mut hash = ContextHash::of(prompt);
    let mut tokens = Vec::new();
    loop {
        let token = policy.next(hash, 0, config.version).token;
        hash.push(token);
        tokens.push(token);
        if token == MESSAGE_END {
            return (tokens, Finish::End(token));
        }
        if tokens.len() == max_tokens || prompt.len() + tokens.len() == config.capacity.longest() {
            return (tokens, Finish::Length);
        }
    }
}

fn check(engine: &Engine) -> Result<(), TestCaseError> {
    let state = engine.lock();
    let capacity = engine.config.capacity;
    prop_assert!(state.running.len() <= capacity.slots);
    prop_assert!(capacity.kv_tokens == 0 || state.used_tokens() <= capacity.kv_tokens);
    for sequence in &state.waiting {
        prop_assert_eq!(sequence.kv_version, None, "what waits holds no KV");
    }
    Ok(())
}

fn step(engine: &Engine) -> Result<(), TestCaseError> {
    engine.lock().step(&engine.config, Instant::now());
    check(engine)
}

proptest! {
    #[test]
    fn every_sequence_gets_the_tokens_of_the_plain_policy(
        acts in prop::collection::vec(act(), 1..80),
        slots in 1usize..4,
        kv_tokens in prop_oneof![Just(0usize), 24usize..80],
        priority_scheduling: bool,
    ) {
        let capacity = Capacity { slots, kv_tokens, block: 2, ..Capacity::default() };
        let config = Config { capacity, priority_scheduling, mean_tokens: 15, ..Config::default() };
        let engine = Engine::new(config.clone(), None);
        let mut open: Vec<Option<(Generation, Vec<Token>, usize)>> = Vec::new();
        for act in acts {
            match act {
                Act::Submit { prompt, max_tokens, rank } => {
                    let request =
                        Request { prompt: prompt.clone(), max_tokens, rank, ..Request::default() };
                    let generation = engine.submit(request);
                    prop_assert!(generation.is_ok());
                    open.extend(generation.ok().map(|g| Some((g, prompt, max_tokens))));
                }
                Act::Step => step(&engine)?,
                Act::Keep { clear } => engine.pause_keep(clear),
                Act::InPlace => engine.pause_in_place(),
                Act::Resume => prop_assert!(engine.resume().is_ok()),
                Act::Flush => drop(engine.flush()),
                Act::Close(index) => {
                    if let Some(entry) = open.get_mut(index) {
                        *entry = None;
                    }
                }
            }
            check(&engine)?;
        }
        prop_assert!(engine.resume().is_ok());
        // Each step makes a token for at least one sequence, or admits or preempts first.
        for _ in 0..20_000 {
            if engine.lock().idle() {
                break;
            }
            step(&engine)?;
        }
        prop_assert!(engine.lock().idle(), "all have ended");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (generation, prompt, max_tokens) in open.into_iter().flatten() {
            let (tokens, finish, _) = runtime.block_on(generation.all());
            let tokens: Vec<_> = tokens.iter().map(|generated| generated.token).collect();
            prop_assert_eq!((tokens, finish), alone(&config, &prompt, max_tokens));
        }
        prop_assert_eq!(engine.lock().used_tokens(), 0);
    }
}
