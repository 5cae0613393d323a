//! Rules one by one.

use std::time::Duration;

use super::world::{Answer, World, worker};
use crate::fault::Fault;
use crate::version::Version;
use crate::weights::{Config, Event, InFlight, Strategy, Transfer, WorkerState};

/// Workers of which all are in service.
fn world(config: Config, workers: usize) -> World {
    let mut world = World::new(config);
    for n in 0..workers {
        world.join(n, 0, true);
    }
    world.log.clear();
    world
}

fn config(in_flight: InFlight) -> Config {
    Config { in_flight, ..Config::default() }
}

fn answer_all(world: &mut World) {
    while world.outstanding() > 0 {
        world.answer(0, Answer::Done);
    }
}

fn reason(result: Result<(), Fault>) -> String {
    result.unwrap_err().reason.into_owned()
}

fn states(world: &World) -> Vec<WorkerState> {
    world.weights.workers().map(|view| view.state).collect()
}

/// The log, without what varies.
fn said(world: &mut World) -> Vec<String> {
    let brief = |line: String| line.split([' ', '(']).next().unwrap_or_default().to_owned();
    std::mem::take(&mut world.log).into_iter().map(brief).collect()
}

#[test]
fn the_six_steps_on_one_worker() {
    let mut world = world(config(InFlight::Recompute), 1);
    world.traffic(0);
    world.begin(1, Transfer::Disk).unwrap();
    assert_eq!(said(&mut world), ["Begun"], "generation goes on until the commit");
    world.commit(1).unwrap();
    assert_eq!(said(&mut world), ["Hold", "TakeBack"]);
    world.end_traffic(0);
    answer_all(&mut world);
    let calls: Vec<String> =
        world.log.iter().filter(|line| line.starts_with("Call")).cloned().collect();
    let steps = ["Pause", "Update", "FlushCache", "Verify", "Resume"];
    assert_eq!(calls.len(), steps.len());
    assert!(calls.iter().zip(steps).all(|(call, step)| call.contains(step)), "{calls:?}");
    let end = said(&mut world);
    assert_eq!(end[end.len() - 3..], ["SetVersion", "Release", "Committed"]);
    assert_eq!(world.current, Version(1));
    // Asked again, it answers again, and does nothing.
    world.commit(1).unwrap();
    assert_eq!(said(&mut world), ["Committed"]);
}

#[test]
fn turns_in_flight_end_first_but_not_for_ever() {
    let mut world = world(config(InFlight::Keep), 1);
    world.traffic(0);
    world.begin(1, Transfer::Disk).unwrap();
    world.commit(1).unwrap();
    assert_eq!(said(&mut world), ["Begun", "Hold"]);
    assert_eq!(world.weights.next_deadline(), Some(world.now + Config::default().max_drain));
    world.pass(Config::default().max_drain);
    assert_eq!(said(&mut world), ["TakeBack"]);
    world.end_traffic(0);
    answer_all(&mut world);
    assert_eq!(world.committed.len(), 1);
}

#[test]
fn exposed_is_the_time_without_requests() {
    let mut world = world(Config::default(), 2);
    world.begin(1, Transfer::Store).unwrap();
    world.commit(1).unwrap();
    let second = Duration::from_secs(1);
    world.pass(second);
    assert_eq!(states(&world), [WorkerState::Pulling; 2], "generation goes on");
    world.answer(0, Answer::Done);
    assert_eq!(states(&world), [WorkerState::Pulling; 2], "until all have pulled");
    world.answer(0, Answer::Done);
    assert_eq!(states(&world), [WorkerState::Updating; 2]);
    world.pass(second);
    answer_all(&mut world);
    let committed = &world.committed[0];
    assert_eq!((committed.pull, committed.exposed, committed.workers), (second, second, 2));
}

#[test]
fn rolling_takes_so_many_at_a_time() {
    let strategy = Strategy::Rolling { max_unavailable: 1 };
    let mut world = world(Config { strategy, ..Config::default() }, 3);
    world.begin(1, Transfer::Disk).unwrap();
    world.commit(1).unwrap();
    while world.outstanding() > 0 {
        assert!(world.engines.values().filter(|engine| !engine.open).count() <= 1);
        world.answer(0, Answer::Done);
    }
    assert_eq!(world.committed[0].workers, 3);
}

#[test]
fn a_version_that_no_worker_can_take_does_not_stop_the_service() {
    let rolling = Strategy::Rolling { max_unavailable: 1 };
    for (strategy, untouched) in [(Strategy::Pause, 0), (rolling, 2)] {
        let mut world = world(Config { strategy, ..Config::default() }, 4);
        world.begin(1, Transfer::Disk).unwrap();
        world.commit(1).unwrap();
        for _ in 0..8 {
            // Pause, then Update: the path is wrong.
            if world.begun.is_some() {
                let update = world.log.last().is_some_and(|line| line.contains("Update"));
                world.answer(0, if update { Answer::Refused } else { Answer::Done });
            }
        }
        while world.begun.is_some() {
            world.answer(0, Answer::Refused);
        }
        assert_eq!(world.aborted[0].1.reason, "UpdateFailed");
        let serving = states(&world).iter().filter(|s| **s == WorkerState::Serving).count();
        assert!(serving >= untouched, "{:?}", states(&world));
        // What they say of themselves brings them back.
        for _ in 0..5 {
            answer_all(&mut world);
            world.pass(Duration::from_mins(1));
        }
        answer_all(&mut world);
        assert_eq!(states(&world), [WorkerState::Serving; 4]);
        assert_eq!(world.current, Version(0));
    }
}

#[test]
fn a_store_that_fails_never_interrupts_generation() {
    let mut world = world(Config::default(), 2);
    world.begin(1, Transfer::Store).unwrap();
    world.commit(1).unwrap();
    world.answer(0, Answer::Refused);
    world.answer(0, Answer::Refused);
    assert_eq!(world.aborted[0].1.reason, "UpdateFailed");
    assert_eq!(states(&world), [WorkerState::Serving; 2]);
    assert!(!world.log.iter().any(|line| line.starts_with("Hold")));
}

#[test]
fn an_update_that_is_not_committed_expires() {
    let mut world = world(Config::default(), 1);
    world.begin(1, Transfer::Disk).unwrap();
    world.pass(Config::default().deadline);
    assert_eq!(world.aborted[0].1.reason, "UpdateExpired");
    assert_eq!(reason(world.commit(1)), "UpdateExpired");
    world.abort(1).unwrap();
    world.begin(1, Transfer::Disk).unwrap();
    world.commit(1).unwrap();
    answer_all(&mut world);
    assert_eq!(world.current, Version(1));
}

#[test]
fn refusals() {
    let mut world = world(Config::default(), 1);
    assert_eq!(reason(world.begin(0, Transfer::Disk)), "VersionNotGreater");
    assert_eq!(reason(world.commit(1)), "UnknownVersion");
    assert_eq!(reason(world.abort(1)), "UnknownVersion");
    world.begin(1, Transfer::Disk).unwrap();
    assert_eq!(reason(world.begin(2, Transfer::Disk)), "AnotherBegun");
    world.begin(1, Transfer::Disk).unwrap();
    let event = Event::Commit { version: Version(1), path: None };
    assert_eq!(reason(world.send(event)), "MissingPath");
    world.commit(1).unwrap();
    assert_eq!(reason(world.begin(2, Transfer::Disk)), "UpdateUnderWay");
    assert_eq!(reason(world.abort(1)), "UpdateUnderWay");
    world.commit(1).unwrap();
    answer_all(&mut world);
    world.begin(2, Transfer::External).unwrap();
    assert_eq!(reason(world.commit(2)), "NotSuspended");
    world.abort(2).unwrap();
    assert_eq!(reason(world.commit(2)), "UpdateAborted");
}

#[test]
fn half_written_weights_are_replaced_or_never_served() {
    // Version 0 can be had from nowhere.
    let mut unsourced = world(Config::default(), 1);
    unsourced.begin(1, Transfer::External).unwrap();
    answer_all(&mut unsourced);
    unsourced.write();
    unsourced.abort(1).unwrap();
    unsourced.pass(Duration::from_hours(1));
    assert_eq!((states(&unsourced), unsourced.outstanding()), (vec![WorkerState::Out], 0));
    let fault = unsourced.weights.workers().next().and_then(|view| view.fault.cloned());
    assert_eq!(fault.unwrap().reason, "Tainted");
    unsourced.restart(0, 0);
    assert_eq!(states(&unsourced), [WorkerState::Serving]);

    let mut sourced = world(Config::default(), 1);
    sourced.begin(1, Transfer::Disk).unwrap();
    sourced.commit(1).unwrap();
    answer_all(&mut sourced);
    sourced.begin(2, Transfer::External).unwrap();
    answer_all(&mut sourced);
    sourced.write();
    sourced.pass(Config::default().deadline);
    answer_all(&mut sourced);
    assert_eq!(states(&sourced), [WorkerState::Serving]);
    assert_eq!(sourced.engines[&worker(0)].holds, Some(Version(1)));
}

#[test]
fn an_external_update_that_was_not_begun_yet_is_undone() {
    let mut world = world(Config::default(), 2);
    world.begin(1, Transfer::External).unwrap();
    world.answer(0, Answer::Done);
    world.abort(1).unwrap();
    answer_all(&mut world);
    assert_eq!(states(&world), [WorkerState::Serving; 2]);
}

#[test]
fn a_worker_that_joins_or_restarts_is_brought_up_before_it_serves() {
    let mut world = world(Config::default(), 1);
    world.begin(1, Transfer::Disk).unwrap();
    world.commit(1).unwrap();
    answer_all(&mut world);
    world.join(1, 0, true);
    assert!(!world.engines[&worker(1)].open);
    answer_all(&mut world);
    world.restart(0, 0);
    assert!(!world.engines[&worker(0)].open && world.engines[&worker(1)].open);
    answer_all(&mut world);
    assert_eq!(states(&world), [WorkerState::Serving; 2]);
    // In the middle of a commit, it goes to the version that is being committed.
    world.begin(2, Transfer::Disk).unwrap();
    world.commit(2).unwrap();
    world.join(2, 0, false);
    answer_all(&mut world);
    assert_eq!(world.committed.last().unwrap().workers, 3);
}

#[test]
fn an_evaluation_keeps_its_version_to_the_end() {
    let mut world = world(Config { evaluation_workers: 1, ..Config::default() }, 3);
    world.pin(0, 0).unwrap();
    for version in 1..=3 {
        world.begin(version, Transfer::Disk).unwrap();
        world.commit(version).unwrap();
        answer_all(&mut world);
        let committed = world.committed.last().unwrap();
        assert_eq!((committed.workers, committed.passed_over), (2, 1));
        let kept = &world.engines[&worker(2)];
        assert!(kept.open && kept.reserved && kept.holds == Some(Version(0)));
    }
    world.pin(1, 0).unwrap();
    assert_eq!(reason(world.pin(2, 3)), "TooManyPins");
    world.unpin(0);
    assert!(world.engines[&worker(2)].reserved, "another evaluation needs it still");
    world.unpin(1);
    answer_all(&mut world);
    let freed = &world.engines[&worker(2)];
    assert!(freed.open && !freed.reserved && freed.holds == Some(Version(3)));
    assert_eq!(reason(world.pin(2, 0)), "UnknownVersion");
}

#[test]
fn a_pin_whose_worker_is_lost_is_lost() {
    let mut world = world(Config { evaluation_workers: 1, ..Config::default() }, 2);
    world.pin(0, 0).unwrap();
    world.begin(1, Transfer::Disk).unwrap();
    world.commit(1).unwrap();
    answer_all(&mut world);
    world.leave(1);
    assert!(world.log.last().unwrap().starts_with("PinLost"));
    assert!(world.pins.is_empty());
}
