//! Single rules, one test each.

use std::time::Duration;

use super::world::{World, config, secs, settled};
use crate::buffer::{Command, Event, OnStale, Running, Taker};
use crate::fault::FaultKind;
use crate::version::{BatchId, Version};

fn ids(batch: &crate::buffer::Batch) -> Vec<&str> {
    batch.groups.iter().map(|group| group.group.as_str()).collect()
}

#[test]
fn the_oldest_go_first_in_order_of_settling() {
    let mut world = World::new(config(2, OnStale::Abort));
    for (n, start) in [(0, 10), (1, 9), (2, 10), (3, 8)] {
        world.settle(settled(n, 2, start, start));
    }
    let batch = world.take(0, Some(3)).unwrap();
    assert_eq!(
        (ids(&batch), batch.id, batch.version),
        (vec!["g3", "g1", "g0"], BatchId(1), Version(10))
    );
}

#[test]
fn the_same_batch_until_it_is_acknowledged() {
    let mut world = World::new(config(1, OnStale::Abort));
    (0..5).for_each(|n| world.settle(settled(n, 2, 10, 10)));
    let first = world.take(0, None).unwrap();
    assert_eq!(world.take(1, Some(1)), Some(first.clone()));
    world.crash();
    assert_eq!(world.take(2, None), Some(first.clone()));
    world.send(Event::Ack(first.id)).unwrap();
    assert_eq!(world.send(Event::Ack(first.id)), Ok(vec![]));
    let second = world.take(0, None).unwrap();
    assert_eq!((first.id, second.id), (BatchId(1), BatchId(2)));
    world.crash();
    assert_eq!(world.send(Event::Ack(first.id)), Ok(vec![]));
    assert_eq!(world.buffer.taken(), Some(&second));
}

#[test]
fn a_batch_that_was_never_given_is_unknown() {
    let mut world = World::new(config(1, OnStale::Abort));
    for id in [0, 1] {
        let fault = world.send(Event::Ack(BatchId(id))).unwrap_err();
        assert_eq!((fault.kind, &*fault.reason), (FaultKind::User, "UnknownBatch"));
    }
}

#[test]
fn new_versions_evict_what_waits_and_not_what_was_taken() {
    let mut world = World::new(config(1, OnStale::Abort));
    (0..3).for_each(|n| world.settle(settled(n, 2, 10, 10)));
    let batch = world.take(0, None).unwrap();
    world.send(Event::VersionChanged(Version(11))).unwrap();
    assert!(world.evicted.is_empty());
    world.send(Event::VersionChanged(Version(12))).unwrap();
    assert_eq!(world.evicted.iter().map(ToString::to_string).collect::<Vec<_>>(), ["g2"]);
    assert_eq!(world.take(0, None), Some(batch));
    let stats = world.buffer.stats(world.now);
    assert_eq!((stats.groups_evicted, stats.trajectories_evicted), (1, 2));
}

#[test]
fn with_continue_the_oldest_token_counts() {
    let evicted = |on_stale| {
        let mut world = World::new(config(1, on_stale));
        world.settle(settled(0, 2, 10, 9));
        world.send(Event::VersionChanged(Version(11))).unwrap();
        world.evicted.len()
    };
    assert_eq!((evicted(OnStale::Abort), evicted(OnStale::Continue)), (0, 1));
}

#[test]
fn a_group_that_settles_too_old_is_evicted_at_once() {
    let mut world = World::new(config(1, OnStale::Abort));
    let commands = world.send(Event::Settled(settled(0, 2, 8, 8))).unwrap();
    assert_eq!(commands, [Command::Evict(settled(0, 2, 8, 8))]);
}

#[test]
fn all_who_wait_get_the_batch_of_the_least_wish() {
    let mut world = World::new(config(1, OnStale::Abort));
    assert_eq!(world.take(0, Some(5)), None);
    assert_eq!(world.take(1, Some(1)), None);
    let commands = world.send(Event::Settled(settled(0, 2, 10, 10))).unwrap();
    let [Command::Deliver { batch, takers, again: false }] = &commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!((ids(batch), &takers[..]), (vec!["g0"], &[Taker(0), Taker(1)][..]));
}

#[test]
fn who_left_gets_nothing() {
    let mut world = World::new(config(1, OnStale::Abort));
    assert_eq!(world.take(0, Some(1)), None);
    world.send(Event::Leave(Taker(0))).unwrap();
    assert_eq!(world.send(Event::Settled(settled(0, 2, 10, 10))), Ok(vec![]));
}

#[test]
fn wishes_are_bounded() {
    let mut world = World::new(config(1, OnStale::Abort));
    for groups in [0, 6] {
        let fault = world.send(Event::Take { taker: Taker(0), groups: Some(groups) }).unwrap_err();
        assert_eq!((fault.kind, &*fault.reason), (FaultKind::User, "BatchSize"));
    }
    (0..3).for_each(|taker| assert_eq!(world.take(taker, None), None));
    let fault = world.send(Event::Take { taker: Taker(3), groups: None }).unwrap_err();
    assert_eq!((&*fault.reason, fault.retry_after.is_some()), ("TooManyTakers", true));
}

#[test]
fn room_ends_at_the_bound_but_never_below_one_batch() {
    let mut world = World::new(config(2, OnStale::Abort));
    let running = |groups, trajectories| Running { groups, trajectories };
    assert_eq!(world.buffer.bound(), 2 * 4 + 2 * 2);
    assert_eq!(world.buffer.room(running(0, 0)), 12);
    assert_eq!(world.buffer.room(running(4, 11)), 1);
    assert_eq!(world.buffer.room(running(4, 12)), 0);
    // One group of many trajectories alone: a batch needs two groups.
    assert_eq!(world.buffer.room(running(1, 12)), 1);
    world.settle(settled(0, 12, 10, 10));
    assert_eq!(world.buffer.room(running(0, 0)), 1);
    assert_eq!(world.buffer.room(running(1, 1)), 0);
    assert_eq!(world.take(0, Some(3)), None);
    assert_eq!(world.buffer.room(running(1, 1)), 1);
}

#[test]
fn the_trainer_s_times_are_counted() {
    let mut world = World::new(config(1, OnStale::Abort));
    world.take(0, Some(1));
    world.now = secs(3);
    world.take(1, Some(1));
    world.now = secs(5);
    world.send(Event::Leave(Taker(0))).unwrap();
    assert_eq!(world.buffer.stats(secs(6)).trainer_waited, Duration::from_secs(6));
    world.now = secs(7);
    world.settle(settled(0, 2, 10, 10));
    world.now = secs(9);
    let stats = world.buffer.stats(world.now);
    assert_eq!(stats.trainer_waited, Duration::from_secs(7));
    assert_eq!(stats.trainer_held, Duration::from_secs(2));
    assert_eq!(world.given[&BatchId(1)].waited, Duration::from_secs(4));
    world.send(Event::Ack(BatchId(1))).unwrap();
    let stats = world.buffer.stats(secs(20));
    assert_eq!((stats.trainer_held, stats.acknowledged), (Duration::from_secs(2), 1));
}
