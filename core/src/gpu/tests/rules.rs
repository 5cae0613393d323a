//! Each rule by itself, and each failure with what it leads to.

use super::reports::Outcome;
use super::world::{MEMORY, World, action, kind, node, secs, service, services};
use crate::fault::{Fault, FaultKind};
use crate::gpu::{
    Degree, ENGINE_UNREACHABLE, Event, Order, Phase, Residency, ServiceIndex, Trouble,
};

/// One GPU, and two services that do not fit on it together.
pub(super) fn pair() -> World {
    let one = service("one", 2, &[(1, 6, 1, 1)]);
    let two = service("two", 1, &[(1, 6, 1, 1)]);
    World::new(vec![one, two], &[1])
}

pub(super) fn orders(world: &World) -> Vec<Order> {
    world.given.iter().map(|(order, _)| *order).collect()
}

/// Actions 1 to 4 of a narrow service execute on four GPUs. It and a wide one take so many bytes
/// of each; action 0 has shown that launches are worth it.
pub(super) fn four_execute(bytes: u64) -> World {
    let narrow = service("narrow", 1, &[(1, bytes, 0, 1)]);
    let wide = service("wide", 1, &[(4, bytes, 0, 1)]);
    let mut world = World::new(vec![narrow, wide], &[4]);
    world.submit(0, kind(0, 1), 10_000);
    world.report(0, Outcome::Good);
    world.pass(secs(100));
    world.finish(0, true);
    (1..5).for_each(|n| world.submit(n, kind(0, 1), 10_000));
    (0..3).for_each(|_| world.report(0, Outcome::Good));
    world
}

fn reason(world: &World, n: usize) -> &str {
    world.result(n).expect("it has ended").expect_err("it has failed")
}

#[test]
fn a_service_is_launched_once_then_evicted_and_woken() {
    let mut world = pair();
    for (n, service) in [0, 1, 0, 1].into_iter().enumerate() {
        world.submit(n, kind(service, 1), 1000);
        world.settle();
        assert_eq!(world.result(n), Some(Ok(())));
    }
    let expected = [
        Order::Launch,
        Order::Evict,
        Order::Launch,
        Order::Evict,
        Order::Wake,
        Order::Evict,
        Order::Wake,
    ];
    assert_eq!(orders(&world), expected);
    let stats = world.pool.stats();
    assert_eq!((stats.runs, stats.launches, stats.wakes, stats.evictions), (4, 2, 2, 3));
    // The resident stays where it is.
    world.submit(4, kind(1, 1), 1000);
    world.settle();
    assert_eq!((world.given.len(), world.pool.stats().runs), (7, 5));
}

#[test]
fn times_are_learned_and_told_to_the_scheduler() {
    let mut world = pair();
    let (one, two) = (kind(0, 1), kind(1, 1));
    let to_start =
        |world: &World, kind: crate::gpu::Kind| world.pool.time_to_start(kind.service, kind.degree);
    assert_eq!(to_start(&world, one), Some(secs(20)));
    world.submit(0, one, 1000);
    assert_eq!(to_start(&world, two), None);
    world.pass(secs(40));
    world.report(0, Outcome::Good);
    assert_eq!(world.pool.expected(one, Phase::Launch), Some(secs(40)));
    world.pass(secs(4));
    world.finish(0, true);
    assert_eq!(world.pool.expected(one, Phase::Run), Some(secs(4)));
    assert_eq!(to_start(&world, one), Some(secs(0)));
    // An eviction as declared, and a launch.
    assert_eq!(to_start(&world, two), Some(secs(21)));
    world.submit(1, two, 1000);
    world.pass(secs(3));
    world.report(0, Outcome::Good);
    world.settle();
    // An eviction as measured, and a wake.
    assert_eq!(to_start(&world, one), Some(secs(1 + 2)));
    assert_eq!(world.pool.expected(one, Phase::Evict), Some(secs(3)));
}

#[test]
fn those_that_wait_together_run_together_up_to_the_batch() {
    let mut world = pair();
    (0..3).for_each(|n| world.submit(n, kind(0, 1), 1000));
    world.submit(3, kind(1, 1), 1000);
    (4..7).for_each(|n| world.submit(n, kind(1, 1), 1000));
    world.report(0, Outcome::Good);
    let running = |world: &World| world.processes.values().map(|p| p.running.len()).sum::<usize>();
    assert_eq!(running(&world), 2);
    world.finish(0, true);
    // The third of the batch came before the other service's first.
    assert_eq!((running(&world), world.pool.waiting(ServiceIndex(0))), (2, 0));
    world.submit(7, kind(0, 1), 1000);
    // It has served for as long as it takes to move it away and back.
    world.pass(secs(3));
    world.finish(0, true);
    // The eighth came later than those that wait for the GPU.
    assert_eq!((running(&world), world.pool.waiting(ServiceIndex(0))), (1, 1));
    world.settle();
    assert!((0..8).all(|n| world.result(n) == Some(Ok(()))));
}

#[test]
fn a_wide_action_is_not_starved_by_narrow_ones() {
    let mut world = four_execute(6);
    assert_eq!(world.pool.stats().runs, 5);
    world.submit(5, kind(1, 4), 10_000);
    for n in 6..30 {
        world.submit(n, kind(0, 1), 10_000);
    }
    world.pass(secs(3));
    // Those that run end, none that came later starts, and the wide one is launched.
    let runs = world.pool.stats().runs;
    while world.pool.stats().runs == runs && world.processes.values().any(|p| !p.running.is_empty())
    {
        world.finish(0, true);
    }
    assert_eq!(world.pool.stats().runs, runs);
    while world.result(5).is_none() {
        world.report(0, Outcome::Good);
        world.finish(0, true);
    }
    world.settle();
    assert!((0..30).all(|n| world.result(n) == Some(Ok(()))));
}

#[test]
fn what_a_sleeper_keeps_is_counted() {
    // Eight that sleep leave no room for the ninth to be resident.
    let nine = (0..9).map(|n| service(&format!("s{n}"), 1, &[(1, 3, 1, 1)]));
    let mut world = World::new(nine.collect(), &[1]);
    for n in 0..9 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
        assert_eq!(world.result(n), Some(Ok(())), "service {n}");
    }
    let held: u64 = world.processes.values().map(|process| process.held).sum();
    assert!(held <= MEMORY && orders(&world).contains(&Order::Stop), "{:?}", world.given);
}

/// A wake of the first service fails in this way while one waits for it.
fn failed_wake(outcome: Outcome) -> World {
    let mut world = pair();
    for n in 0..2 {
        world.submit(n, kind(n, 1), 1000);
        world.settle();
    }
    world.submit(2, kind(0, 1), 30);
    world.report(0, Outcome::Good);
    world.report(0, outcome);
    world
}

#[test]
fn a_wake_that_failed_is_known_by_its_reason() {
    let cases = [
        (Outcome::Lies, "WakeLied"),
        (Outcome::MemoryStays, "DeviceMemoryOutgrown"),
        (Outcome::Mute, "EngineMute"),
        (Outcome::Refused, "HostMemoryShort"),
        (Outcome::TimedOut, "WakeTimedOut"),
        (Outcome::Dies, "EngineDied"),
    ];
    for (outcome, expected) in cases {
        let mut world = failed_wake(outcome);
        assert_eq!(world.pool.stats().failures, 1, "{outcome:?}");
        let failed: Vec<_> = world.pool.failures_by_reason(kind(0, 1).service).collect();
        assert_eq!(failed, [(expected, 1)]);
        assert!(Trouble::REASONS.contains(&expected));
        // Its process cannot be ended either: the action ends by its deadline, typed.
        world.pass(secs(31));
        assert_eq!(reason(&world, 2), expected);
        let fault = world.ended[&action(2)].clone().unwrap_err();
        assert_eq!(fault.kind, FaultKind::Infrastructure);
        assert!(fault.message.starts_with("reward service `one` on GPU 0 of node `n0`: "));
    }
}

#[test]
fn a_wake_that_failed_is_tried_again_in_time() {
    for outcome in [Outcome::Lies, Outcome::TimedOut, Outcome::Dies, Outcome::Mute] {
        let mut world = failed_wake(outcome);
        world.settle();
        // It is left alone for a while.
        assert_eq!(world.result(2), None);
        world.pass(secs(2));
        world.settle();
        assert_eq!(world.result(2), Some(Ok(())), "{outcome:?}");
    }
}

#[test]
fn an_agent_that_reports_nothing_is_not_waited_for_without_end() {
    let mut world = failed_wake(Outcome::Silent);
    assert_eq!(world.pool.stats().failures, 0);
    world.pass(secs(13));
    assert_eq!(world.pool.stats().failures, 1);
    world.settle();
    world.pass(secs(2));
    world.settle();
    assert_eq!(world.result(2), Some(Ok(())));
}

#[test]
fn a_gpu_is_given_on_only_when_its_memory_is_back() {
    for outcome in [Outcome::Lies, Outcome::MemoryStays, Outcome::TimedOut, Outcome::Refused] {
        let mut world = pair();
        world.submit(0, kind(0, 1), 1000);
        world.settle();
        world.submit(1, kind(1, 1), 1000);
        world.report(0, outcome);
        assert_eq!(world.given.last().map(|(order, _)| *order), Some(Order::Stop));
        // Even its end leaves the memory taken at first.
        world.report(0, Outcome::MemoryStays);
        let held = |world: &World| world.processes.values().map(|p| p.held).sum::<u64>();
        assert_eq!((held(&world), orders(&world).contains(&Order::Wake)), (6, false));
        let view = world.pool.engines().next().unwrap();
        assert_eq!(view.residency, Residency::Failed);
        assert_eq!(world.pool.free().gpus(), 0);
        world.pass(secs(2));
        world.settle();
        assert_eq!(world.result(1), Some(Ok(())), "{outcome:?}");
    }
}

#[test]
fn an_engine_that_dies_takes_its_actions_with_it() {
    let mut world = pair();
    (0..3).for_each(|n| world.submit(n, kind(0, 1), 1000));
    world.report(0, Outcome::Good);
    let engine = *world.processes.keys().next().unwrap();
    world.die(engine);
    assert_eq!((reason(&world, 0), reason(&world, 1)), ("EngineDied", "EngineDied"));
    world.settle();
    world.pass(secs(2));
    world.settle();
    assert_eq!(world.result(2), Some(Ok(())));
}

#[test]
fn an_engine_that_cannot_be_reached_is_ended_though_its_process_lives() {
    let mut world = pair();
    (0..3).for_each(|n| world.submit(n, kind(0, 1), 1000));
    world.report(0, Outcome::Good);
    let engine = *world.processes.keys().next().unwrap();
    world.processes.get_mut(&engine).unwrap().running.remove(&action(0));
    let fault = Fault::new(FaultKind::Infrastructure, ENGINE_UNREACHABLE, "refused");
    world.send(Event::Finished { action: action(0), engine, result: Err(fault) });
    assert_eq!((reason(&world, 0), reason(&world, 1)), (ENGINE_UNREACHABLE, "EngineMute"));
    world.settle();
    world.pass(secs(2));
    world.settle();
    assert_eq!(world.result(2), Some(Ok(())));
}

#[test]
fn a_gpu_that_falls_off_fails_what_runs_there_and_is_used_no_more() {
    let mut world = World::new(services(), &[4]);
    world.submit(0, kind(2, 4), 1000);
    world.report(0, Outcome::Good);
    world.gpu(&node(0), 3, true);
    assert_eq!(reason(&world, 0), "GpuLost");
    world.settle();
    world.submit(1, kind(2, 4), 10);
    (2..6).for_each(|n| world.submit(n, kind(1, 1), 1000));
    world.settle();
    assert!((2..6).all(|n| world.result(n) == Some(Ok(()))));
    world.pass(secs(11));
    assert_eq!(reason(&world, 1), "GpuLost");
    world.gpu(&node(0), 3, false);
    world.submit(6, kind(2, 4), 1000);
    world.settle();
    assert_eq!(world.result(6), Some(Ok(())));
}

#[test]
fn what_can_never_run_is_refused_with_what_would_be_right() {
    let mut world = World::new(
        vec![
            service("wide", 1, &[(8, 1, 0, 1)]),
            service("large", 1, &[(1, MEMORY + 1, 0, 1)]),
            service("heavy", 1, &[(1, 1, 0, 1000)]),
        ],
        &[4],
    );
    let kinds = [kind(0, 8), kind(1, 1), kind(2, 1), kind(0, 1), kind(9, 1)];
    for (n, kind) in kinds.into_iter().enumerate() {
        world.submit(n, kind, 1000);
    }
    let expected = [
        "DegreeFitsNoChunk",
        "DeviceMemoryShort",
        "HostMemoryShort",
        "DegreeNotOffered",
        "UnknownRewardService",
    ];
    for (n, expected) in expected.into_iter().enumerate() {
        assert_eq!(reason(&world, n), expected);
        assert_eq!(world.ended[&action(n)].as_ref().unwrap_err().kind, FaultKind::User);
    }
    for n in 10..200 {
        world.submit(n, kind(0, 8), 1000);
    }
    assert_eq!(world.open.len(), 0);
}

#[test]
fn no_more_actions_than_the_bound_are_taken() {
    let mut world = pair();
    (0..101).for_each(|n| world.submit(n, kind(0, 1), 1000));
    assert_eq!((reason(&world, 100), world.open.len()), ("QueueFull", 100));
    assert!(world.ended[&action(100)].as_ref().unwrap_err().retry_after.is_some());
}

#[test]
fn a_node_that_is_drained_during_a_restore_is_left_for_another() {
    let mut world = World::new(services(), &[4, 4]);
    world.submit(0, kind(2, 4), 1000);
    assert_eq!(world.tasks[0].node, node(0));
    world.drain(&node(0), true);
    // The launch is broken off, and another node takes it.
    assert_eq!(orders(&world), [Order::Launch, Order::Stop, Order::Launch]);
    assert!(world.drained.is_empty());
    world.settle();
    assert_eq!((world.result(0), world.drained.clone()), (Some(Ok(())), vec![node(0)]));
    // One that executes goes when it has ended.
    world.submit(1, kind(2, 4), 1000);
    world.drain(&node(1), true);
    assert_eq!(world.drained.len(), 1);
    world.settle();
    assert_eq!((world.result(1), world.drained.len()), (Some(Ok(())), 2));
    assert!(world.processes.is_empty());
}

#[test]
fn one_that_should_have_begun_waits_no_longer_and_one_that_runs_goes_on() {
    let mut world = pair();
    (0..2).for_each(|n| world.submit(n, kind(1, 1), 1000));
    world.report(0, Outcome::Good);
    (0..2).for_each(|n| world.send(Event::Late(action(n))));
    assert_eq!((world.result(0), reason(&world, 1)), (None, "GpuDeadline"));
}

#[test]
fn the_degree_is_the_one_that_costs_least() {
    let degree = |gpus| Degree::new(gpus).unwrap();
    let mut world = World::new(services(), &[4]);
    let choose = |world: &World| world.pool.choose(ServiceIndex(0), &[]).unwrap();
    // Nothing is known of durations: the one that is there soonest, the smaller of equals.
    assert_eq!(choose(&world), degree(1));
    for (gpus, takes) in [(1, 8), (2, 6)] {
        world.submit(gpus as usize, kind(0, gpus), 10_000);
        world.report(0, Outcome::Good);
        world.pass(secs(takes));
        world.settle();
    }
    assert_eq!(choose(&world), degree(2));
    assert_eq!(world.pool.choose(ServiceIndex(0), &[degree(1)]), Some(degree(1)));
    assert_eq!(world.pool.choose(ServiceIndex(0), &[degree(8)]), None);
    // Where others wait, what it takes from them counts as well.
    (10..14).for_each(|n| world.submit(n, kind(2, 4), 10_000));
    (20..24).for_each(|n| world.submit(n, kind(1, 1), 10_000));
    assert_eq!(choose(&world), degree(1));
}

#[test]
fn one_that_runs_too_long_is_cancelled_and_its_engine_ended_if_it_must_be() {
    let mut world = pair();
    world.submit(0, kind(0, 1), 100);
    world.report(0, Outcome::Good);
    world.pass(secs(100));
    assert_eq!(reason(&world, 0), "RewardTimeout");
    // Its GPU is in use until it has ended.
    assert_eq!(world.pool.engines().next().unwrap().running, 1);
    world.pass(secs(2));
    assert_eq!(orders(&world), [Order::Launch, Order::Stop]);
    world.submit(1, kind(1, 1), 1000);
    world.send(Event::Cancel(action(1)));
    assert_eq!(world.ended[&action(1)].as_ref().unwrap_err().kind, FaultKind::Cancelled);
}

#[test]
fn troubles_have_words_for_people() {
    let kept = Trouble::MemoryKept { held: 7, declared: 1 };
    assert_eq!(kept.to_string(), "it sleeps, but keeps 7 bytes of a GPU where 1 are declared");
    assert_eq!(Trouble::TimedOut(Order::Wake).to_string(), "it did not wake up in time");
}
