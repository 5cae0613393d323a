//! Agents and pools that come back: what lives is taken over, and nothing runs twice.

use std::collections::BTreeSet;

use super::reports::Outcome;
use super::rules::{orders, pair};
use super::world::{World, action, kind, node, secs, services};
use crate::gpu::{Adopted, Event, Node, Order, Pool, Proof, Residency};
use crate::ids::{ActionId, NodeId};

impl World {
    /// The pool's process is killed, another begins with nothing, and all agents find it.
    pub(super) fn replace_pool(&mut self) {
        let running = |action: &&ActionId| {
            self.processes.values().any(|process| process.running.contains(*action))
        };
        let running: BTreeSet<ActionId> = self.open.iter().filter(running).cloned().collect();
        self.forgotten += self.open.len() - running.len();
        self.open.clear();
        self.strays.clear();
        self.adrift.extend(running);
        self.epoch += 1 << 32;
        self.pool = Pool::above(self.epoch, self.config.clone());
        for machine in self.machines.values_mut() {
            machine.draining = false;
        }
        // The new one does not know for whom they were restored.
        self.owing.clear();
        let names: Vec<NodeId> = self.machines.keys().cloned().collect();
        for name in &names {
            self.join(name, false);
        }
    }
}

#[test]
fn residents_are_taken_over_when_an_agent_comes_back() {
    let mut world = pair();
    (0..3).for_each(|n| world.submit(n, kind(0, 1), 1000));
    world.report(0, Outcome::Good);
    world.leave(&node(0));
    // The link alone was broken: what runs goes on.
    world.join(&node(0), false);
    world.finish(0, true);
    assert!(world.result(0).is_some_and(|result| result.is_ok()));
    // The agent was killed: its calls are lost, its engines are not.
    world.leave(&node(0));
    world.join(&node(0), true);
    assert_eq!(world.ended.values().filter(|result| result.is_err()).count(), 2);
    assert!(world.ended.values().filter_map(|r| r.as_ref().err()).all(|f| f.reason == "AgentLost"));
    world.submit(3, kind(0, 1), 1000);
    world.settle();
    assert_eq!((world.result(3), orders(&world)), (Some(Ok(())), vec![Order::Launch]));
}

#[test]
fn an_order_outlives_its_link() {
    let mut world = pair();
    world.submit(0, kind(0, 1), 10_000);
    world.leave(&node(0));
    world.pass(secs(1000));
    world.join(&node(0), false);
    world.settle();
    assert_eq!((world.result(0), orders(&world)), (Some(Ok(())), vec![Order::Launch]));
}

#[test]
fn a_new_pool_takes_over_the_engines_that_it_finds() {
    let mut world = pair();
    for n in 0..2 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
    }
    let found = world.processes.clone();
    let mut world = pair();
    world.leave(&node(0));
    world.processes = found;
    world.join(&node(0), true);
    let states: Vec<Residency> = world.pool.engines().map(|view| view.residency).collect();
    assert_eq!(states, [Residency::Absent, Residency::Resident]);
    world.submit(0, kind(0, 1), 1000);
    world.settle();
    assert_eq!(orders(&world), [Order::Evict, Order::Wake]);
}

#[test]
fn a_new_pool_takes_in_what_runs_and_runs_it_once() {
    let mut world = pair();
    (0..3).for_each(|n| world.submit(n, kind(0, 1), 1000));
    world.report(0, Outcome::Good);
    let engine = *world.processes.keys().next().unwrap();
    world.replace_pool();
    // The third waited, and its caller asks again.
    assert_eq!((world.open.len(), world.forgotten), (2, 1));
    assert_eq!(world.pool.runs_on(&action(0)), Some(engine));
    world.submit(0, kind(0, 1), 1000);
    world.submit(2, kind(0, 1), 1000);
    world.settle();
    assert!((0..3).all(|n| world.result(n) == Some(Ok(()))));
    // A further engine has a number that was never given before.
    world.submit(3, kind(1, 1), 1000);
    world.settle();
    assert!(world.processes.keys().all(|id| *id == engine || id.0 > 1 << 32));
}

#[test]
fn one_that_is_asked_for_again_is_found_running_when_its_agent_is_back() {
    let mut world = pair();
    world.submit(0, kind(0, 1), 1000);
    world.report(0, Outcome::Good);
    world.replace_pool();
    world.leave(&node(0));
    world.adrift.insert(action(0));
    world.open.clear();
    world.pool = Pool::above(1 << 40, world.config.clone());
    // Nobody knows that it runs, until its agent says so.
    world.submit(0, kind(0, 1), 1000);
    world.join(&node(0), false);
    world.settle();
    assert_eq!((world.result(0), orders(&world)), (Some(Ok(())), vec![Order::Launch]));
    assert_eq!(world.pool.stats().runs, 0);
}

#[test]
fn an_engine_that_two_agents_claim_is_of_the_first() {
    let mut world = World::new(services(), &[4, 4]);
    world.submit(0, kind(1, 1), 1000);
    world.settle();
    let engine = *world.processes.keys().next().unwrap();
    let claimed = Adopted {
        engine,
        kind: kind(1, 1),
        start: 0,
        order: None,
        proof: Some(Proof { asleep: false, held: 10, answers: true }),
        running: Vec::new(),
    };
    let (gpus, memory, host, lost) = (4, 10, 30, Vec::new());
    let engines = vec![claimed];
    world.send(Event::Joined(Node { name: node(1), gpus, memory, host, lost, engines }));
    let views: Vec<_> = world.pool.engines().map(|view| (view.engine, view.node)).collect();
    assert_eq!(views, [(engine, node(0))]);
}
