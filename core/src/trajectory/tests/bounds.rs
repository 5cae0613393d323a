//! What is refused, forgotten and restored.

use super::rules::{complete, finish, news, one_group, turn, world};
use super::world::{World, config, fault, group, open, trajectory};
use crate::buffer::OnStale;
use crate::fault::FaultKind;
use crate::ids::{GroupId, TrajectoryId};
use crate::trajectory::{Config, Event, GroupState, MAX_GROUP_ID, OpenGroup, State};
use crate::version::Version;

#[test]
fn opening_is_idempotent_and_checked() {
    let mut world = one_group();
    assert_eq!(world.send(Event::OpenGroup(open(0, 2))), Ok(vec![]));
    let refused = |world: &mut World, open| world.send(Event::OpenGroup(open)).unwrap_err().reason;
    assert_eq!(refused(&mut world, open(0, 3)), "GroupExists");
    assert_eq!(refused(&mut world, open(1, 0)), "GroupSize");
    assert_eq!(refused(&mut world, open(1, 5)), "GroupSize");
    let long = GroupId::new(&"g".repeat(MAX_GROUP_ID + 1)).unwrap();
    assert_eq!(refused(&mut world, OpenGroup { group: long, ..open(0, 2) }), "GroupIdTooLong");
    world.send(Event::AbortGroup { group: group(0), fault: fault(FaultKind::Cancelled) }).unwrap();
    assert_eq!(refused(&mut world, open(0, 2)), "GroupExists");
    let unknown = Event::AbortGroup { group: group(7), fault: fault(FaultKind::Cancelled) };
    assert_eq!(world.send(unknown).unwrap_err().reason, "UnknownGroup");
}

#[test]
fn the_longest_group_id_names_its_trajectories() {
    let mut world = world();
    let id = GroupId::new(&"g".repeat(MAX_GROUP_ID)).unwrap();
    world.open(OpenGroup { group: id.clone(), ..open(0, 1) }).unwrap();
    assert_eq!(world.core.group(id.as_str()).unwrap().trajectories().count(), 2);
    TrajectoryId::new(&format!("{id}.{}", u32::MAX)).unwrap();
}

#[test]
fn what_runs_is_bounded() {
    let mut world = World::new(Config { max_trajectories: 5, ..config(1, OnStale::Abort) });
    world.open(open(0, 2)).unwrap();
    let fault = world.send(Event::OpenGroup(open(1, 2))).unwrap_err();
    assert_eq!((&*fault.reason, fault.retry_after.is_some()), ("TooManyTrajectories", true));
    let id = trajectory("g0.0");
    world.request(&id).unwrap();
    world.request(&id).unwrap();
    assert_eq!(world.request(&id).unwrap_err().reason, "TooManyRequests");
}

#[test]
fn ended_groups_are_forgotten() {
    let mut world = World::new(Config { max_ended: 2, ..config(1, OnStale::Abort) });
    for n in 0..4 {
        world.open(open(n, 1)).unwrap();
        let aborted = Event::AbortGroup { group: group(n), fault: fault(FaultKind::Cancelled) };
        world.send(aborted).unwrap();
    }
    let known: Vec<_> = world.core.groups().map(|group| group.id().to_string()).collect();
    assert_eq!(known, ["g2", "g3"]);
    world.pass(3600);
    assert_eq!((world.core.groups().count(), world.core.next_deadline()), (0, None));
}

#[test]
fn many_replacements_take_bounded_memory() {
    let mut world = World::new(config(0, OnStale::Abort));
    world.open(open(0, 2)).unwrap();
    for version in 11..60 {
        world.send(Event::VersionChanged(Version(version))).unwrap();
    }
    assert_eq!(world.states(0).len(), 3 + 2 * 2);
    let fault = world.send(Event::Step(trajectory("g0.0"))).unwrap_err();
    assert_eq!(fault.reason, "Aborted", "one that is not known any more");
}

#[test]
fn after_a_restart_the_kept_stay_and_the_lost_are_replaced() {
    let mut world = one_group();
    finish(&mut world, "g0.1");
    world.crash();
    let states = [State::Aborted, State::Scored, State::Aborted, State::Running, State::Running];
    assert_eq!(world.states(0), states);
    let fault = world.send(Event::Step(trajectory("g0.0"))).unwrap_err();
    assert!(fault.message.contains("GatewayRestarted"), "{fault}");
    assert_eq!(news(&finish(&mut world, "g0.3")), ["abort g0.4 Surplus", "settled g0"]);
}

#[test]
fn what_was_complete_at_a_restart_settles_at_once() {
    let mut world = one_group();
    finish(&mut world, "g0.1");
    turn(&mut world, "g0.2");
    complete(&mut world, "g0.2", Some(1.0)).unwrap();
    let keep = world.outside.writes.remove(&trajectory("g0.2")).unwrap();
    world.disk.records.insert(trajectory("g0.2"), keep);
    world.crash();
    assert_eq!(world.core.group("g0").unwrap().state(), GroupState::Settled);
    assert!(world.buffer.contains(&group(0)));
}

#[test]
fn what_became_too_old_over_a_restart_is_replaced() {
    let mut world = one_group();
    finish(&mut world, "g0.1");
    world.version = Version(15);
    world.crash();
    assert_eq!(world.state("g0.1"), Some(State::Aborted));
    assert_eq!(world.core.counts().running, 3);
}
