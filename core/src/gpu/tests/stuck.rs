//! An engine that cannot be ended: others do not wait for it where they need not.

use super::reports::Outcome;
use super::rules::orders;
use super::world::{World, action, kind, node, secs, service};
use crate::gpu::{Event, Order, Trouble};

/// The engine on which one runs breaks, and two tries to end it fail.
fn stick(world: &mut World, n: usize, service: usize) {
    world.submit(n, kind(service, 1), 1000);
    world.report(0, Outcome::Good);
    let engine = world.pool.runs_on(&action(n)).expect("it runs");
    world.send(Event::Broke(engine, Trouble::Hung));
    for _ in 0..2 {
        assert_eq!(world.tasks.last().map(|task| task.what), Some(Order::Stop));
        world.report(0, Outcome::TimedOut);
        let again = world.config.backoff.first;
        if world.given.iter().filter(|(order, _)| *order == Order::Stop).count() == 1 {
            world.pass(again);
        }
    }
    assert!(world.tasks.is_empty());
}

/// One that has four GPUs, awake or asleep, beside one that does not end.
fn wide_beside_stuck(awake: bool) {
    let wide = service("wide", 1, &[(4, 4, 1, 1)]);
    let narrow = ["b", "c"].map(|name| service(name, 1, &[(1, 3, 0, 1)]));
    let mut world = World::new([&[wide], &narrow[..]].concat(), &[4]);
    world.submit(0, kind(0, 4), 1000);
    world.settle();
    if !awake {
        let process = world.processes.values_mut().next().unwrap();
        (process.awake, process.held, process.answers) = (false, 1, false);
        world.replace_pool();
    }
    stick(&mut world, 1, 1);
    let launches = orders(&world);
    world.submit(2, kind(0, 4), 1000);
    assert_eq!(orders(&world), launches, "it waits where it is");
    // Who comes later is served on the GPUs that are well.
    world.submit(3, kind(2, 1), 1000);
    world.report(0, Outcome::Good);
    world.finish(0, true);
    assert_eq!((world.result(2), world.result(3)), (None, Some(Ok(()))));
    // It has ended at last.
    world.pass(secs(8));
    world.settle();
    assert_eq!(world.result(2), Some(Ok(())));
}

#[test]
fn a_wide_resident_beside_one_that_does_not_end_keeps_nobody_waiting() {
    wide_beside_stuck(true);
}

#[test]
fn a_wide_sleeper_beside_one_that_does_not_end_keeps_nobody_waiting() {
    wide_beside_stuck(false);
}

#[test]
fn a_service_whose_engine_is_beside_one_that_does_not_end_gets_another() {
    let services = ["a", "b"].map(|name| service(name, 1, &[(1, 4, 0, 1)]));
    let mut world = World::new(services.to_vec(), &[2]);
    world.gpu(&node(0), 1, true);
    world.submit(0, kind(0, 1), 1000);
    // It runs for less time than a launch takes.
    world.pass(secs(20));
    world.settle();
    stick(&mut world, 1, 1);
    world.gpu(&node(0), 1, false);
    world.submit(2, kind(0, 1), 1000);
    world.report(0, Outcome::Good);
    world.finish(0, true);
    assert_eq!(world.result(2), Some(Ok(())));
}

#[test]
fn nothing_more_begins_beside_one_whose_state_is_unknown() {
    let batches = service("a", 2, &[(1, 4, 0, 1)]);
    let mut world = World::new(vec![batches, service("b", 1, &[(1, 4, 0, 1)])], &[1]);
    world.submit(0, kind(1, 1), 1000);
    world.settle();
    let beside = *world.processes.keys().next().unwrap();
    world.submit(1, kind(0, 1), 1000);
    world.report(0, Outcome::Good);
    world.send(Event::Broke(beside, Trouble::Hung));
    world.submit(2, kind(0, 1), 1000);
    assert_eq!(world.pool.runs_on(&action(2)), None);
    world.report(0, Outcome::Good);
    assert_eq!(world.pool.runs_on(&action(2)), world.pool.runs_on(&action(1)));
    assert_eq!(world.pool.stats().runs, 3);
}

#[test]
fn the_memory_of_one_that_does_not_end_is_not_waited_for() {
    let services = ["a", "b", "c", "d"].map(|name| service(name, 1, &[(1, 4, 0, 10)]));
    let mut world = World::new(services.to_vec(), &[4]);
    for n in 0..2 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
    }
    stick(&mut world, 2, 2);
    // The node's memory is full: the one that was used least recently goes.
    world.submit(3, kind(3, 1), 1000);
    assert_eq!(world.tasks.last().map(|task| task.what), Some(Order::Stop));
    world.report(0, Outcome::Good);
    assert_eq!(world.tasks.last().map(|task| task.what), Some(Order::Launch));
    world.report(0, Outcome::Good);
    world.finish(0, true);
    assert_eq!(world.result(3), Some(Ok(())));
}
