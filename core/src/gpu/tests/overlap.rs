//! Restores beside what executes, and nodes that stay away.

use super::reports::Outcome;
use super::rules::{four_execute, orders};
use super::world::{World, action, kind, node, secs, service};
use crate::fault::FaultKind;
use crate::gpu::{Event, Order, Residency, ServiceIndex};

fn running(world: &World) -> usize {
    world.processes.values().map(|process| process.running.len()).sum()
}

/// One GPU, on which two of the services fit.
fn three() -> World {
    let services = ["a", "b", "c"].map(|name| service(name, 1, &[(1, 4, 0, 1)]));
    World::new(services.to_vec(), &[1])
}

/// Of three, the first executes and the second was restored beside it.
fn one_executes_and_one_is_next() -> World {
    let mut world = three();
    for n in 0..2 {
        world.submit(n, kind(n, 1), 1000);
        world.report(0, Outcome::Good);
    }
    world
}

#[test]
fn the_next_is_restored_while_one_executes() {
    let mut world = three();
    world.submit(0, kind(0, 1), 1000);
    world.report(0, Outcome::Good);
    world.submit(1, kind(1, 1), 1000);
    world.submit(2, kind(2, 1), 1000);
    assert_eq!((running(&world), orders(&world)), (1, vec![Order::Launch; 2]));
    world.report(0, Outcome::Good);
    // It is there and waits for its turn; there is no room for the third.
    assert_eq!((running(&world), world.tasks.len(), world.pool.stats().runs), (1, 0, 1));
    world.finish(0, true);
    // The second executes, and what the first had is the third's.
    assert_eq!((running(&world), world.pool.stats().runs), (1, 2));
    assert_eq!(world.tasks.last().map(|task| task.what), Some(Order::Evict));
    world.report(0, Outcome::Good);
    world.report(0, Outcome::Good);
    world.finish(0, true);
    let expected = [Order::Launch, Order::Launch, Order::Evict, Order::Launch];
    assert_eq!((orders(&world), world.pool.stats().runs), (expected.to_vec(), 3));
}

#[test]
fn what_was_restored_serves_before_it_is_moved_again() {
    let mut world = one_executes_and_one_is_next();
    // One more of the first, and one of the third: the second is not moved for either.
    world.submit(2, kind(2, 1), 1000);
    world.submit(3, kind(0, 1), 1000);
    world.finish(0, true);
    assert_eq!(world.pool.runs_on(&action(1)), world.processes.keys().nth(1).copied());
    // Unless nobody waits for it any more.
    world.submit(4, kind(1, 1), 1000);
    world.settle();
    assert!((0..5).all(|n| world.result(n) == Some(Ok(()))));
    let mut world = one_executes_and_one_is_next();
    world.submit(2, kind(2, 1), 1000);
    assert!(world.tasks.is_empty());
    world.send(Event::Cancel(action(1)));
    assert_eq!(world.tasks.last().map(|task| task.what), Some(Order::Evict));
}

#[test]
fn a_wide_one_is_restored_over_narrow_ones_and_runs_when_they_have_ended() {
    let mut world = four_execute(4);
    assert_eq!(running(&world), 4);
    world.submit(5, kind(1, 4), 10_000);
    assert_eq!(world.tasks.len(), 1);
    // While it is restored, others may begin.
    world.finish(0, true);
    world.submit(6, kind(0, 1), 10_000);
    assert_eq!(running(&world), 4);
    world.report(0, Outcome::Good);
    // Now that it is there, none that came later does.
    (7..12).for_each(|n| world.submit(n, kind(0, 1), 10_000));
    (0..3).for_each(|_| world.finish(0, true));
    assert_eq!((running(&world), world.pool.runs_on(&action(5))), (1, None));
    world.finish(0, true);
    assert!(world.pool.runs_on(&action(5)).is_some());
    assert_eq!(running(&world), 1);
    world.settle();
    assert!((0..12).all(|n| world.result(n) == Some(Ok(()))));
}

#[test]
fn moves_of_a_gpu_come_one_after_the_other() {
    let services: Vec<_> = (0..5).map(|n| service(&format!("s{n}"), 1, &[(1, 2, 0, 1)])).collect();
    let mut world = World::new(services, &[1]);
    (0..5).for_each(|n| world.submit(n, kind(n, 1), 1000));
    assert_eq!((world.tasks.len(), orders(&world)), (1, vec![Order::Launch]));
    let promised = world.pool.engines().filter(|view| view.residency == Residency::Absent);
    assert_eq!(promised.count(), 4);
    for n in 0..5 {
        assert_eq!(world.tasks.len(), 1, "of {n}");
        world.report(0, Outcome::Good);
    }
    assert_eq!((running(&world), world.tasks.len()), (1, 0));
    world.settle();
    assert_eq!(world.pool.waiting(ServiceIndex(4)), 0);
}

#[test]
fn the_time_to_start_counts_what_executes_and_what_is_moved() {
    let mut world = three();
    let to_start =
        |world: &World, service| world.pool.time_to_start(ServiceIndex(service), kind(0, 1).degree);
    world.submit(0, kind(0, 1), 10_000);
    world.report(0, Outcome::Good);
    // Nothing is known of how long it runs: a launch beside it.
    assert_eq!(to_start(&world, 1), Some(secs(20)));
    world.pass(secs(50));
    world.finish(0, true);
    world.submit(1, kind(0, 1), 10_000);
    assert_eq!((running(&world), to_start(&world, 1)), (1, Some(secs(50))));
    // Another launch is under way, and there is no room for a third.
    world.submit(2, kind(1, 1), 10_000);
    assert_eq!(to_start(&world, 2), None);
    world.report(0, Outcome::Good);
    world.finish(0, true);
    // Resident, but another executes: of that, nothing is known yet.
    assert_eq!(to_start(&world, 0), Some(secs(0)));
    assert_eq!(to_start(&world, 2), Some(secs(1 + 20)));
}

#[test]
fn a_call_on_a_node_that_stays_away_ends_when_it_has_had_its_time() {
    let mut world = three();
    world.submit(0, kind(0, 1), 10_000);
    world.report(0, Outcome::Good);
    world.pass(secs(100));
    world.leave(&node(0));
    // It may run for 300 s, and its agent may be back 2 s later.
    world.pass(secs(201));
    assert_eq!(world.result(0), None);
    world.pass(secs(1));
    assert_eq!(world.result(0), Some(Err("NodeLost")));
    assert_eq!(world.ended[&action(0)].as_ref().unwrap_err().kind, FaultKind::Infrastructure);
    // It runs there nevertheless, and its GPU is in use until it is cancelled.
    world.join(&node(0), false);
    world.submit(1, kind(0, 1), 1000);
    assert_eq!(world.pool.stats().runs, 1);
    world.finish(0, true);
    assert_eq!(world.pool.stats().runs, 2);
    world.settle();
    assert_eq!(world.result(1), Some(Ok(())));
}

#[test]
fn a_call_whose_node_is_back_in_time_goes_on() {
    let mut world = three();
    world.submit(0, kind(0, 1), 10_000);
    world.report(0, Outcome::Good);
    world.leave(&node(0));
    world.pass(secs(250));
    world.join(&node(0), false);
    world.pass(secs(100));
    // Its time is its agent's to watch, as long as that is there; and a short absence is none.
    assert_eq!(world.result(0), None);
    world.leave(&node(0));
    world.pass(secs(1));
    world.join(&node(0), false);
    world.settle();
    assert_eq!(world.result(0), Some(Ok(())));
}

#[test]
fn what_nobody_waits_for_any_more_is_not_restored() {
    let sizes = [("a", 4), ("b", 4), ("c", 4), ("d", 2)];
    let services = sizes.map(|(name, bytes)| service(name, 1, &[(1, bytes, 0, 1)]));
    let mut world = World::new(services.to_vec(), &[1]);
    for n in 0..2 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
    }
    // While the fourth is launched, the third waits for that and for the first to leave.
    world.submit(2, kind(3, 1), 1000);
    world.submit(3, kind(2, 1), 1000);
    assert_eq!(orders(&world), vec![Order::Launch; 3]);
    world.send(Event::Cancel(action(3)));
    world.settle();
    assert_eq!(orders(&world), vec![Order::Launch; 3], "nothing was moved for nobody");
    world.submit(4, kind(0, 1), 1000);
    assert!(world.pool.runs_on(&action(4)).is_some(), "the first is where it was");
    // Nor an engine that sleeps woken.
    world.settle();
    world.submit(5, kind(2, 1), 1000);
    world.settle();
    assert_eq!(orders(&world)[3..], [Order::Evict, Order::Launch]);
}

#[test]
fn a_gpu_that_is_being_left_for_nobody_is_taken_before_another_is_left() {
    let services = ["a", "b", "c", "d"].map(|name| service(name, 1, &[(1, 6, 0, 1)]));
    let mut world = World::new(services.to_vec(), &[2]);
    for n in 0..2 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
    }
    world.submit(2, kind(2, 1), 1000);
    world.send(Event::Cancel(action(2)));
    world.submit(3, kind(3, 1), 1000);
    world.settle();
    assert_eq!(world.result(3), Some(Ok(())));
    assert_eq!(orders(&world), [Order::Launch, Order::Launch, Order::Evict, Order::Launch]);
}

#[test]
fn one_that_is_in_nobodys_way_goes_on_while_others_take_turns() {
    let sizes = [("a", 6), ("b", 6), ("small", 3)];
    let services = sizes.map(|(name, bytes)| service(name, 1, &[(1, bytes, 0, 1)]));
    let mut world = World::new(services.to_vec(), &[1]);
    for (n, service) in [0, 2].into_iter().enumerate() {
        world.submit(n, kind(service, 1), 1000);
        world.report(0, Outcome::Good);
        // Its term is over.
        world.pass(secs(4));
        world.finish(0, true);
    }
    // The second is launched in the place of the first, which is wanted again.
    world.submit(2, kind(1, 1), 1000);
    world.report(0, Outcome::Good);
    world.submit(3, kind(0, 1), 1000);
    assert_eq!(orders(&world).last(), Some(&Order::Launch));
    world.submit(4, kind(2, 1), 1000);
    assert!(world.pool.runs_on(&action(4)).is_some(), "nobody needs its memory");
    world.settle();
    assert!((0..5).all(|n| world.result(n) == Some(Ok(()))));
}
