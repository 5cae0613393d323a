//! Whatever the order of events and crashes: nothing that settled is lost, nothing is given
//! twice as new, nothing too old is given, and a trainer that goes on taking gets batches.

use proptest::prelude::*;

use super::world::{World, config, settled};
use crate::buffer::{Event, OnStale, Running, Taker};
use crate::version::{BatchId, Version};

#[derive(Debug, Clone)]
enum Step {
    Settle { size: usize, start: u64, newer: u64 },
    SettleAgain(usize),
    Version(u64),
    Take { taker: u64, groups: Option<usize> },
    Leave(u64),
    Ack(u64),
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1usize..4, 0u64..4, 0u64..3)
            .prop_map(|(size, start, newer)| Step::Settle { size, start, newer }),
        1 => (0usize..20).prop_map(Step::SettleAgain),
        3 => (0u64..3).prop_map(Step::Version),
        6 => (0u64..5, prop::option::of(0usize..7))
            .prop_map(|(taker, groups)| Step::Take { taker, groups }),
        2 => (0u64..5).prop_map(Step::Leave),
        5 => (0u64..12).prop_map(Step::Ack),
        1 => Just(Step::Crash),
    ]
}

/// Events end in a crash after so many of their commands.
fn crash() -> impl Strategy<Value = usize> {
    prop_oneof![9 => Just(usize::MAX), 1 => 0usize..3]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_given_twice(
        steps in prop::collection::vec((step(), crash()), 0..80),
        bound in 0u32..3,
        by_start in any::<bool>(),
    ) {
        let on_stale = if by_start { OnStale::Abort } else { OnStale::Continue };
        let mut world = World::new(config(bound, on_stale));
        for (n, (step, crash)) in steps.into_iter().enumerate() {
            let event = match step {
                Step::Settle { size, start, newer } => {
                    let start = world.version.0 - start;
                    Event::Settled(settled(n, size, start + newer, start))
                }
                Step::SettleAgain(n) => {
                    let Some(group) = world.given.values().flat_map(|b| &b.groups).nth(n) else {
                        continue;
                    };
                    // After its end a group's name is free; while it is held it is not.
                    if !world.buffer.contains(&group.group) {
                        continue;
                    }
                    Event::Settled(group.clone())
                }
                Step::Version(newer) => Event::VersionChanged(Version(world.version.0 + newer)),
                Step::Take { taker, groups } => Event::Take { taker: Taker(taker), groups },
                Step::Leave(taker) => Event::Leave(Taker(taker)),
                Step::Ack(batch) => Event::Ack(BatchId(batch)),
                Step::Crash => {
                    world.crash();
                    continue;
                }
            };
            // A refusal is checked by the world to change nothing.
            let _ = world.send_and_crash(event, crash);
        }
    }

    /// Groups of any size; the trainer wants any number of groups, and publishes a version
    /// after each batch.
    #[test]
    fn a_trainer_that_goes_on_gets_batches(
        bound in 0u32..3,
        groups in prop::collection::vec((1usize..30, any::<bool>()), 200),
        wants in prop::collection::vec(prop::option::of(1usize..6), 10),
    ) {
        let mut world = World::new(config(bound, OnStale::Abort));
        let mut running: Vec<(usize, usize, u64)> = Vec::new();
        let mut next = groups.into_iter().enumerate();
        for want in wants {
            let mut batch = world.take(0, want);
            while batch.is_none() {
                let counts = Running {
                    groups: running.len(),
                    trajectories: running.iter().map(|(_, size, _)| size).sum(),
                };
                let room = world.buffer.room(counts);
                let held = world.buffer.trajectories() + counts.trajectories;
                let free = world.buffer.bound().saturating_sub(held);
                prop_assert!(room == free || (free == 0 && room == 1));
                prop_assert!(room > 0 || !running.is_empty(), "nothing runs, and nothing may");
                let finish = room == 0 || (!running.is_empty() && world.version.0.is_multiple_of(2));
                if finish {
                    let (n, size, start) = running.remove(0);
                    world.settle(settled(n, size, start, start));
                } else {
                    let Some((n, (size, _))) = next.next() else { return Ok(()) };
                    running.push((n, size, world.version.0));
                }
                batch = world.given.values().next_back().filter(|_| world.buffer.taken().is_some()).cloned();
            }
            let batch = batch.unwrap();
            prop_assert_eq!(batch.groups.len(), want.unwrap_or(2));
            world.send(Event::Ack(batch.id)).unwrap();
            let version = Version(world.version.0 + 1);
            world.send(Event::VersionChanged(version)).unwrap();
            // Drivers of what became too old while it ran begin again.
            let fresh = |start: &u64| start + u64::from(bound) >= version.0;
            for (_, _, start) in running.iter_mut().filter(|(_, _, start)| !fresh(start)) {
                *start = version.0;
            }
        }
    }
}
