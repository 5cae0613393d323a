//! Whatever fails, restarts, joins or answers late: no worker serves what it should
//! not, every update ends, every worker comes back.

use std::time::Duration;

use proptest::prelude::*;

use super::world::{Answer, World};
use crate::weights::{Config, InFlight, Strategy as Order, Transfer};

#[derive(Debug, Clone)]
enum Step {
    Join { w: usize, holds: u64, speaks: bool },
    Leave(usize),
    Restart { w: usize, holds: u64 },
    Traffic(usize),
    EndTraffic(usize),
    Begin { ahead: u64, transfer: usize },
    Write,
    Commit { ahead: u64 },
    Abort { ahead: u64 },
    Pin { g: usize, behind: u64 },
    Unpin(usize),
    Answer { pick: usize, how: usize },
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let w = 0usize..4;
    prop_oneof![
        3 => (w.clone(), 0u64..4, any::<bool>())
            .prop_map(|(w, holds, speaks)| Step::Join { w, holds: holds.saturating_sub(1), speaks }),
        1 => w.clone().prop_map(Step::Leave),
        1 => (w.clone(), 0u64..3).prop_map(|(w, holds)| Step::Restart { w, holds }),
        6 => w.clone().prop_map(Step::Traffic),
        8 => w.prop_map(Step::EndTraffic),
        4 => (0u64..3, 0usize..3).prop_map(|(ahead, transfer)| Step::Begin { ahead, transfer }),
        1 => Just(Step::Write),
        4 => (0u64..3).prop_map(|ahead| Step::Commit { ahead }),
        1 => (0u64..3).prop_map(|ahead| Step::Abort { ahead }),
        3 => (0usize..3, 0u64..3).prop_map(|(g, behind)| Step::Pin { g, behind }),
        2 => (0usize..3).prop_map(Step::Unpin),
        30 => (any::<usize>(), 0usize..20).prop_map(|(pick, how)| Step::Answer { pick, how }),
        3 => (1u64..2000).prop_map(Step::Pass),
    ]
}

fn take(world: &mut World, step: &Step) {
    let current = world.current.0;
    let begun = world.begun.map_or(current, |(version, _)| version.0 - 1);
    match *step {
        Step::Join { w, holds, speaks } => world.join(w, holds, speaks),
        Step::Leave(w) => world.leave(w),
        Step::Restart { w, holds } => world.restart(w, holds),
        Step::Traffic(w) => world.traffic(w),
        Step::EndTraffic(w) => world.end_traffic(w),
        Step::Begin { ahead, transfer } => {
            let transfer = [Transfer::Disk, Transfer::Store, Transfer::External][transfer];
            let _refused = world.begin(current + ahead, transfer);
        }
        Step::Write => world.write(),
        Step::Commit { ahead } => drop(world.commit(begun + ahead)),
        Step::Abort { ahead } => drop(world.abort(begun + ahead)),
        Step::Pin { g, behind } => drop(world.pin(g, current.saturating_sub(behind))),
        Step::Unpin(g) => world.unpin(g),
        Step::Answer { pick, how } => {
            let how = match how {
                0 => Answer::Refused,
                1 => Answer::Lost,
                2 => Answer::Broken,
                _ => Answer::Done,
            };
            world.answer(pick, how);
        }
        Step::Pass(millis) => world.pass(Duration::from_millis(millis)),
    }
}

fn run(strategy: Order, in_flight: usize, evaluation_workers: u32, steps: &[Step]) {
    let mut world = World::new(Config {
        strategy,
        in_flight: [InFlight::Keep, InFlight::Recompute, InFlight::Abort][in_flight],
        deadline: Duration::from_secs(4),
        max_drain: Duration::from_secs(3),
        retry_base: Duration::from_millis(200),
        retry_max: Duration::from_secs(1),
        evaluation_workers,
    });
    for step in steps {
        take(&mut world, step);
    }
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn all_at_once(
        steps in prop::collection::vec(step(), 0..150),
        in_flight in 0usize..3,
        evaluation_workers in 0u32..3,
    ) {
        run(Order::Pause, in_flight, evaluation_workers, &steps);
    }

    #[test]
    fn rolling(
        steps in prop::collection::vec(step(), 0..150),
        in_flight in 0usize..3,
        evaluation_workers in 0u32..3,
        max_unavailable in 1u32..3,
    ) {
        run(Order::Rolling { max_unavailable }, in_flight, evaluation_workers, &steps);
    }
}
