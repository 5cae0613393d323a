//! Agents and pools that come back: what lives is taken over, and nothing runs twice.

use std::collections::BTreeSet;

use super::reports::Outcome;
use super::rules::{orders, pair};
use super::world::{HOST, MEMORY, World, action, index, kind, node, secs, services};
use crate::gpu::{Adopted, EngineId, Event, Kind, Node, Order, Pool, Proof, Residency, Running};
use crate::ids::{ActionId, NodeId};

impl World {
    /// The agent of a node connects, and tells again what was not acknowledged. A restarted one
    /// has no orders and no calls in flight.
    pub(super) fn join(&mut self, name: &NodeId, restarted: bool) {
        if restarted {
            self.tasks.retain(|task| task.node != *name);
        }
        let index = index(name);
        let deadline = self.now + secs(200);
        let kinds = self.movable.clone();
        let moves = |kind: Kind| kinds.contains(&kind.service) && self.machines[name].moves;
        let here = self.processes.iter_mut().filter(|(_, process)| process.chunk.node == index);
        let mut engines = Vec::new();
        for (id, process) in here.filter(|(_, process)| !process.dead) {
            if restarted {
                process.running.clear();
                process.told.clear();
            }
            let order = self.tasks.iter().find(|task| task.engine == *id).map(|task| task.order);
            let (asleep, held, answers) = (!process.awake, process.held, process.answers);
            let movable = moves(process.kind);
            let call =
                |action: &ActionId, ended| Running { action: action.clone(), deadline, ended };
            let running = process.running.iter().map(|action| call(action, false));
            let ended = process.told.iter().map(|action| call(action, true));
            engines.push(Adopted {
                engine: *id,
                kind: process.kind,
                start: process.chunk.start(),
                order,
                proof: order.is_none().then_some(Proof { asleep, held, answers, movable }),
                running: running.chain(ended).collect(),
            });
        }
        // Memory of a process that is gone comes back with the agent.
        self.processes.retain(|_, process| process.chunk.node != index || !process.dead);
        let machine = self.machines.get_mut(name).unwrap();
        (machine.up, machine.known) = (true, true);
        let (gpus, memory, host) = (machine.gpus, MEMORY, HOST);
        let lost = machine.lost.iter().copied().collect();
        let node = Node { name: name.clone(), gpus, memory, host, lost, engines };
        let commands = self.pool.on_event(Event::Joined(node), self.now);
        // A new pool takes in what runs; of what was cancelled before, it knows nothing.
        for action in self.processes.values().flat_map(|of| of.running.iter().chain(&of.told)) {
            if self.pool.runs_on(action).is_none() || self.open.contains(action) {
                continue;
            }
            if self.adrift.remove(action) {
                self.open.insert(action.clone());
            } else {
                self.strays.insert(action.clone());
            }
        }
        for command in commands {
            self.carry_out(command);
        }
        self.check();
        let here = self.processes.iter_mut().filter(|(_, process)| process.chunk.node == index);
        let again: Vec<(EngineId, ActionId)> = here
            .flat_map(|(id, process)| process.told.drain(..).map(|action| (*id, action)))
            .collect();
        for (engine, action) in again {
            self.send(Event::Finished { action, engine, result: Ok(()) });
        }
    }

    pub(super) fn leave(&mut self, name: &NodeId) {
        self.machines.get_mut(name).unwrap().up = false;
        self.send(Event::Left(name.clone()));
    }

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
fn a_call_that_has_ended_and_was_not_acknowledged_does_no_harm() {
    let mut world = pair();
    (0..2).for_each(|n| world.submit(n, kind(0, 1), 1000));
    world.report(0, Outcome::Good);
    world.finish(0, true);
    world.leave(&node(0));
    world.join(&node(0), false);
    assert_eq!((world.result(0), world.result(1)), (Some(Ok(())), None));
    world.settle();
    assert_eq!((world.result(1), orders(&world)), (Some(Ok(())), vec![Order::Launch]));
    // Nor where a new pool finds it, of an engine that sleeps.
    world.submit(2, kind(0, 1), 1000);
    world.finish(0, true);
    let process = world.processes.values_mut().next().unwrap();
    (process.awake, process.held, process.answers) = (false, 1, false);
    world.replace_pool();
    assert_eq!((orders(&world), world.pool.live()), (vec![Order::Launch], 0));
    world.submit(3, kind(0, 1), 1000);
    world.settle();
    assert_eq!((world.result(3), orders(&world)), (Some(Ok(())), vec![Order::Launch, Order::Wake]));
}

#[test]
fn an_order_outlives_its_link() {
    let mut world = pair();
    world.pool.config.forget = secs(2000);
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
        proof: Some(Proof { asleep: false, held: 10, answers: true, movable: false }),
        running: Vec::new(),
    };
    let (gpus, memory, host, lost) = (4, 10, 30, Vec::new());
    let engines = vec![claimed];
    world.send(Event::Joined(Node { name: node(1), gpus, memory, host, lost, engines }));
    let views: Vec<_> = world.pool.engines().map(|view| (view.engine, view.node)).collect();
    assert_eq!(views, [(engine, node(0))]);
}
