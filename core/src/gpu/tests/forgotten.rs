//! Nodes that do not come back, and such as do after all.

use proptest::prelude::*;

use super::reports::Outcome;
use super::rules::{orders, pair};
use super::world::{FORGET, Machine, World, action, index, kind, node, secs, services};
use crate::gpu::{Event, Order, Residency};
use crate::ids::NodeId;

impl World {
    /// The pool has forgotten a node. Its machine may live, with all that is on it.
    pub(super) fn is_forgotten(&mut self, name: &NodeId) {
        let machine = self.machines.get_mut(name).unwrap();
        assert!(!machine.up && machine.known, "{name} is forgotten while it is here");
        (machine.known, machine.draining) = (false, false);
        let there = self.processes.iter().filter(|(_, of)| of.chunk.node == index(name));
        for (engine, process) in there {
            self.owing.remove(engine);
            let open = process.running.iter().find(|action| self.open.contains(*action));
            assert_eq!(open, None, "{name} is forgotten while a call may run there");
        }
    }

    /// One more machine, which comes and has two GPUs.
    fn comes(&mut self, n: usize) {
        let lost = std::collections::BTreeSet::new();
        let machine =
            Machine { gpus: 2, up: false, known: false, draining: false, lost, moves: false };
        self.machines.insert(node(n), machine);
        self.join(&node(n), false);
    }
}

#[test]
fn nodes_that_come_under_ever_new_names_are_forgotten() {
    let mut world = pair();
    for n in 1..200 {
        world.comes(n);
        world.submit(n, kind(n % 2, 1), 1000);
        world.settle();
        assert_eq!(world.result(n), Some(Ok(())), "of {n}");
        world.leave(&node(n));
        world.pass(FORGET / 4);
    }
    assert!(world.pool.nodes.len() <= 1 + 5, "{} nodes are known", world.pool.nodes.len());
    world.pass(FORGET);
    let known = world.pool.known_nodes().map(|index| world.pool.nodes[index].name.clone());
    assert_eq!(known.collect::<Vec<_>>(), [node(0)]);
    assert!(world.pool.engines().all(|engine| engine.node == node(0)));
    assert_eq!(world.pool.gpus(), 1);
}

#[test]
fn engines_of_a_node_that_was_forgotten_are_taken_over() {
    let mut world = pair();
    world.submit(0, kind(0, 1), 1000);
    world.settle();
    world.leave(&node(0));
    world.pass(FORGET.saturating_sub(secs(1)));
    assert_eq!(world.pool.engines().count(), 1);
    world.pass(secs(1));
    assert_eq!((world.pool.engines().count(), world.pool.gpus()), (0, 0));
    // Accepted, as before any node was known.
    world.submit(1, kind(0, 1), 1000);
    assert_eq!(world.result(1), None);
    world.join(&node(0), true);
    world.settle();
    assert_eq!((world.result(1), orders(&world)), (Some(Ok(())), vec![Order::Launch]));
    let view = world.pool.engines().next().unwrap();
    assert_eq!((view.residency, view.node), (Residency::Resident, node(0)));
}

#[test]
fn a_node_on_which_a_call_may_run_is_known() {
    let mut world = pair();
    world.submit(0, kind(0, 1), 10_000);
    world.report(0, Outcome::Good);
    world.leave(&node(0));
    // It may run for 300 s.
    world.pass(FORGET * 2);
    assert_eq!((world.result(0), world.pool.known_nodes().count()), (None, 1));
    world.join(&node(0), false);
    world.finish(0, true);
    assert_eq!(world.result(0), Some(Ok(())));
    world.submit(1, kind(0, 1), 10_000);
    world.leave(&node(0));
    world.pass(secs(302) + FORGET);
    assert_eq!((world.result(1), world.pool.known_nodes().count()), (Some(Err("NodeLost")), 0));
}

proptest! {
    /// However nodes come and go, those that are known are those that are here, or were a short
    /// time ago.
    #[test]
    fn what_is_known_is_bounded_by_what_was_here_lately(
        steps in prop::collection::vec((0usize..12, 0u64..20), 0..60),
    ) {
        let mut world = World::new(super::world::services(), &[]);
        let mut left = std::collections::BTreeMap::new();
        for (step, (n, wait)) in steps.into_iter().enumerate() {
            if world.machines.get(&node(n)).is_some_and(|machine| machine.up) {
                world.leave(&node(n));
                left.insert(node(n), world.now);
            } else {
                left.remove(&node(n));
                world.comes(n);
                world.submit(step, kind(1, 1), 50);
            }
            world.report(0, Outcome::Good);
            world.finish(0, true);
            world.pass(secs(wait));
            // Calls are given up after 302 s at the latest.
            let lately = |name: &NodeId| left.get(name).is_none_or(|at| world.now < *at + FORGET + secs(310));
            for index in world.pool.known_nodes() {
                prop_assert!(lately(&world.pool.nodes[index].name));
            }
            let here = world.machines.values().filter(|machine| machine.up).count();
            prop_assert!(world.pool.known_nodes().count() >= here);
        }
    }
}

#[test]
fn one_that_waits_in_vain_says_when_nobody_offers_gpus() {
    let says = |world: &World, n: usize| {
        let fault = world.ended[&action(n)].as_ref().unwrap_err();
        assert_eq!(fault.reason, "GpuDeadline");
        fault.message.clone()
    };
    let mut world = World::new(services(), &[]);
    world.submit(0, kind(0, 1), 10);
    world.pass(secs(10));
    let message = says(&world, 0);
    assert!(message.contains("got no 1 GPUs by the deadline: no agent of the pool"), "{message}");
    // There is one, and it goes.
    world.comes(0);
    world.leave(&node(0));
    world.submit(1, kind(0, 1), 10);
    world.pass(secs(10));
    let message = says(&world, 1);
    assert!(message.contains("by the deadline: the agents of all nodes"), "{message}");
    // It is there, and others have it.
    let mut world = pair();
    (0..2).for_each(|n| world.submit(n, kind(n, 1), 100));
    world.pass(secs(1));
    world.send(Event::Late(action(1)));
    assert!(says(&world, 1).ends_with("got no 1 GPUs by the deadline"), "{}", says(&world, 1));
}
