//! A trainer that goes on taking, and drivers that go on finishing, get batches for ever,
//! whatever went before.

use proptest::prelude::*;

use super::chaos::{crash, step};
use super::world::{World, config, open};
use crate::buffer::{self, OnStale};
use crate::trajectory::{Event, State, Turn};
use crate::version::Version;

impl World {
    /// Every driver does what is next for its trajectory; disk and services answer.
    fn all_go_on(&mut self) {
        while let Some((trajectory, request)) = self.outside.requests.pop_first() {
            self.send(Event::TurnEnded { trajectory, request, turn: Turn::Lost }).unwrap();
        }
        let running: Vec<_> = self.outside.drivers.iter().cloned().collect();
        for id in running {
            if self.state(id.as_str()) != Some(State::Running) {
                self.outside.drivers.remove(&id);
                continue;
            }
            if let Ok(request) = self.request(&id) {
                self.outside.requests.remove(&(id.clone(), request));
                let turn = self.turn(&id, 4);
                let ended = Event::TurnEnded { trajectory: id.clone(), request, turn };
                self.send(ended).unwrap();
            }
            if self.state(id.as_str()) == Some(State::Running) {
                self.send(Event::Complete { trajectory: id.clone(), reward: None, taught: false })
                    .unwrap();
            }
        }
        while let Some(trajectory) = self.outside.calls.pop_first() {
            self.send(Event::Scored { trajectory, result: Ok(1.0) }).unwrap();
        }
        while let Some((trajectory, keep)) = self.outside.writes.pop_first() {
            self.disk.records.insert(trajectory.clone(), keep);
            self.send(Event::Kept { trajectory, result: Ok(()) }).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn batches_come_for_ever(
        steps in prop::collection::vec((step(), crash()), 0..150),
        bound in 0u32..3,
    ) {
        let mut world = World::new(config(bound, OnStale::Abort));
        for (step, crash) in &steps {
            world.step(step, *crash);
        }
        let mut next = 1000;
        for round in 0..6 {
            let mut patience = 50;
            while world.take().is_none() {
                patience -= 1;
                prop_assert!(patience > 0, "no batch {round}: {:?} {:?}", world.core.counts(), world.buffer);
                if world.room() > 0 && world.open(open(next, 2)).is_ok() {
                    next += 1;
                } else {
                    // Trajectories whose driver is lost are given up and replaced.
                    world.pass(61);
                }
                world.all_go_on();
            }
            if round == 3 {
                world.crash();
            }
            let batch = world.take().unwrap();
            prop_assert_eq!(batch.groups.len(), 2);
            world.buffer(buffer::Event::Ack(batch.id));
            let version = Version(world.version.0 + 1);
            world.send(Event::VersionChanged(version)).unwrap();
        }
    }
}
