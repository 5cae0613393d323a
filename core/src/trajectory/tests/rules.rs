//! Single rules, one test each.

use std::time::Duration;

use super::world::{World, config, fault, group, open, trajectory};
use crate::buffer::OnStale;
use crate::fault::{Fault, FaultKind};
use crate::trajectory::{
    Announcement, Command, Event, GroupState, LogState, OpenGroup, Purpose, State, Turn,
};
use crate::version::{RequestId, Version};

pub(super) fn world() -> World {
    World::new(config(1, OnStale::Abort))
}

/// A group of 2 and one redundant trajectory.
pub(super) fn one_group() -> World {
    let mut world = world();
    world.open(open(0, 2)).unwrap();
    world
}

/// A turn of 4 tokens under the current version.
pub(super) fn turn(world: &mut World, id: &str) {
    let request = world.request(&trajectory(id)).unwrap();
    world.outside.requests.clear();
    let turn = world.turn(&trajectory(id), 4);
    world.send(Event::TurnEnded { trajectory: trajectory(id), request, turn }).unwrap();
}

pub(super) fn complete(
    world: &mut World,
    id: &str,
    reward: Option<f64>,
) -> Result<Vec<Command>, Fault> {
    world.send(Event::Complete { trajectory: trajectory(id), reward, taught: false })
}

fn kept(world: &mut World, id: &str) -> Vec<Command> {
    let keep = world.outside.writes.remove(&trajectory(id)).unwrap();
    world.disk.records.insert(trajectory(id), keep);
    world.send(Event::Kept { trajectory: trajectory(id), result: Ok(()) }).unwrap()
}

pub(super) fn finish(world: &mut World, id: &str) -> Vec<Command> {
    turn(world, id);
    complete(world, id, Some(1.0)).unwrap();
    kept(world, id)
}

fn abort(world: &mut World, id: &str, kind: FaultKind) -> Vec<Command> {
    let event = Event::AbortTrajectory { trajectory: trajectory(id), fault: fault(kind) };
    world.send(event).unwrap()
}

pub(super) fn news(commands: &[Command]) -> Vec<String> {
    let told = commands.iter().filter_map(|command| match command {
        Command::Announce(Announcement::Start { trajectory, .. }) => {
            Some(format!("start {trajectory}"))
        }
        Command::Announce(Announcement::Abort { trajectory, fault, .. }) => {
            Some(format!("abort {trajectory} {}", fault.reason))
        }
        Command::Announce(Announcement::Settled { group, .. }) => Some(format!("settled {group}")),
        Command::Announce(Announcement::GroupAborted { group, fault }) => {
            Some(format!("aborted {group} {}", fault.reason))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn a_group_settles_with_the_first_that_it_needs() {
    let mut world = one_group();
    assert_eq!(finish(&mut world, "g0.2"), []);
    let commands = finish(&mut world, "g0.0");
    assert_eq!(news(&commands), ["abort g0.1 Surplus", "settled g0"]);
    assert_eq!(world.states(0), [State::Settled, State::Aborted, State::Settled]);
    let stats = *world.core.stats();
    assert_eq!((stats.settled, stats.surplus, stats.kept_fraction()), (2, 1, Some(2.0 / 3.0)));
    assert_eq!((stats.settled_tokens, stats.kept_token_fraction()), (8, Some(1.0)));
}

#[test]
fn scored_is_not_enough_it_must_be_on_disk() {
    let mut world = one_group();
    finish(&mut world, "g0.0");
    turn(&mut world, "g0.1");
    complete(&mut world, "g0.1", Some(0.0)).unwrap();
    assert_eq!(world.states(0), [State::Scored, State::Scored, State::Running]);
    kept(&mut world, "g0.1");
    assert_eq!(world.core.group("g0").unwrap().state(), GroupState::Settled);
}

#[test]
fn one_abort_releases_everything_once() {
    let mut world = one_group();
    let request = world.request(&trajectory("g0.0")).unwrap();
    let id = || trajectory("g0.0");
    let commands = abort(&mut world, "g0.0", FaultKind::Cancelled);
    let released = [
        Command::AbortRequest { trajectory: id(), request },
        Command::CloseSandbox(id()),
        Command::Drop(id()),
    ];
    assert_eq!(commands[..3], released);
    assert_eq!(news(&commands), ["abort g0.0 Broken"]);
    assert_eq!(abort(&mut world, "g0.0", FaultKind::Cancelled), []);

    turn(&mut world, "g0.1");
    complete(&mut world, "g0.1", None).unwrap();
    let commands = abort(&mut world, "g0.1", FaultKind::Infrastructure);
    assert!(commands.contains(&Command::CancelReward(trajectory("g0.1"))), "{commands:?}");
}

#[test]
fn late_events_of_an_ended_one_change_nothing() {
    let mut world = one_group();
    abort(&mut world, "g0.0", FaultKind::Cancelled);
    let id = || trajectory("g0.0");
    let log = LogState { generated_tokens: 9, ..LogState::default() };
    let late = [
        Event::TurnEnded { trajectory: id(), request: RequestId(1), turn: Turn::Recorded(log) },
        Event::Generated { trajectory: id(), version: Version(1) },
        Event::Scored { trajectory: id(), result: Ok(1.0) },
        Event::Kept { trajectory: id(), result: Ok(()) },
    ];
    let before = format!("{:?}", world.core);
    for event in late {
        assert_eq!(world.send(event), Ok(vec![]));
    }
    assert_eq!(before, format!("{:?}", world.core));
    let going_on = [
        Event::TurnBegan { trajectory: id(), request: RequestId(1) },
        Event::Step(id()),
        Event::TokensGiven { trajectory: id(), log },
        Event::Complete { trajectory: id(), reward: None, taught: false },
    ];
    for event in going_on {
        let fault = world.send(event).unwrap_err();
        assert_eq!((fault.kind, &*fault.reason), (FaultKind::Cancelled, "Aborted"));
    }
}

#[test]
fn what_infrastructure_takes_is_replaced_so_often_as_the_group_needs() {
    let mut world = one_group();
    assert_eq!(news(&abort(&mut world, "g0.0", FaultKind::Infrastructure))[1], "start g0.3");
    assert_eq!(news(&abort(&mut world, "g0.3", FaultKind::Infrastructure))[1], "start g0.4");
    assert_eq!(news(&abort(&mut world, "g0.4", FaultKind::Infrastructure)).len(), 1);
    let commands = abort(&mut world, "g0.1", FaultKind::Infrastructure);
    let expected =
        ["abort g0.1 Broken", "abort g0.2 TooFewTrajectories", "aborted g0 TooFewTrajectories"];
    assert_eq!(news(&commands), expected);
    assert!(commands.contains(&Command::DropGroup(group(0))));
}

#[test]
fn what_its_driver_gives_up_is_not_replaced() {
    let mut world = one_group();
    assert_eq!(news(&abort(&mut world, "g0.0", FaultKind::Cancelled)), ["abort g0.0 Broken"]);
    let commands = abort(&mut world, "g0.1", FaultKind::Cancelled);
    assert_eq!(news(&commands).last().unwrap(), "aborted g0 TooFewTrajectories");
}

#[test]
fn a_fault_of_scoring_is_no_reward() {
    let mut world = one_group();
    for (id, result) in [("g0.0", Err(fault(FaultKind::Action))), ("g0.1", Ok(f64::NAN))] {
        turn(&mut world, id);
        complete(&mut world, id, None).unwrap();
        world.outside.calls.clear();
        let commands = world.send(Event::Scored { trajectory: trajectory(id), result }).unwrap();
        assert!(!commands.iter().any(|command| matches!(command, Command::CancelReward(_))));
        assert!(news(&commands)[1].starts_with("start"), "{commands:?}");
        assert_eq!(world.core.trajectory(id).unwrap().reward(), None);
    }
}

#[test]
fn bad_completions_are_refused() {
    let mut world = one_group();
    let refused = |result: Result<Vec<Command>, Fault>| result.unwrap_err().reason;
    assert_eq!(refused(complete(&mut world, "g0.0", Some(1.0))), "NothingGenerated");
    turn(&mut world, "g0.0");
    assert_eq!(refused(complete(&mut world, "g0.0", Some(f64::NAN))), "RewardNotFinite");
    assert_eq!(refused(complete(&mut world, "g0.9", Some(1.0))), "UnknownTrajectory");
    complete(&mut world, "g0.0", Some(1.0)).unwrap();
    assert_eq!(complete(&mut world, "g0.0", Some(0.0)), Ok(vec![]), "the first completion counts");
    assert_eq!(world.core.trajectory("g0.0").unwrap().reward(), Some(1.0));
    let begun = world.request(&trajectory("g0.0")).unwrap_err();
    assert_eq!(begun.reason, "Completed");
}

#[test]
fn completion_ends_the_requests_in_flight() {
    let mut world = one_group();
    turn(&mut world, "g0.0");
    let request = world.request(&trajectory("g0.0")).unwrap();
    let commands = complete(&mut world, "g0.0", None).unwrap();
    assert_eq!(commands[0], Command::AbortRequest { trajectory: trajectory("g0.0"), request });
}

#[test]
fn every_state_ages_and_is_replaced() {
    let mut world = one_group();
    finish(&mut world, "g0.0");
    turn(&mut world, "g0.1");
    complete(&mut world, "g0.1", None).unwrap();
    assert_eq!(world.send(Event::VersionChanged(Version(11))), Ok(vec![]));
    let commands = world.send(Event::VersionChanged(Version(12))).unwrap();
    let stale = ["abort g0.0 Stale", "abort g0.1 Stale", "abort g0.2 Stale"];
    assert_eq!(news(&commands)[..3], stale);
    assert_eq!(news(&commands)[3..], ["start g0.3", "start g0.4", "start g0.5"]);
    let fault = world.send(Event::Step(trajectory("g0.0"))).unwrap_err();
    assert_eq!((fault.kind, &*fault.reason), (FaultKind::Stale, "Aborted"));
    assert_eq!(world.core.stats().stale, 3);
}

#[test]
fn the_first_token_is_the_start() {
    let mut world = one_group();
    world.send(Event::VersionChanged(Version(11))).unwrap();
    turn(&mut world, "g0.0");
    let request = world.request(&trajectory("g0.1")).unwrap();
    let began = Event::Generated { trajectory: trajectory("g0.1"), version: Version(11) };
    world.send(began).unwrap();
    let commands = world.send(Event::VersionChanged(Version(12))).unwrap();
    assert_eq!(news(&commands), ["abort g0.2 Stale", "start g0.3"]);
    // A turn that is lost leaves no version behind.
    world.outside.requests.clear();
    let lost = Event::TurnEnded { trajectory: trajectory("g0.1"), request, turn: Turn::Lost };
    assert_eq!(news(&world.send(lost).unwrap()), ["abort g0.1 Stale", "start g0.4"]);
    assert_eq!(world.core.trajectory("g0.0").unwrap().start_version(), Version(11));
}

#[test]
fn completed_without_its_first_turn_it_is_as_old_as_its_opening() {
    let mut world = world();
    world.open(OpenGroup { recorded: false, ..open(0, 2) }).unwrap();
    world.request(&trajectory("g0.0")).unwrap();
    world.send(Event::VersionChanged(Version(11))).unwrap();
    let began = Event::Generated { trajectory: trajectory("g0.0"), version: Version(11) };
    world.send(began).unwrap();
    world.send(Event::VersionChanged(Version(12))).unwrap();
    let commands = complete(&mut world, "g0.0", Some(1.0)).unwrap();
    assert_eq!(news(&commands), ["abort g0.0 Stale", "start g0.5"]);
}

#[test]
fn with_continue_what_has_no_token_never_ages() {
    let mut world = World::new(config(1, OnStale::Continue));
    world.open(open(0, 2)).unwrap();
    turn(&mut world, "g0.0");
    let commands = world.send(Event::VersionChanged(Version(12))).unwrap();
    assert_eq!(news(&commands), ["abort g0.0 Stale", "start g0.3"]);
}

#[test]
fn old_tokens_from_elsewhere_are_noticed() {
    let mut world = one_group();
    let old = LogState {
        generated_tokens: 1,
        start: Some(Version(8)),
        oldest: Some(Version(8)),
        ..LogState::default()
    };
    let given = Event::TokensGiven { trajectory: trajectory("g0.0"), log: old };
    assert_eq!(news(&world.send(given).unwrap()), ["abort g0.0 Stale", "start g0.3"]);
}

#[test]
fn an_evaluation_keeps_its_version_and_never_reaches_the_buffer() {
    let mut world = world();
    let purpose = Purpose::Evaluation { pinned: Version(3) };
    world.open(OpenGroup { purpose, ..open(0, 2) }).unwrap();
    let group = world.core.group("g0").unwrap();
    assert_eq!((group.start(), group.version()), (2, Version(3)));
    assert_eq!(world.send(Event::VersionChanged(Version(50))), Ok(vec![]));
    finish(&mut world, "g0.0");
    let commands = finish(&mut world, "g0.1");
    assert!(!commands.iter().any(|command| matches!(command, Command::Settle(_))));
    let dropped = [Command::Drop(trajectory("g0.0")), Command::Drop(trajectory("g0.1"))];
    assert_eq!(commands[..2], dropped);
    assert_eq!(news(&commands), ["settled g0"]);
    assert_eq!(world.core.stats().kept_fraction(), None);
    assert_eq!(world.core.trajectory("g0.1").unwrap().reward(), Some(1.0));
}

#[test]
fn without_a_sign_of_life_it_is_abandoned() {
    let mut world = one_group();
    let request = world.request(&trajectory("g0.0")).unwrap();
    world.pass(50);
    world.send(Event::Step(trajectory("g0.1"))).unwrap();
    world.pass(20);
    let abandoned =
        |world: &World, id| world.core.trajectory(id).unwrap().fault().map(|f| f.reason.clone());
    assert_eq!(abandoned(&world, "g0.0"), None, "a request in flight is a sign of life");
    assert_eq!(abandoned(&world, "g0.1"), None);
    assert_eq!(abandoned(&world, "g0.2").as_deref(), Some("Abandoned"));
    assert_eq!(world.state("g0.3"), Some(State::Running));
    world.outside.requests.clear();
    let ended = Event::TurnEnded { trajectory: trajectory("g0.0"), request, turn: Turn::Lost };
    world.send(ended).unwrap();
    world.pass(59);
    assert_eq!(abandoned(&world, "g0.0"), None);
    world.pass(70);
    assert_eq!(abandoned(&world, "g0.0").as_deref(), Some("Abandoned"));
}

#[test]
fn stragglers_cost() {
    let mut world = one_group();
    world.now = crate::time::Time::ZERO + Duration::from_secs(10);
    finish(&mut world, "g0.0");
    world.now = crate::time::Time::ZERO + Duration::from_secs(30);
    finish(&mut world, "g0.1");
    assert_eq!(world.core.stats().straggler_tax(), Some(0.5));
    assert_eq!(world.core.trajectory("g0.1").unwrap().took(), Some(Duration::from_secs(30)));
}
