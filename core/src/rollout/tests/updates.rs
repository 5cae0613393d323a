//! Updates of the weights, step by step.

use std::time::Duration;

use super::world::{World, config, worker};
use crate::buffer::OnStale;
use crate::rollout::Event;
use crate::version::Version;
use crate::weights::{self, InFlight, Strategy, Transfer};

fn world() -> World {
    World::new(config(Strategy::Pause, InFlight::Recompute, OnStale::Abort))
}

fn begin(world: &mut World, version: u64, transfer: Transfer) {
    let (version, deadline) = (Version(version), None);
    world.tell(Event::Weights(weights::Event::Begin { version, transfer, deadline })).unwrap();
}

fn commit(world: &mut World, version: u64) {
    let commit = weights::Event::Commit { version: Version(version), path: Some("/w".into()) };
    world.tell(Event::Weights(commit)).unwrap();
}

/// Everything that is asked of engines is answered, until nothing is.
fn answer_all(world: &mut World) {
    while !world.calls.is_empty() {
        world.answer(0, false);
    }
}

/// The trainer writes its weights into suspended engines, which one by one look as if they
/// had been started anew; the next update must come to its end all the same.
#[test]
fn an_update_ends_after_engines_were_taken_for_new_ones_in_the_one_before() {
    for restarted in 1..=3 {
        let mut world = world();
        begin(&mut world, 1, Transfer::Disk);
        commit(&mut world, 1);
        answer_all(&mut world);
        assert_eq!(world.core.weights().current(), Version(1));

        begin(&mut world, 2, Transfer::External);
        answer_all(&mut world);
        for index in 0..restarted {
            let version = Some(Version(2));
            world.tell(Event::WorkerRestarted { worker: worker(index), version }).unwrap();
        }
        let commit_2 = weights::Event::Commit { version: Version(2), path: None };
        let committed = world.tell(Event::Weights(commit_2));
        for _ in 0..20 {
            answer_all(&mut world);
            world.later(Duration::from_mins(1));
        }
        let before = world.core.weights().current();
        begin(&mut world, 3, Transfer::Store);
        answer_all(&mut world);
        commit(&mut world, 3);
        for _ in 0..20 {
            answer_all(&mut world);
            world.later(Duration::from_mins(1));
        }
        assert_eq!(
            world.core.weights().current(),
            Version(3),
            "{restarted} restarted, {committed:?}, {before:?}: {:?}",
            world.core.weights()
        );
    }
}
