//! Engines that a driver can move: they wait for no GPU while another would do.

use proptest::prelude::*;

use super::reports::Outcome;
use super::rules::orders;
use super::world::{World, action, kind, node, secs, service};
use crate::gpu::{Event, Order, Residency, ServiceIndex, State};

/// Services that do not fit on a GPU together, all movable but those from `bound` on.
fn world(services: usize, bound: usize, gpus: u32) -> World {
    let services = (0..services).map(|n| service(&format!("s{n}"), 1, &[(1, 6, 1, 1)]));
    let mut world = World::new(services.collect(), &[gpus]);
    world.movable.extend((0..bound).map(ServiceIndex));
    world
}

/// GPUs of the engines, in the order of their launches.
fn places(world: &World) -> Vec<u32> {
    world.processes.values().map(|process| process.chunk.start()).collect()
}

/// Two services that were served on GPU 0, of which the first sleeps, and GPU 1 is well again.
fn asleep_on_a_full_gpu(bound: usize) -> World {
    let mut world = world(3, bound, 2);
    world.gpu(&node(0), 1, true);
    for n in 0..2 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
    }
    world.gpu(&node(0), 1, false);
    world
}

#[test]
fn one_whose_gpu_is_taken_comes_back_on_another() {
    let mut world = asleep_on_a_full_gpu(2);
    world.submit(2, kind(0, 1), 1000);
    assert_eq!(orders(&world)[3..], [Order::Wake], "nothing has to leave");
    world.settle();
    assert_eq!((world.result(2), places(&world)), (Some(Ok(())), vec![1, 0]));
    // It goes on from there, and stays where it can.
    world.submit(3, kind(0, 1), 1000);
    world.settle();
    assert_eq!((world.result(3), orders(&world).len()), (Some(Ok(())), 4));
}

#[test]
fn one_that_cannot_be_moved_waits_for_its_own() {
    let mut world = asleep_on_a_full_gpu(0);
    world.submit(2, kind(0, 1), 1000);
    assert_eq!(orders(&world)[3..], [Order::Evict]);
    world.settle();
    assert_eq!((world.result(2), places(&world)), (Some(Ok(())), vec![0, 0]));
}

#[test]
fn one_that_can_go_anywhere_stays_where_that_costs_nothing_more() {
    let mut world = world(1, 1, 4);
    world.gpu(&node(0), 0, true);
    world.submit(0, kind(0, 1), 1000);
    world.settle();
    let process = world.processes.values_mut().next().unwrap();
    (process.awake, process.held, process.answers) = (false, 0, false);
    world.replace_pool();
    world.gpu(&node(0), 0, false);
    world.submit(1, kind(0, 1), 1000);
    world.settle();
    assert_eq!((world.result(1), places(&world)), (Some(Ok(())), vec![1]));
}

#[test]
fn what_keeps_nothing_leaves_all_room_to_others() {
    // Each declares a residue of 1: were it counted, the eleventh would have none of a GPU's 10.
    let mut world = world(12, 12, 1);
    for n in 0..12 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
        assert_eq!(world.result(n), Some(Ok(())), "service {n}");
    }
    assert!(!orders(&world).contains(&Order::Stop), "{:?}", world.given);
}

#[test]
fn a_place_that_is_taken_back_leaves_it_where_it_was() {
    let mut world = asleep_on_a_full_gpu(2);
    // One executes on GPU 1 and another is launched there: a promise is all that it gets.
    world.submit(2, kind(2, 1), 1000);
    world.submit(3, kind(1, 1), 1000);
    world.report(0, Outcome::Good);
    world.submit(4, kind(0, 1), 1000);
    let waits = world.pool.engines().find(|view| view.residency == Residency::Absent);
    assert!(waits.is_some(), "it waits");
    // Its node is drained and is back: it is found where it left.
    world.leave(&node(0));
    world.join(&node(0), false);
    world.settle();
    assert_eq!(world.result(4), Some(Ok(())));
}

#[test]
fn an_order_that_did_not_arrive_is_given_again() {
    let mut world = asleep_on_a_full_gpu(2);
    // The link is broken, and the pool does not know yet.
    world.machines.get_mut(&node(0)).unwrap().up = false;
    world.submit(2, kind(0, 1), 1000);
    assert!(world.tasks.is_empty() && places(&world) == [0, 0]);
    world.send(Event::Left(node(0)));
    world.join(&node(0), false);
    assert!(world.pool.engines().all(|view| view.residency != Residency::Failed));
    world.settle();
    assert_eq!((world.result(2), places(&world)), (Some(Ok(())), vec![1, 0]));
}

#[test]
fn one_beside_an_engine_that_does_not_end_is_served_elsewhere() {
    let mut world = asleep_on_a_full_gpu(2);
    let beside = world.pool.engines().nth(1).unwrap().engine;
    world.send(Event::Broke(beside, crate::gpu::Trouble::Hung));
    for _ in 0..2 {
        world.report(0, Outcome::TimedOut);
        world.pass(secs(8));
    }
    world.submit(2, kind(0, 1), 1000);
    world.report(1, Outcome::Good);
    world.finish(0, true);
    assert_eq!((world.result(2), orders(&world).last()), (Some(Ok(())), Some(&Order::Wake)));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Submit(usize),
    Report(usize),
    Finish(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..6).prop_map(Step::Submit),
        4 => any::<usize>().prop_map(Step::Report),
        2 => any::<usize>().prop_map(Step::Finish),
    ]
}

proptest! {
    /// Nobody waits for a service of which an engine sleeps, and was promised no place, while a
    /// GPU has no resident.
    #[test]
    fn nobody_waits_while_a_gpu_is_free(
        gpus in 1u32..5,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = world(6, 6, gpus);
        let mut submitted = 0;
        for step in steps {
            match step {
                Step::Submit(service) => {
                    world.submit(submitted, kind(service, 1), 100_000);
                    submitted += 1;
                }
                Step::Report(pick) => world.report(pick, Outcome::Good),
                Step::Finish(pick) => world.finish(pick, true),
            }
            for service in (0..6).map(ServiceIndex) {
                let of = |view: &crate::gpu::EngineView| view.kind.service == service;
                let asleep = world.processes.iter().any(|(id, process)| {
                    process.kind.service == service && process.held == 0
                        && world.pool.engines.get(id).is_some_and(|of| of.state == State::Asleep)
                });
                let awake = world.pool.engines().filter(of).any(|view| view.residency != Residency::Absent);
                let waits = world.pool.waiting(service) > 0;
                let free = world.pool.free().gpus();
                prop_assert!(
                    !(waits && asleep && !awake && free > 0),
                    "service {service:?} waits beside {free} free GPUs: {:?}", world.pool
                );
            }
        }
        world.settle();
        prop_assert!((0..submitted).all(|n| world.result(n) == Some(Ok(()))));
        prop_assert!(world.ended.contains_key(&action(0)) || submitted == 0);
    }
}
