//! The order of trajectories: who is served first where the last end counts, and whom the line
//! still expects.

use proptest::prelude::*;

use super::timed::{Submitted, Timed, foreseen};
use super::world::{action, node, trajectory};
use crate::queue::{Config, Event, Policy};

fn timed(cores: u32, jobs: usize) -> Timed {
    let config = Config { policy: Policy::ElasticTrajectory, ..Config::default() };
    Timed::new(config, cores, jobs)
}

fn followed_by(seconds: f64, remaining: f64) -> Submitted<'static> {
    Submitted { remaining: Some(remaining), ..foreseen(&[1.0], seconds, 1.0) }
}

#[test]
fn the_longest_trajectory_is_served_first() {
    let mut timed = timed(1, 1);
    timed.submit(0, 0, followed_by(1.0, 100.0));
    for (a, remaining) in [(1, 2.0), (2, 90.0), (3, 40.0)] {
        timed.submit(a, 0, followed_by(1.0, remaining));
    }
    timed.run_until(100.0);
    let started = |a: usize| timed.started[&action(a)].1;
    assert!(started(2) < started(3) && started(3) < started(1));
}

#[test]
fn what_is_learned_meanwhile_changes_no_place() {
    let mut timed = timed(1, 1);
    timed.submit(
        0,
        0,
        Submitted { remaining: Some(9.0), ..super::timed::unforeseen(&[1.0], 1.0, 1.0) },
    );
    for (a, remaining) in [(1, 5.0), (2, 50.0)] {
        let submitted = super::timed::unforeseen(&[1.0], 1.0, 1.0);
        timed.submit(a, 0, Submitted { remaining: Some(remaining), ..submitted });
    }
    timed.run_until(100.0);
    assert!(timed.started[&action(2)].1 < timed.started[&action(1)].1);
}

#[test]
fn the_line_expects_the_trajectories_that_have_not_acted() {
    let mut timed = timed(2, 3);
    let to_come = |timed: &Timed| timed.queue.nodes[&node(0)].crowd.newcomers().unwrap().to_come;
    assert_eq!(to_come(&timed), 3.0);
    timed.submit(0, 1, followed_by(1.0, 0.0));
    timed.submit(1, 1, followed_by(1.0, 0.0));
    assert_eq!(to_come(&timed), 2.0, "the second of one trajectory changes nothing");
    let now = crate::time::Time::ZERO;
    timed.queue.on_event(Event::Close(trajectory(0)), now);
    let closed = crate::queue::NodeReport::SandboxClosed(trajectory(0));
    timed.queue.on_event(Event::Report { node: node(0), epoch: 1, report: closed }, now);
    assert_eq!(to_come(&timed), 1.0);
    timed.run_until(10.0);
    assert_eq!(to_come(&timed), 1.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Actions of longer trajectories come without end, at twice of what the node can do. The
    /// last action of a trajectory starts when those are served that came within what its
    /// trajectory is shorter.
    #[test]
    fn nobody_starves(cores in 1_u32..6, short in 0.2..2.0_f64, longest in 1.0..40.0_f64,
                      told in any::<bool>()) {
        let mut timed = timed(cores, 1);
        let every = short / f64::from(cores) / 2.0;
        // What came until its rank, twice as fast as it is served; and what was there before.
        let bound = 2.0 * (longest + short) + 30.0 * short + 10.0;
        let mut submitted = None;
        for number in 1.. {
            timed.submit(number, 0, followed_by(short, longest));
            timed.run_until(timed.now + every);
            if timed.started.contains_key(&action(0)) {
                break;
            }
            if submitted.is_none() && timed.now > 5.0 * short {
                let victim = followed_by(short, 0.0);
                let remaining = victim.remaining.filter(|_| told);
                timed.submit(0, 0, Submitted { remaining, ..victim });
                submitted = Some(timed.now);
            }
            let waited = timed.now - submitted.unwrap_or(timed.now);
            prop_assert!(waited < bound, "{waited} of {bound}");
        }
    }
}
