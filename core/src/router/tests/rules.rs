//! Rules one by one.

use std::time::Duration;

use super::world::{World, ask, done, failed, spec, trajectory, turn, worker};
use crate::fault::{Fault, FaultKind};
use crate::router::{
    Ask, Command, Config, Event, Moved, Outcome, Role, Sticky, WorkerSpec, WorkerState,
};
use crate::version::{RequestId, Version};

fn sent(commands: &[Command]) -> Vec<(RequestId, &str)> {
    let sends = commands.iter().filter_map(|command| match command {
        Command::Send { request, worker, .. } => Some((*request, worker.as_str())),
        _ => None,
    });
    sends.collect()
}

fn state(world: &World, n: usize) -> WorkerState {
    world.router.worker(&worker(n)).unwrap().state
}

#[test]
fn turns_stay_on_their_worker_until_it_is_overloaded() {
    let sticky = Sticky { margin: 0.5, ..Sticky::default() };
    let mut world = World::new(Config { sticky, ..Config::default() });
    world.join(0, spec(0, 4), false);
    world.join(1, spec(0, 4), false);
    let first = world.arrive(&turn(0)).unwrap();
    assert_eq!(world.on(first), Some(worker(0)));
    world.end(first, done());
    // Two more on its worker are no reason to leave, three are: 3/4 - 0 > 1/2.
    for n in 1..=3 {
        world.about(0, Event::Move { trajectory: trajectory(n), to: worker(0) });
        world.arrive(&turn(n)).unwrap();
        let again = world.arrive(&turn(0)).unwrap();
        assert_eq!(world.on(again), Some(worker(usize::from(n == 3))), "{n} more");
        world.end(again, done());
    }
    assert_eq!(world.router.home(&trajectory(0)), Some(&worker(1)));
}

#[test]
fn a_full_home_moves_the_turn_and_says_so() {
    let mut world = World::new(Config::default());
    world.join(0, spec(0, 1), false);
    let first = world.arrive(&turn(0)).unwrap();
    world.end(first, done());
    world.join(1, spec(0, 1), false);
    world.about(0, Event::Move { trajectory: trajectory(1), to: worker(0) });
    world.arrive(&turn(1)).unwrap();
    let id = RequestId(7);
    let event = Event::Arrived { request: id, ask: turn(0) };
    let commands = world.router.on_event(event, world.now).unwrap();
    let [Command::Send { worker: to, moved, .. }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((to, *moved), (&worker(1), Some(Moved::Full)));
}

#[test]
fn priority_then_taken_back_then_arrival() {
    let mut world = World::new(Config { patience: Duration::ZERO, ..Config::default() });
    world.join(0, spec(0, 1), false);
    let running = world.arrive(&ask(0)).unwrap();
    let low = world.arrive(&Ask { priority: -1, ..ask(0) }).unwrap();
    let plain = world.arrive(&ask(0)).unwrap();
    let high = world.arrive(&Ask { priority: 1, ..ask(0) }).unwrap();
    let commands = world.about(0, Event::TakeBack { worker: worker(0), restart: true });
    let abort = Command::Abort { request: running, worker: worker(0), restart: true };
    assert_eq!(commands, vec![abort]);
    let mut order = vec![sent(&world.end(running, Outcome::Back))[0].0];
    for _ in 0..3 {
        let next = *order.last().unwrap();
        order.push(sent(&world.end(next, done()))[0].0);
    }
    assert_eq!(order, vec![high, running, plain, low]);
}

#[test]
fn within_a_priority_a_worker_prefers_its_own_trajectories_for_a_while() {
    let patience = Duration::from_secs(5);
    for (passed, own_first) in [(4, true), (5, false)] {
        let mut world = World::new(Config { patience, ..Config::default() });
        world.join(0, spec(0, 1), false);
        let running = world.arrive(&turn(0)).unwrap();
        let earlier = world.arrive(&turn(1)).unwrap();
        let own = world.arrive(&turn(0)).unwrap();
        world.pass(Duration::from_secs(passed));
        let next = sent(&world.end(running, done()))[0].0;
        assert_eq!(next, if own_first { own } else { earlier });
    }
}

#[test]
fn a_failed_request_is_tried_elsewhere_and_not_for_ever() {
    let mut world = World::new(Config { max_attempts: 3, ..Config::default() });
    world.join(0, spec(0, 1), false);
    world.join(1, spec(0, 1), false);
    let id = world.arrive(&turn(0)).unwrap();
    world.end(id, failed(true));
    assert_eq!(world.on(id), Some(worker(1)));
    world.end(id, failed(true));
    assert_eq!(world.on(id), Some(worker(0)));
    world.end(id, failed(true));
    assert_eq!(world.refused[&id].reason, "EngineFailed");
}

#[test]
fn the_only_worker_is_tried_again_and_what_cannot_resume_is_refused() {
    let mut world = World::new(Config::default());
    world.join(0, spec(0, 1), false);
    let id = world.arrive(&ask(0)).unwrap();
    world.end(id, failed(true));
    assert_eq!(world.on(id), Some(worker(0)));
    world.end(id, failed(false));
    assert!(world.refused.contains_key(&id));
}

#[test]
fn a_circuit_breaker_opens_doubles_and_closes() {
    let mut world = World::new(Config { max_attempts: 1, ..Config::default() });
    world.join(0, spec(0, 4), false);
    let fail = |world: &mut World| {
        let id = world.arrive(&ask(0)).unwrap();
        world.end(id, failed(true));
    };
    fail(&mut world);
    fail(&mut world);
    let well = world.arrive(&ask(0)).unwrap();
    world.end(well, done());
    for _ in 0..3 {
        assert_eq!(state(&world, 0), WorkerState::Ready);
        fail(&mut world);
    }
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(state(&world, 0), WorkerState::CircuitOpen);
        let at = world.now + Duration::from_secs(seconds);
        assert_eq!(world.router.next_deadline(), Some(at));
        world.pass(Duration::from_secs(seconds));
        assert_eq!(state(&world, 0), WorkerState::Probing);
        let probe = world.arrive(&ask(0)).unwrap();
        let second = world.arrive(&ask(0)).unwrap();
        assert_eq!((world.on(probe), world.on(second)), (Some(worker(0)), None));
        world.withdraw(second);
        world.end(probe, failed(true));
    }
    world.pass(Duration::from_mins(1));
    let probe = world.arrive(&ask(0)).unwrap();
    let waits = world.arrive(&ask(0)).unwrap();
    world.end(probe, done());
    assert_eq!((state(&world, 0), world.on(waits)), (WorkerState::Ready, Some(worker(0))));
}

#[test]
fn waiting_ends_in_a_typed_fault() {
    let mut world = World::new(Config::default());
    world.join(0, spec(0, 1), false);
    world.arrive(&ask(0)).unwrap();
    let full = world.arrive(&ask(0)).unwrap();
    let nobody = world.arrive(&Ask { pinned: Some(Version(9)), ..ask(0) }).unwrap();
    world.pass(Config::default().max_wait);
    let fault = |id| (world.refused[&id].kind, world.refused[&id].reason.as_ref());
    assert_eq!(fault(full), (FaultKind::Timeout, "QueueTimeout"));
    assert_eq!(fault(nobody), (FaultKind::Infrastructure, "NoWorker"));
    assert!(world.refused[&nobody].message.contains("version 9"));
}

#[test]
fn a_newcomer_is_turned_away_when_too_many_wait() {
    let mut world = World::new(Config { max_pending: 2, ..Config::default() });
    assert!(world.arrive(&ask(0)).is_some());
    assert!(world.arrive(&ask(0)).is_some());
    assert!(world.arrive(&ask(0)).is_none());
}

#[test]
fn no_turn_goes_back_to_an_older_version() {
    let mut world = World::new(Config::default());
    let old = WorkerSpec { version: Some(Version(1)), ..spec(0, 4) };
    let new = WorkerSpec { version: Some(Version(2)), ..spec(0, 4) };
    world.join(0, old, false);
    world.join(1, new, false);
    let fenced = Ask { at_least: Some(Version(2)), ..turn(0) };
    let id = world.arrive(&fenced).unwrap();
    assert_eq!(world.on(id), Some(worker(1)));
    // What it has been continued with counts as well.
    let other = world.arrive(&turn(1)).unwrap();
    assert_eq!(world.on(other), Some(worker(0)));
    world.about(0, Event::Version { worker: worker(0), version: Some(Version(3)) });
    world.end(other, failed(true));
    assert_eq!(world.on(other), Some(worker(0)), "version 2 is too old for it now");
}

#[test]
fn a_prefill_slot_is_free_after_the_first_token() {
    let mut world = World::new(Config::default());
    world.join(0, WorkerSpec { role: Role::Prefill, ..spec(0, 1) }, false);
    world.join(1, WorkerSpec { role: Role::Decode, ..spec(1, 4) }, false);
    let first = world.arrive(&turn(0)).unwrap();
    let second = world.arrive(&turn(1)).unwrap();
    assert_eq!((world.on(first), world.on(second)), (Some(worker(1)), None));
    world.prefilled(first);
    assert_eq!(world.on(second), Some(worker(1)));
}

#[test]
fn each_part_does_the_other_where_nobody_else_can() {
    let mut world = World::new(Config { alone: true, ..Config::default() });
    world.join(0, WorkerSpec { role: Role::Prefill, ..spec(0, 2) }, false);
    assert_eq!(world.lacks, Some(Role::Decode));
    let first = world.arrive(&turn(0)).unwrap();
    assert_eq!(world.calls[&first].on, Some((0, None)));
    world.join(1, WorkerSpec { role: Role::Decode, ..spec(0, 2) }, false);
    assert_eq!(world.lacks, None);
    let second = world.arrive(&turn(1)).unwrap();
    assert_eq!(world.calls[&second].on, Some((1, Some(0))), "as a pair");
    // It failed on the only prefill worker: the decode worker goes on by itself.
    let fault = Fault::new(FaultKind::Infrastructure, "EngineBroke", "it broke");
    world.end(second, Outcome::Failed { fault, resumable: true, prefill: true });
    assert_eq!(world.calls[&second].on, Some((1, None)));
    // Held, as in an update: nobody waits for it, and nothing is said.
    world.about(0, Event::Hold(worker(0)));
    let third = world.arrive(&turn(2)).unwrap();
    assert_eq!((world.calls[&third].on, world.lacks), (Some((1, None)), None));
    world.about(0, Event::Unhealthy { worker: worker(0), reason: "gone".to_owned() });
    assert_eq!(world.lacks, Some(Role::Prefill));
}

#[test]
fn pairs_that_cannot_do_without_each_other_wait() {
    let mut world = World::new(Config::default());
    world.join(1, WorkerSpec { role: Role::Decode, ..spec(0, 2) }, false);
    assert_eq!(world.lacks, Some(Role::Prefill));
    let id = world.arrive(&turn(0)).unwrap();
    assert_eq!(world.on(id), None);
    world.join(0, WorkerSpec { role: Role::Prefill, ..spec(0, 2) }, false);
    assert_eq!((world.calls[&id].on, world.lacks), (Some((0, Some(1))), None));
}

#[test]
fn an_unreachable_prefill_worker_is_left_alone() {
    let mut world = World::new(Config::default());
    world.join(0, WorkerSpec { role: Role::Prefill, ..spec(0, 2) }, false);
    world.join(1, WorkerSpec { role: Role::Prefill, ..spec(0, 2) }, false);
    world.join(2, WorkerSpec { role: Role::Decode, ..spec(0, 4) }, false);
    let id = world.arrive(&turn(0)).unwrap();
    let Some((2, Some(first))) = world.calls[&id].on else { panic!("no pair") };
    let fault = Fault::new(FaultKind::Infrastructure, "EngineUnreachable", "refused");
    world.end(id, Outcome::Unreached { fault, prefill: true });
    assert_eq!(world.calls[&id].on, Some((2, Some(1 - first))));
    assert_eq!(state(&world, first), WorkerState::CircuitOpen);
    assert_eq!(state(&world, 2), WorkerState::Ready);
}

#[test]
fn a_worker_that_drains_may_stay_and_may_be_resized() {
    let mut world = World::new(Config::default());
    world.join(0, spec(0, 1), false);
    let first = world.arrive(&turn(0)).unwrap();
    world.about(0, Event::Drain(worker(0)));
    let second = world.arrive(&turn(1)).unwrap();
    let commands = world.end(first, done());
    assert_eq!(commands, vec![Command::Idle { worker: worker(0) }]);
    let third = world.arrive(&turn(2)).unwrap();
    world.about(0, Event::Stay(worker(0)));
    assert_eq!((world.on(second), world.on(third)), (Some(worker(0)), None));
    world.about(0, Event::Slots { worker: worker(0), slots: 2 });
    assert_eq!(world.on(third), Some(worker(0)));
    let none = Event::Slots { worker: worker(0), slots: 0 };
    assert_eq!(world.router.on_event(none, world.now).unwrap_err().reason, "InvalidWorker");
}

#[test]
fn places_of_trajectories_are_bounded() {
    let sticky = Sticky { max_trajectories: 10, ..Sticky::default() };
    let mut world = World::new(Config { sticky, ..Config::default() });
    world.join(0, spec(0, 1), false);
    for t in 0..100 {
        let id = world.arrive(&turn(t)).unwrap();
        world.end(id, done());
        assert!(world.router.places() <= 10);
    }
    assert_eq!(world.router.home(&trajectory(99)), Some(&worker(0)));
    assert_eq!(world.router.home(&trajectory(0)), None);
}

#[test]
fn what_a_lost_worker_had_is_sent_elsewhere() {
    let mut world = World::new(Config { max_attempts: 1, ..Config::default() });
    world.join(0, spec(0, 2), false);
    let id = world.arrive(&turn(0)).unwrap();
    world.join(1, spec(0, 2), false);
    let commands = world.about(0, Event::Left(worker(0)));
    assert_eq!(commands, vec![Command::Abort { request: id, worker: worker(0), restart: false }]);
    world.end(id, failed(true));
    assert_eq!(world.on(id), Some(worker(1)), "that it was lost is not a failed try");
}
