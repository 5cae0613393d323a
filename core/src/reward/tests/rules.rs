//! Single rules, one test each.

use std::time::Duration;

use super::world::{World, busy, fault, service, teacher, trajectory};
use crate::fault::FaultKind;
use crate::reward::{Service, ServiceIndex};
use crate::time::Time;

fn one() -> World {
    World::new(vec![service("a", &[])])
}

fn narrow(concurrency: usize) -> World {
    World::new(vec![Service { concurrency, ..service("a", &[]) }])
}

fn called(world: &World) -> Vec<String> {
    world.calls.values().map(|made| made.trajectory.to_string()).collect()
}

fn secs(secs: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(secs)
}

#[test]
fn the_first_service_that_takes_the_task_scores_it() {
    let mut world = World::new(vec![
        service("a", &["math"]),
        service("b", &["math", "swe"]),
        service("c", &[]),
    ]);
    for (n, on) in ["math", "swe", "web"].into_iter().enumerate() {
        world.score(n, on);
    }
    let services: Vec<_> = world.calls.values().map(|made| made.service.0).collect();
    assert_eq!(services, [0, 1, 2]);
}

#[test]
fn a_task_that_no_service_takes_is_a_fault() {
    let mut world = World::new(vec![service("a", &["math"])]);
    world.score(0, "swe");
    let (_, result) = world.scored.pop().unwrap();
    let fault = result.unwrap_err();
    assert_eq!((fault.kind, &*fault.reason), (FaultKind::User, "NoRewardService"));
}

#[test]
fn at_most_so_many_calls_in_order_of_asking() {
    let mut world = narrow(2);
    (0..4).for_each(|n| world.score(n, "math"));
    assert_eq!(called(&world), ["t0", "t1"]);
    world.answer(0, Ok(1.0));
    assert_eq!(called(&world), ["t1", "t2"]);
    world.cancel(2);
    // The cancelled call still runs until its end is reported.
    assert_eq!(called(&world), ["t1", "t2"]);
    world.answer(1, Err(fault(FaultKind::Cancelled)));
    assert_eq!(called(&world), ["t1", "t3"]);
}

#[test]
fn a_reward_is_passed_on_and_no_number_is_refused() {
    let mut world = one();
    (0..3).for_each(|n| world.score(n, "math"));
    world.answer(0, Ok(0.5));
    world.answer(0, Ok(f64::NAN));
    world.answer(0, Ok(f64::INFINITY));
    assert_eq!(world.scored[0], (trajectory(0), Ok(0.5)));
    for (_, result) in &world.scored[1..] {
        assert_eq!(result.as_ref().unwrap_err().reason, "RewardNotFinite");
    }
    assert_eq!(world.rewards.stats(ServiceIndex(0)).unwrap().answered, 1);
}

#[test]
fn infrastructure_is_tried_again_with_growing_waits_and_then_reported() {
    let mut world = one();
    world.score(0, "math");
    for _ in 0..3 {
        world.answer(0, Err(fault(FaultKind::Infrastructure)));
        world.pass(5.0);
    }
    let attempts: Vec<_> = world.made.iter().map(|(at, _, attempt)| (*at, *attempt)).collect();
    let [(first, 1), (second, 2), (third, 3)] = attempts[..] else { panic!("{attempts:?}") };
    let in_range = |wait: Duration, most: f64| (most / 2.0..=most).contains(&wait.as_secs_f64());
    assert!(in_range(second.since(first), 1.0), "{attempts:?}");
    assert!(in_range(third.since(secs(5.0)), 2.0), "{attempts:?}");
    assert_eq!(world.scored, [(trajectory(0), Err(fault(FaultKind::Infrastructure)))]);
}

#[test]
fn what_is_no_fault_of_infrastructure_is_final() {
    for kind in [FaultKind::Action, FaultKind::User] {
        let mut world = one();
        world.score(0, "math");
        world.answer(0, Err(fault(kind)));
        assert_eq!(world.scored, [(trajectory(0), Err(fault(kind)))]);
    }
}

#[test]
fn retry_after_holds_for_the_whole_service_and_costs_no_try() {
    let mut world = one();
    (0..3).for_each(|n| world.score(n, "math"));
    for _ in 0..5 {
        world.answer(0, Err(busy(7)));
        world.answer(0, Err(busy(7)));
        assert_eq!(called(&world), [""; 0]);
        world.pass(6.9);
        assert_eq!(called(&world), [""; 0]);
        world.pass(0.2);
        assert_eq!(called(&world), ["t0", "t1"]);
    }
    assert!(world.circuits.is_empty() && world.scored.is_empty());
}

#[test]
fn a_service_that_only_sends_away_is_given_up_in_time() {
    let mut world = one();
    world.score(0, "math");
    for _ in 0..50 {
        world.answer(0, Err(busy(0)));
        world.pass(2.0);
    }
    world.answer(0, Err(busy(0)));
    assert_eq!(world.scored, [(trajectory(0), Err(busy(0)))]);
    assert!(world.made.len() <= 101, "a time of 0 is no busy loop: {}", world.made.len());
}

#[test]
fn a_call_without_an_answer_is_cancelled_and_tried_again() {
    let mut world = one();
    world.score(0, "math");
    world.pass(10.5);
    let cancelled: Vec<_> = world.calls.values().map(|made| made.cancelled).collect();
    assert_eq!(cancelled, [true]);
    // Its late answer is nobody's.
    world.answer(0, Ok(1.0));
    assert_eq!(world.scored, []);
    world.pass(1.0);
    world.answer(0, Ok(0.25));
    assert_eq!(world.scored, [(trajectory(0), Ok(0.25))]);
}

#[test]
fn faults_in_a_row_open_the_circuit_and_a_probe_closes_it() {
    let mut world = one();
    (0..6).for_each(|n| world.score(n, "math"));
    for _ in 0..4 {
        world.answer(0, Err(fault(FaultKind::Infrastructure)));
    }
    assert_eq!(world.circuits, [(ServiceIndex(0), true)]);
    world.answer(0, Err(fault(FaultKind::Infrastructure)));
    world.pass(4.9);
    assert_eq!(called(&world), [""; 0]);
    world.pass(0.2);
    assert_eq!(world.calls.len(), 1, "one probe");
    world.answer(0, Err(fault(FaultKind::Infrastructure)));
    world.pass(9.8);
    assert_eq!(world.calls.len(), 0, "twice as long");
    world.pass(0.2);
    assert_eq!(world.calls.len(), 1);
    world.answer(0, Ok(1.0));
    assert_eq!(world.circuits, [(ServiceIndex(0), true), (ServiceIndex(0), false)]);
    assert_eq!(world.calls.len(), 2);
}

/// Six wait, two calls are in flight no more, and the circuit has opened at 0 s for 5 s.
fn open_circuit() -> World {
    let mut world = one();
    (0..6).for_each(|n| world.score(n, "math"));
    for _ in 0..5 {
        world.answer(0, Err(fault(FaultKind::Infrastructure)));
    }
    world.pass(5.1);
    assert_eq!((called(&world).len(), world.circuits.len()), (1, 1));
    world
}

#[test]
fn a_probe_that_is_sent_away_or_cancelled_is_followed_by_another() {
    let mut world = open_circuit();
    world.answer(0, Err(busy(2)));
    world.pass(1.9);
    assert_eq!(called(&world).len(), 0);
    world.pass(0.2);
    assert_eq!(called(&world).len(), 1);
    let (_, made) = world.calls.first_key_value().unwrap();
    let probed = (0..6).find(|n| trajectory(*n) == made.trajectory).unwrap();
    world.cancel(probed);
    assert_eq!(called(&world).len(), 1, "the cancelled one still runs");
    world.answer(0, Err(fault(FaultKind::Cancelled)));
    assert_eq!(called(&world).len(), 1, "the next probe");
}

#[test]
fn the_late_end_of_an_old_probe_allows_no_second_one() {
    let mut world = open_circuit();
    world.pass(10.0);
    assert_eq!(world.calls.values().filter(|made| made.cancelled).count(), 1);
    world.pass(10.1);
    assert_eq!(world.calls.len(), 2, "the old probe, and the new one");
    world.answer(0, Err(fault(FaultKind::Cancelled)));
    assert_eq!(world.calls.len(), 1);
}

#[test]
fn programs_that_time_out_do_not_open_the_circuit() {
    let mut world = one();
    (0..9).for_each(|n| world.score(n, "math"));
    for _ in 0..9 {
        world.answer(0, Err(fault(FaultKind::Timeout)));
    }
    assert_eq!(world.circuits, []);
}

#[test]
fn who_waits_behind_an_open_circuit_is_given_up_in_time() {
    let mut world = World::new(vec![Service { tries: 20, ..service("a", &[]) }]);
    (0..6).for_each(|n| world.score(n, "math"));
    while world.rewards.scoring() > 0 {
        world.answer(0, Err(fault(FaultKind::Infrastructure)));
        world.pass(1.0);
        assert!(world.now < secs(115.0), "{:?}", world.rewards);
    }
    assert!(world.scored.iter().all(|(_, result)| result.is_err()));
}

#[test]
fn asking_twice_is_asking_once() {
    let mut world = one();
    world.score(0, "math");
    world.score(0, "math");
    assert_eq!(world.made.len(), 1);
    world.cancel(1);
}

#[test]
fn scoring_is_bounded() {
    let mut world = one();
    (0..101).for_each(|n| world.score(n, "math"));
    let [(_, Err(fault))] = &world.scored[..] else { panic!("{:?}", world.scored) };
    assert_eq!((fault.kind, &*fault.reason), (FaultKind::Infrastructure, "RewardOverloaded"));
}

#[test]
fn a_reward_counts_when_every_teacher_has_answered() {
    let mut world = World::new(vec![
        teacher("t", &["math"]),
        service("a", &[]),
        teacher("u", &[]),
        teacher("v", &["swe"]),
    ]);
    world.score(0, "math");
    let services: Vec<_> = world.calls.values().map(|made| made.service.0).collect();
    assert_eq!(services, [0, 1, 2]);
    world.answer(1, Ok(0.5));
    world.answer(0, Ok(0.0));
    assert!(world.scored.is_empty());
    world.answer(0, Ok(0.0));
    assert_eq!(world.scored, [(trajectory(0), Ok(0.5))]);
    assert_eq!(world.done[&trajectory(0)], [0, 1, 2]);
}

#[test]
fn a_known_reward_waits_for_teachers_alone_and_without_them_for_nobody() {
    let mut world = World::new(vec![service("a", &[]), teacher("t", &[])]);
    world.ask(0, "math", Some(0.25), true);
    assert_eq!(world.calls.values().map(|made| made.service.0).collect::<Vec<_>>(), [1]);
    world.answer(0, Ok(0.0));
    world.ask(1, "math", Some(0.75), false);
    assert_eq!(world.scored, [(trajectory(0), Ok(0.25)), (trajectory(1), Ok(0.75))]);
}

#[test]
fn a_teacher_that_stays_silent_is_a_fault_and_ends_what_else_is_asked() {
    let mut world = World::new(vec![service("a", &[]), teacher("t", &[])]);
    world.score(0, "math");
    world.answer(1, Err(fault(FaultKind::Action)));
    let (_, result) = world.scored.pop().unwrap();
    assert_eq!(result.unwrap_err().kind, FaultKind::Action);
    assert!(world.calls.values().all(|made| made.cancelled));
}
