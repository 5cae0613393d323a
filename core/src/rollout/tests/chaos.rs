//! Random histories: no token is stamped with a version that did not make it, nothing is
//! given twice, and in the end nothing is left behind.

use std::time::Duration;

use proptest::prelude::*;

use super::world::{WORKERS, World, broken, config, worker};
use crate::buffer::OnStale;
use crate::rollout::Event;
use crate::router::Outcome;
use crate::version::Version;
use crate::weights::{self, InFlight, Strategy as Order, Transfer};

/// One thing that happens; numbers choose among what is there.
#[derive(Debug, Clone)]
enum Happens {
    Open { evaluation: bool },
    Ask(usize),
    Generate { of: usize, tokens: usize },
    Done(usize),
    Fail(usize),
    Stop,
    ClientGone(usize),
    Complete { of: usize, scored: bool },
    AbortTrajectory { of: usize, infrastructure: bool },
    AbortGroup(usize),
    Score { of: usize, fails: bool },
    Write { of: usize, fails: bool },
    Take,
    Ack,
    Begin(u8),
    Commit,
    AbortUpdate,
    Answer { of: usize, fails: bool },
    Restart(usize),
    Leave(usize),
    Join(usize),
    Drain { of: usize, stays: bool },
    Prefilled(usize),
    Later(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::*;
    prop_oneof![
        4 => prop::bool::weighted(0.2).prop_map(|evaluation| Open { evaluation }),
        8 => any::<usize>().prop_map(Ask),
        8 => (any::<usize>(), 1..4_usize).prop_map(|(of, tokens)| Generate { of, tokens }),
        6 => any::<usize>().prop_map(Done),
        1 => any::<usize>().prop_map(Fail),
        3 => Just(Stop),
        1 => any::<usize>().prop_map(ClientGone),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(of, scored)| Complete { of, scored }),
        1 => (any::<usize>(), any::<bool>())
            .prop_map(|(of, infrastructure)| AbortTrajectory { of, infrastructure }),
        1 => any::<usize>().prop_map(AbortGroup),
        4 => (any::<usize>(), prop::bool::weighted(0.2))
            .prop_map(|(of, fails)| Score { of, fails }),
        5 => (any::<usize>(), prop::bool::weighted(0.05))
            .prop_map(|(of, fails)| Write { of, fails }),
        3 => Just(Take),
        2 => Just(Ack),
        2 => (0..3_u8).prop_map(Begin),
        2 => Just(Commit),
        1 => Just(AbortUpdate),
        8 => (any::<usize>(), prop::bool::weighted(0.05))
            .prop_map(|(of, fails)| Answer { of, fails }),
        1 => any::<usize>().prop_map(Restart),
        1 => any::<usize>().prop_map(Leave),
        1 => any::<usize>().prop_map(Join),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(of, stays)| Drain { of, stays }),
        4 => any::<usize>().prop_map(Prefilled),
        2 => (0..90_u64).prop_map(Later),
    ]
}

fn pick<T: Clone>(from: &[T], number: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[number % from.len()].clone())
}

fn happen(world: &mut World, happens: &Happens) {
    match *happens {
        Happens::Open { evaluation } => world.open(evaluation),
        Happens::Ask(of) => {
            if let Some(trajectory) = pick(&world.running(), of) {
                world.ask(trajectory);
            }
        }
        Happens::Complete { of, scored } => {
            if let Some(trajectory) = pick(&world.running(), of) {
                let reward = scored.then_some(0.5);
                // Refused while it has generated nothing, or a turn is open.
                let _ = world.tell(Event::Complete { trajectory, reward });
            }
        }
        Happens::AbortTrajectory { of, infrastructure } => {
            if let Some(trajectory) = pick(&world.running(), of) {
                let mut fault = broken();
                if !infrastructure {
                    fault.kind = crate::fault::FaultKind::Cancelled;
                }
                world.tell(Event::AbortTrajectory { trajectory, fault }).unwrap();
            }
        }
        Happens::AbortGroup(of) => {
            let groups = world.core.trajectories().groups().map(|group| group.id().clone());
            let groups: Vec<_> = groups.collect();
            if let Some(group) = pick(&groups, of) {
                world.tell(Event::AbortGroup(group)).unwrap();
            }
        }
        Happens::Score { of, fails } => {
            let calls: Vec<_> = world.scoring.keys().copied().collect();
            if let Some(call) = pick(&calls, of) {
                world.score(call, if fails { Err(broken()) } else { Ok(1.0) });
            }
        }
        Happens::Write { of, fails } => {
            if !world.writes.is_empty() {
                let index = of % world.writes.len();
                world.write(index, if fails { Err(broken()) } else { Ok(()) });
            }
        }
        Happens::Take => world.wait_for_batch(),
        Happens::Ack => {
            if let Some(batch) = world.batch.as_ref().map(|batch| batch.id) {
                world.tell(Event::Ack(batch)).unwrap();
            }
        }
        Happens::Later(seconds) => world.later(Duration::from_secs(seconds)),
        _ => {
            generation(world, happens);
            updating(world, happens);
        }
    }
}

/// What happens at engines to requests.
fn generation(world: &mut World, happens: &Happens) {
    let in_flight: Vec<_> = world
        .engines
        .iter()
        .flat_map(|(id, engine)| engine.running.keys().map(|request| (id.clone(), *request)))
        .collect();
    match *happens {
        Happens::Generate { of, tokens } => {
            if let Some((worker, request)) = pick(&in_flight, of) {
                world.generate(&worker, request, tokens);
            }
        }
        Happens::Done(of) => {
            if let Some((worker, request)) = pick(&in_flight, of) {
                world.generate(&worker, request, 1);
                world.end(&worker, request, World::done());
            }
        }
        Happens::Fail(of) => {
            if let Some((worker, request)) = pick(&in_flight, of) {
                let (fault, resumable) = (broken(), of % 2 == 0);
                world.end(&worker, request, Outcome::Failed { fault, resumable, prefill: false });
            }
        }
        Happens::Prefilled(of) => {
            let prefilling = world.engines.values().flat_map(|engine| engine.prefilling.keys());
            if let Some(request) = pick(&prefilling.copied().collect::<Vec<_>>(), of) {
                world.prefilled(request);
            }
        }
        Happens::Stop => {
            for (worker, request) in in_flight {
                if world.engines[&worker].running.get(&request) == Some(&true) {
                    world.end(&worker, request, Outcome::Back);
                }
            }
        }
        Happens::ClientGone(of) => {
            let clients: Vec<_> = world.clients.keys().copied().collect();
            if let Some(request) = pick(&clients, of) {
                world.clients.remove(&request);
                world.tell(Event::Withdrawn(request)).unwrap();
            }
        }
        _ => {}
    }
}

/// What happens to workers and their weights.
fn updating(world: &mut World, happens: &Happens) {
    match *happens {
        Happens::Begin(kind) => {
            let transfer = [Transfer::Disk, Transfer::Store, Transfer::External][usize::from(kind)];
            let version = Version(world.version + 1);
            let begin = weights::Event::Begin { version, transfer, deadline: None };
            if world.tell(Event::Weights(begin)).is_ok() {
                world.version += 1;
            }
        }
        Happens::Commit => {
            let version = Version(world.version);
            let commit = weights::Event::Commit { version, path: Some("/w".into()) };
            // Refused when none is begun, or it is not suspended yet.
            let _ = world.tell(Event::Weights(commit));
        }
        Happens::AbortUpdate => {
            let abort = weights::Event::Abort { version: Version(world.version) };
            let _ = world.tell(Event::Weights(abort));
        }
        Happens::Answer { of, fails } if !world.calls.is_empty() => {
            world.answer(of % world.calls.len(), fails);
        }
        Happens::Restart(of) => {
            let holds = Version((of / WORKERS) as u64 % (world.version + 1));
            world.restart(&worker(of % WORKERS), holds);
        }
        Happens::Leave(of) => world.leave(&worker(of % WORKERS)),
        Happens::Join(of) => world.join(of % WORKERS),
        Happens::Drain { of, stays } => {
            let worker = worker(of % WORKERS);
            if world.engines.contains_key(&worker) {
                let drain = if stays { Event::WorkerStays } else { Event::WorkerDrains };
                world.tell(drain(worker)).unwrap();
            }
        }
        _ => {}
    }
}

fn settings() -> impl Strategy<Value = (Order, InFlight, OnStale)> {
    (
        prop_oneof![Just(Order::Pause), Just(Order::Rolling { max_unavailable: 1 })],
        prop_oneof![Just(InFlight::Keep), Just(InFlight::Recompute), Just(InFlight::Abort)],
        prop_oneof![Just(OnStale::Abort), Just(OnStale::Continue)],
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_stamped_wrong_given_twice_or_left_behind(
        (strategy, in_flight, on_stale) in settings(),
        history in prop::collection::vec(happens(), 1..300),
        split in any::<bool>(),
    ) {
        let mut settings = config(strategy, in_flight, on_stale);
        settings.router.alone = split;
        let mut world = World::new(settings);
        for event in history {
            happen(&mut world, &event);
        }
        world.finish();
    }
}
