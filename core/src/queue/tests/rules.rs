//! Single rules, one test each.

use std::collections::BTreeMap;
use std::time::Duration;

use super::world::{World, action, job, node, permit, quota, trajectory};
use crate::queue::{Command, Config, Event, NodeOrder, Outcome, Policy};
use crate::quota::QuotaLimit;
use crate::resources::Units;

fn quota_of(concurrency: u32) -> Config {
    let limit = QuotaLimit { concurrency: Some(concurrency), rate: None };
    Config { quotas: BTreeMap::from([(quota(), limit)]), ..Config::default() }
}

/// First come, first served, on one core each.
fn fixed() -> Config {
    Config { policy: Policy::FixedDop { dop: Units::cores(1) }, ..Config::default() }
}

fn ready(config: Config, cores: u32, trajectories: usize) -> World {
    let mut world = World::new(config, &[vec![cores]]);
    world.link_up(0);
    for t in 0..trajectories {
        world.open(t, 0, 1);
    }
    drain(&mut world);
    world
}

fn drain(world: &mut World) {
    while world.deliver(0) | world.make_ready(0) | world.hear(0) {}
}

fn started(world: &World) -> Vec<String> {
    world.starts.iter().map(ToString::to_string).collect()
}

#[test]
fn first_come_first_served_within_a_line() {
    let mut world = ready(fixed(), 2, 1);
    world.submit(0, 0, &[2.0], 0);
    world.submit(1, 0, &[2.0], 0);
    world.submit(2, 0, &[1.0], 0);
    drain(&mut world);
    world.finish(0, 0);
    drain(&mut world);
    world.finish(0, 0);
    drain(&mut world);
    assert_eq!(started(&world), ["a0", "a1", "a2"]);
}

#[test]
fn waiting_for_quota_never_stops_cpu_work() {
    let mut world = ready(quota_of(1), 2, 1);
    world.acquire(0, 1);
    world.submit(0, 0, &[1.0], 1);
    world.submit(1, 0, &[1.0], 0);
    drain(&mut world);
    assert_eq!(started(&world), ["a1"]);
    world.send(Event::Release { permit: permit(0), retry_after: None });
    drain(&mut world);
    assert_eq!(started(&world), ["a1", "a0"]);
}

#[test]
fn a_refusal_without_a_time_keeps_everybody_away_for_longer_and_longer() {
    const SECOND: u64 = 1_000_000_000;
    let mut world = ready(quota_of(1), 2, 1);
    let held = |world: &World| world.queue.stats().quotas[0].held;
    world.acquire(0, 1);
    for (p, seconds) in [1, 2, 4].into_iter().enumerate() {
        assert_eq!(held(&world), 1);
        // Time passes between the start of a call and its answer.
        world.pass(1);
        world.send(Event::Release { permit: permit(p), retry_after: Some(Duration::ZERO) });
        world.acquire(p + 1, 1);
        world.pass(seconds * SECOND - 1);
        assert_eq!(held(&world), 0, "{seconds} s have not passed");
        world.pass(1);
    }
    // One that is answered ends it.
    world.send(Event::Release { permit: permit(3), retry_after: None });
    world.acquire(4, 1);
    world.pass(1);
    world.send(Event::Release { permit: permit(4), retry_after: Some(Duration::ZERO) });
    world.acquire(5, 1);
    world.pass(SECOND);
    assert_eq!(held(&world), 1);
}

#[test]
fn a_burst_of_one_job_does_not_starve_another() {
    let mut config = Config::default();
    config.weights.insert(job(1), 2);
    let mut world = World::new(config, &[vec![3]]);
    world.link_up(0);
    world.open(0, 0, 1);
    world.open(1, 1, 1);
    drain(&mut world);
    for a in 0..30 {
        world.submit(a, 0, &[1.0], 0);
    }
    drain(&mut world);
    for a in 30..60 {
        world.submit(a, 1, &[1.0], 0);
    }
    // Three cores, weights 1 and 2: after the first three end, one and two run.
    for _ in 0..3 {
        world.finish(0, 0);
        drain(&mut world);
    }
    let next = &started(&world)[3..6];
    let of_the_late_job = next.iter().filter(|id| id[1..].parse::<usize>().unwrap() >= 30).count();
    assert_eq!(of_the_late_job, 2, "{next:?}");
}

#[test]
fn an_action_that_fits_no_node_is_refused_and_blocks_nobody() {
    let mut world = ready(Config::default(), 2, 1);
    world.submit(0, 0, &[4.0], 0);
    world.submit(1, 0, &[1.0], 0);
    drain(&mut world);
    assert!(matches!(&world.ended[&action(0)][0], Outcome::Failed(f) if f.reason == "ExceedsNode"));
    assert_eq!(started(&world), ["a1"]);
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let mut world = ready(Config { max_waiting: 1, ..Config::default() }, 1, 1);
    world.submit(0, 0, &[1.0], 0);
    world.submit(1, 0, &[1.0], 0);
    let commands = world.submit(2, 0, &[1.0], 0);
    let [Command::ActionRefused { fault, .. }] = commands.as_slice() else {
        panic!("{commands:?}");
    };
    assert_eq!(fault.reason, "QueueFull");
    assert!(fault.retry_after.is_some());
}

#[test]
fn the_same_id_a_hundred_times_runs_once() {
    let mut world = ready(Config::default(), 4, 1);
    for _ in 0..100 {
        world.submit(0, 0, &[1.0], 0);
    }
    drain(&mut world);
    assert_eq!(started(&world), ["a0"]);
    world.settle();
}

#[test]
fn static_trajectories_hold_their_cores_for_life() {
    let config = Config { policy: Policy::Static { cores: 2 }, ..Config::default() };
    let mut world = ready(config, 4, 3);
    let stats = world.queue.stats();
    assert_eq!((stats.nodes[0].exclusive, stats.nodes[0].sandboxes), (4, 2));
    world.submit(0, 0, &[1.0, 2.0, 4.0], 0);
    world.submit(1, 2, &[1.0], 0);
    drain(&mut world);
    assert_eq!(started(&world), ["a0"], "the third has no pod yet");
    world.send(Event::Close(trajectory(1)));
    drain(&mut world);
    assert_eq!(started(&world), ["a0", "a1"]);
    world.settle();
}

#[test]
fn shares_leave_a_core_before_it_is_given_away() {
    let mut world = ready(Config::default(), 2, 1);
    world.submit(0, 0, &[0.6], 0);
    world.submit(1, 0, &[0.6], 0);
    world.submit(2, 0, &[1.0], 0);
    drain(&mut world);
    let commands = world.send(Event::Cancel(action(0)));
    assert!(matches!(commands.as_slice(), [Command::Node { order: NodeOrder::Kill(_), .. }]));
    world.deliver(0);
    world.hear(0);
    drain(&mut world);
    assert_eq!(started(&world), ["a0", "a1", "a2"]);
    world.settle();
}

#[test]
fn a_node_that_stays_away_is_given_up_with_a_typed_fault() {
    let grace = Duration::from_nanos(100);
    let mut world = ready(Config { node_grace: grace, ..Config::default() }, 1, 1);
    world.submit(0, 0, &[1.0], 0);
    world.submit(1, 0, &[1.0], 0);
    drain(&mut world);
    world.link_down(0);
    world.pass(99);
    assert!(world.ended.is_empty());
    world.pass(1);
    for a in 0..2 {
        assert!(
            matches!(&world.ended[&action(a)][0], Outcome::Failed(f) if f.reason == "NodeLost")
        );
    }
    world.settle();
}

#[test]
fn an_old_link_is_not_listened_to() {
    let mut world = ready(Config::default(), 1, 1);
    world.link_up(0);
    world.send(Event::NodeDown { node: node(0), epoch: 1 });
    assert!(world.queue.stats().nodes[0].connected);
}

#[test]
fn what_can_never_be_placed_is_refused_when_the_nodes_are_known() {
    let config = Config { nodes_settle: Duration::from_nanos(10), ..Config::default() };
    let mut world = ready(config, 1, 0);
    world.open(0, 0, super::world::NODE_MEMORY + 1);
    assert_eq!(world.queue.stats().trajectories, 1, "a larger node may still come");
    world.pass(10);
    assert_eq!(world.queue.stats().trajectories, 0);
    world.link_down(0);
    world.open(1, 0, super::world::NODE_MEMORY + 1);
    assert_eq!(world.queue.stats().trajectories, 1, "a node is away");
}

#[test]
fn a_sandbox_that_was_not_ready_is_made_again_after_a_restart() {
    let mut world = ready(Config::default(), 1, 0);
    world.open(0, 0, 1);
    world.submit(0, 0, &[1.0], 0);
    world.deliver(0);
    world.restart_queue();
    world.link_up(0);
    drain(&mut world);
    assert_eq!(started(&world), ["a0"]);
    world.settle();
}

#[test]
fn a_cancel_beside_a_new_link_starts_nothing() {
    let mut world = ready(Config::default(), 1, 1);
    world.submit(0, 0, &[1.0], 0);
    world.link_down(0);
    world.link_up_and(0, Some(Event::Cancel(action(0))));
    drain(&mut world);
    assert_eq!(world.ended[&action(0)], [Outcome::Cancelled]);
    assert!(world.starts.is_empty());
}

#[test]
fn units_follow_the_degree_and_the_node() {
    let config = Config { policy: Policy::FixedDop { dop: Units::cores(8) }, ..Config::default() };
    let mut world = ready(config, 2, 1);
    world.submit(0, 0, &[1.0, 2.0, 4.0], 0);
    assert_eq!(world.queue.stats().nodes[0].exclusive, 2);
}

#[test]
fn kept_cores_are_for_shares_alone() {
    let config = Config { shared_cores: 1, ..Config::default() };
    let mut world = ready(config, 2, 1);
    world.submit(0, 0, &[1.0], 0);
    world.submit(1, 0, &[1.0], 0);
    drain(&mut world);
    assert_eq!(started(&world), ["a0"], "the other core is kept");
    assert_eq!(world.queue.stats().nodes[0].shared, 1);
    world.submit(2, 0, &[2.0], 0);
    world.send(Event::Cancel(action(1)));
    drain(&mut world);
    assert!(matches!(&world.ended[&action(2)][0], Outcome::Failed(f) if f.reason == "ExceedsNode"));
}

#[test]
fn those_behind_a_cancelled_action_move_up() {
    let mut world = ready(fixed(), 2, 1);
    world.submit(0, 0, &[1.0], 0);
    world.submit(1, 0, &[2.0], 0);
    world.submit(2, 0, &[1.0], 0);
    drain(&mut world);
    assert_eq!(started(&world), ["a0"], "a1 stands before a2");
    world.send(Event::Cancel(action(1)));
    drain(&mut world);
    assert_eq!(started(&world), ["a0", "a2"]);
}
