//! A resident serves those that wait for it for as long as its restore takes before it makes
//! room: calls in turn do not cost a restore each, and nobody waits longer for that.

use std::time::Duration;

use proptest::prelude::*;

use super::reports::Outcome;
use super::rules::{orders, pair};
use super::world::{World, action, kind, node, secs, service};
use crate::gpu::{Event, Order};
use crate::ids::ActionId;
use crate::time::Time;

const EVICT: Duration = Duration::from_secs(1);
const WAKE: Duration = Duration::from_secs(2);
/// How long a resident goes on.
const TERM: Duration = Duration::from_secs(3);

/// What is ordered is done in the time that it is expected to take, and what was submitted first
/// of all that run ends after `call`; whichever is under way. False: nothing is.
fn go_on(world: &mut World, call: Duration) -> bool {
    let takes = match world.tasks.first().map(|task| task.what) {
        Some(Order::Launch) => secs(20),
        Some(Order::Wake) => WAKE,
        Some(Order::Evict | Order::Stop) => EVICT,
        None if running(world).next().is_some() => call,
        None => return false,
    };
    world.pass(takes);
    if world.tasks.is_empty() {
        let first = running(world).enumerate().min_by_key(|(_, id)| number(id));
        let (first, _) = first.expect("one runs");
        world.finish(first, true);
    } else {
        world.report(0, Outcome::Good);
    }
    true
}

/// In the order in which [`World::finish`] has them.
fn running(world: &World) -> impl Iterator<Item = &ActionId> {
    world.processes.values().flat_map(|process| process.running.iter())
}

fn number(id: &ActionId) -> usize {
    id.as_str()[1..].parse().unwrap()
}

fn restores(world: &World) -> usize {
    orders(world).iter().filter(|order| matches!(order, Order::Launch | Order::Wake)).count()
}

fn has_begun(world: &World, id: &ActionId) -> bool {
    world.pool.runs_on(id).is_some() || world.ended.contains_key(id)
}

#[test]
fn short_calls_in_turn_share_a_restore() {
    let mut world = pair();
    (0..100).for_each(|n| world.submit(n, kind(n % 2, 1), 10_000));
    while go_on(&mut world, Duration::from_millis(10)) {}
    assert!((0..100).all(|n| world.result(n) == Some(Ok(()))));
    assert_eq!(orders(&world), [Order::Launch, Order::Evict, Order::Launch]);
}

#[test]
fn long_calls_go_in_order_of_submission() {
    let mut world =
        World::new(["one", "two"].map(|name| service(name, 1, &[(1, 6, 1, 1)])).to_vec(), &[1]);
    (0..6).for_each(|n| world.submit(n, kind(n % 2, 1), 10_000));
    while go_on(&mut world, secs(3)) {}
    assert!((0..6).all(|n| world.result(n) == Some(Ok(()))));
    assert_eq!(restores(&world), 6);
}

#[test]
fn a_term_protects_nothing_that_nobody_waits_for() {
    let mut world = pair();
    world.submit(0, kind(0, 1), 1000);
    world.settle();
    world.submit(1, kind(1, 1), 1000);
    assert_eq!(orders(&world), [Order::Launch, Order::Evict]);
    // Nor one whose node is drained.
    world.settle();
    (2..5).for_each(|n| world.submit(n, kind(1, 1), 1000));
    world.drain(&node(0), true);
    world.finish(0, true);
    assert_eq!(world.given.last().map(|(order, _)| *order), Some(Order::Stop));
}

proptest! {
    /// However many calls of one service there are, and however long: one of another waits for
    /// those that came before it, a term, and its own restore.
    #[test]
    fn an_endless_line_keeps_another_waiting_for_a_term_at_most(
        millis in 1u64..5_000,
        after in 0usize..40,
    ) {
        let (mut world, call) = (pair(), Duration::from_millis(millis));
        let other = action(1_000_000);
        (0..3).for_each(|n| world.submit(n, kind(0, 1), 1_000_000));
        let mut submitted = 3;
        let mut asked = None;
        for step in 0..10_000 {
            if step == after {
                world.submit(1_000_000, kind(1, 1), 1_000_000);
                asked = Some(world.now);
            }
            while world.open.len() < 4 {
                world.submit(submitted, kind(0, 1), 1_000_000);
                submitted += 1;
            }
            if has_begun(&world, &other) {
                break;
            }
            prop_assert!(go_on(&mut world, call));
        }
        prop_assert!(has_begun(&world, &other));
        // Where it was asked for during the first launch, that counts as well.
        let most = secs(20) + call * 4 + TERM + EVICT + secs(20);
        let waited = world.now.since(asked.unwrap());
        prop_assert!(waited <= most, "{waited:?} of {most:?}");
    }

    /// All that wait are served with at most a restore for each `TERM` of service, but for the
    /// first of each service and the last.
    #[test]
    fn restores_take_no_more_than_the_service_between_them(
        calls in prop::collection::vec((0usize..3, 1u64..4_000), 1..90),
    ) {
        let services = ["a", "b", "c"].map(|name| service(name, 1, &[(1, 6, 0, 1)]));
        let mut world = World::new(services.to_vec(), &[1]);
        for (n, (service, _)) in calls.iter().enumerate() {
            world.submit(n, kind(*service, 1), 1_000_000);
        }
        let takes = |id: &ActionId| Duration::from_millis(calls[number(id)].1);
        let mut served = Duration::ZERO;
        loop {
            let call = running(&world).next().map_or(Duration::ZERO, takes);
            if world.tasks.is_empty() {
                served += call;
            }
            if !go_on(&mut world, call) {
                break;
            }
        }
        prop_assert!(world.open.is_empty());
        let terms = served.as_millis().div_ceil(TERM.as_millis());
        let most = usize::try_from(terms).unwrap() + 2 * 3;
        prop_assert!(restores(&world) <= most, "{} restores, {most} at most", restores(&world));
        world.send(Event::Tick);
    }

    /// Whatever fits beside what: where each of a few services has a caller who calls again as
    /// soon as he is answered, none of them waits for ever.
    #[test]
    fn nobody_is_kept_waiting_by_callers_who_come_again(
        sizes in prop::collection::vec((1u64..=10, 1u32..=2), 2..5),
        millis in 1u64..4_000,
    ) {
        let of = |(n, (bytes, gpus)): (usize, &(u64, u32))| {
            service(&format!("s{n}"), 1, &[(*gpus, *bytes, 0, 1)])
        };
        let services: Vec<_> = sizes.iter().enumerate().map(of).collect();
        let mut world = World::new(services, &[2]);
        let call = Duration::from_millis(millis);
        // Of each service the call of its caller, and since when.
        let mut calls: Vec<Option<(ActionId, Time)>> = vec![None; sizes.len()];
        let mut submitted = 0;
        // Each of the others moves away and back, serves its term, and a call more.
        let round = (secs(20) + EVICT + TERM + call * 4) * 2;
        let most = round * u32::try_from(sizes.len()).unwrap() * 2;
        for _ in 0..400 {
            let now = world.now;
            for (n, at) in calls.iter_mut().enumerate() {
                if at.as_ref().is_none_or(|(id, _)| world.ended.contains_key(id)) {
                    world.submit(submitted, kind(n, sizes[n].1), 1_000_000);
                    *at = Some((action(submitted), now));
                    submitted += 1;
                }
                let (id, since) = at.as_ref().unwrap();
                let waited = now.since(*since);
                prop_assert!(waited <= most, "{id} waits for {waited:?}: {:?}", world.pool);
            }
            prop_assert!(go_on(&mut world, call));
        }
    }
}
