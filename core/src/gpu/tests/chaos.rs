//! Whatever devices, engines, agents and callers do: nothing accepted is lost, nothing runs
//! twice, no GPU is booked twice, every action ends, and once all is well all are served; and
//! what [`super::checks`] has.

use proptest::prelude::*;

use super::reports::Outcome;
use super::world::{ROAMS, World, action, kind, node, secs, services};
use crate::gpu::{Event, Kind};

#[derive(Debug, Clone, Copy)]
enum Step {
    Submit(Kind, u64),
    Again(usize),
    Cancel(usize),
    Report(usize, Outcome),
    Finish(usize, bool),
    Die(usize),
    Gpu(usize, u32, bool),
    Leave(usize),
    Join(usize, bool),
    Drain(usize, bool),
    NewPool,
    Pass(u64),
}

fn kinds() -> impl Strategy<Value = Kind> {
    let one = [kind(0, 1), kind(0, 1), kind(1, 1), kind(3, 1), kind(4, 1), kind(4, 1)];
    let more = [kind(0, 2), kind(2, 4), kind(4, 2), kind(5, 1), kind(5, 1), kind(5, 2)];
    prop::sample::select([&one[..], &more[..]].concat())
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        12 => Just(Outcome::Good),
        1 => Just(Outcome::Lies),
        1 => Just(Outcome::MemoryStays),
        1 => Just(Outcome::Mute),
        1 => Just(Outcome::Refused),
        1 => Just(Outcome::TimedOut),
        1 => Just(Outcome::Dies),
        1 => Just(Outcome::Silent),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (kinds(), 1u64..200).prop_map(|(kind, patience)| Step::Submit(kind, patience)),
        1 => any::<usize>().prop_map(Step::Again),
        2 => any::<usize>().prop_map(Step::Cancel),
        16 => (any::<usize>(), outcome()).prop_map(|(pick, how)| Step::Report(pick, how)),
        8 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(n, well)| Step::Finish(n, well)),
        1 => any::<usize>().prop_map(Step::Die),
        1 => (0usize..2, 0u32..8, any::<bool>()).prop_map(|(n, gpu, lost)| Step::Gpu(n, gpu, lost)),
        1 => (0usize..2).prop_map(Step::Leave),
        2 => (0usize..2, any::<bool>()).prop_map(|(n, restarted)| Step::Join(n, restarted)),
        1 => (0usize..2, any::<bool>()).prop_map(|(n, on)| Step::Drain(n, on)),
        1 => Just(Step::NewPool),
        4 => (1u64..20).prop_map(Step::Pass),
    ]
}

fn take(world: &mut World, step: Step, submitted: &mut usize, sizes: &[u32]) {
    let has = |n: usize| n < sizes.len();
    match step {
        Step::Submit(kind, patience) => {
            world.submit(*submitted, kind, patience);
            *submitted += 1;
        }
        Step::Again(pick) => {
            let live: Vec<_> = world.open.iter().cloned().collect();
            if let Some(action) = live.get(pick % live.len().max(1)).cloned() {
                let kind = kind(1, 1);
                let (service, degree) = (kind.service, kind.degree);
                let deadline = world.now + secs(1);
                world.send(Event::Submit { action, service, degree, deadline });
            }
        }
        Step::Cancel(pick) => {
            let n = pick % (*submitted).max(1);
            world.send(Event::Cancel(action(n)));
        }
        Step::Report(pick, outcome) => world.report(pick, outcome),
        Step::Finish(pick, well) => world.finish(pick, well),
        Step::Die(pick) => {
            let engines: Vec<_> = world.processes.keys().copied().collect();
            if let Some(engine) = engines.get(pick % engines.len().max(1)) {
                world.die(*engine);
            }
        }
        Step::Gpu(n, gpu, lost) if has(n) => world.gpu(&node(n), gpu, lost),
        Step::Leave(n) if has(n) && world.machines[&node(n)].up => world.leave(&node(n)),
        Step::Join(n, restarted) if has(n) && !world.machines[&node(n)].up => {
            world.join(&node(n), restarted);
        }
        Step::Drain(n, on) if has(n) => world.drain(&node(n), on),
        Step::Gpu(..) | Step::Leave(_) | Step::Join(..) | Step::Drain(..) => {}
        Step::NewPool => world.replace_pool(),
        Step::Pass(duration) => world.pass(secs(duration)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_action_ends_once(
        sizes in prop::sample::select(vec![vec![4u32], vec![8], vec![4, 8], vec![6, 4]]),
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let mut world = World::new(services(), &sizes);
        world.movable.insert(ROAMS);
        let mut submitted = 0;
        for step in steps {
            take(&mut world, step, &mut submitted, &sizes);
        }
        // All is well again.
        for n in 0..sizes.len() {
            (0..8).for_each(|gpu| world.gpu(&node(n), gpu, false));
            world.drain(&node(n), false);
            if !world.machines[&node(n)].up {
                world.join(&node(n), false);
            }
        }
        let begin = submitted;
        for kind in [kind(2, 4), kind(0, 1), kind(1, 1), kind(3, 1), kind(0, 2), kind(5, 1)] {
            world.submit(submitted, kind, 100_000);
            submitted += 1;
        }
        for _ in 0..300 {
            if world.open.is_empty() {
                break;
            }
            world.settle();
            world.pass(secs(1));
        }
        for n in begin..submitted {
            prop_assert_eq!(world.result(n), Some(Ok(())), "action {} of {:?}", n, world.pool);
        }
        prop_assert!(world.open.is_empty());
        let untold = world.forgotten + world.adrift.len();
        prop_assert_eq!(world.ended.len() + untold, submitted);
        // Nothing is held for nobody.
        for _ in 0..100 {
            world.settle();
            world.pass(secs(30));
        }
        world.settle();
        world.pass(secs(1_000_000));
        prop_assert_eq!(world.pool.next_deadline(), None);
        prop_assert!(world.pool.engines().all(|engine| engine.running == 0));
    }
}
