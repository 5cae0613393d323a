//! The elastic policy in the queue: what it gives, whom it serves, what it learns.

use proptest::prelude::*;

use super::timed::{Submitted, Timed, foreseen, unforeseen};
use super::world::action;
use crate::queue::{Config, Policy};
use crate::resources::Units;

const DEGREES: &[f64] = &[1.0, 2.0, 4.0, 8.0];

fn timed(cores: u32, jobs: usize) -> Timed {
    Timed::new(Config::default(), cores, jobs)
}

fn mean_act(policy: Policy, cores: u32, actions: &[(f64, f64, f64)]) -> f64 {
    let mut timed = Timed::new(Config { policy, ..Config::default() }, cores, 1);
    for (a, (at, seconds, serial)) in actions.iter().enumerate() {
        timed.run_until(*at);
        timed.submit(a, 0, foreseen(DEGREES, *seconds, *serial));
    }
    timed.run_until(f64::MAX);
    let act = actions.iter().enumerate().map(|(a, (at, ..))| timed.ended[&action(a)] - at);
    act.sum::<f64>() / actions.len() as f64
}

#[test]
fn a_lone_action_gets_all_cores_and_one_among_many_gets_few() {
    let mut timed = timed(8, 1);
    timed.submit(0, 0, foreseen(DEGREES, 80.0, 0.05));
    timed.gather();
    assert_eq!(timed.units(0), Some(8.0));
    timed.run_until(100.0);
    for a in 1..62 {
        timed.submit(a, 0, foreseen(DEGREES, 8.0, 0.1));
    }
    timed.run_until(1e6);
    let units = |a: usize| timed.started[&action(a)].0.as_f64();
    let early: f64 = (2..34).map(units).sum::<f64>() / 32.0;
    assert!(early < 2.0, "with so many waiting a core each is best: {early}");
    timed.submit(62, 0, foreseen(DEGREES, 8.0, 0.1));
    timed.gather();
    assert_eq!(timed.units(62), Some(8.0), "alone again");
}

#[test]
fn units_follow_the_load_where_no_fixed_degree_can() {
    // A batch that drains.
    let batch: Vec<_> = (0..24).map(|a| (0.0, 10.0 + f64::from(a % 5), 0.1)).collect();
    let elastic = mean_act(Policy::Elastic, 8, &batch);
    for dop in [1, 2, 4, 8] {
        let fixed = mean_act(Policy::FixedDop { dop: Units::cores(dop) }, 8, &batch);
        assert!(elastic <= fixed * 1.03, "{elastic} against {fixed} at {dop}");
    }
}

#[test]
fn what_it_waited_for_lasts_longer_and_it_starts_all_the_same() {
    let mut timed = timed(4, 1);
    let long =
        Submitted { truth: unforeseen(&[3.0], 1e5, 1.0).truth, ..foreseen(&[3.0], 1.0, 1.0) };
    timed.submit(0, 0, long);
    // One core now, or all four in a second: it had better wait, so it is said.
    timed.submit(1, 0, foreseen(&[1.0, 4.0], 400.0, 0.0));
    assert_eq!(timed.units(1), None);
    timed.run_until(1000.0);
    // No event has told that the first goes on.
    assert_eq!(timed.started[&action(1)].0, Units::cores(1));
}

#[test]
fn malleable_actions_give_way_and_grow_again() {
    let mut timed = timed(8, 1);
    let malleable = |seconds| Submitted { malleable: true, ..foreseen(DEGREES, seconds, 0.05) };
    timed.submit(0, 0, malleable(100.0));
    assert_eq!(timed.units(0), Some(8.0));
    timed.submit(1, 0, malleable(2.0));
    assert!(timed.units(0) < Some(8.0), "it gave way: {:?}", timed.units(0));
    assert!(timed.units(1).is_some());
    timed.run_until(timed.now + 3.0);
    assert_eq!(timed.units(1), None, "it has ended");
    assert_eq!(timed.units(0), Some(8.0), "it has grown again");
    timed.run_until(1e6);
    assert_eq!(timed.ended.len(), 2);
}

#[test]
fn durations_are_learned_and_light_actions_share_a_core() {
    let mut timed = timed(2, 1);
    let units = &[0.25, 1.0];
    let light = || {
        let mut light = unforeseen(units, 1.0, 1.0);
        light.truth.cpu = 0.05;
        light
    };
    for a in 0..10 {
        timed.submit(a, 0, light());
        timed.run_until(timed.now + 20.0);
    }
    for a in 10..18 {
        timed.submit(a, 0, light());
    }
    assert!((10..18).all(|a| timed.units(a) == Some(0.25)), "eight on two cores at once");
    timed.run_until(timed.now + 100.0);
    // The same profile turns out to be heavy.
    for a in 18..40 {
        timed.submit(a, 0, unforeseen(units, 1.0, 1.0));
        timed.run_until(timed.now + 20.0);
    }
    timed.submit(40, 0, unforeseen(units, 1.0, 1.0));
    timed.gather();
    assert_eq!(timed.units(40), Some(1.0), "promoted");
}

#[test]
fn what_is_not_known_is_not_given_the_cores_that_others_wait_for() {
    let mut timed = timed(2, 1);
    let units = &[1.0, 2.0];
    // As a test suite that was run once on each: it hardly scales.
    for (a, tried) in [(0, &[1.0][..]), (1, &[2.0][..])] {
        timed.submit(a, 0, unforeseen(tried, 1.0, 0.9));
        timed.run_until(timed.now + 100.0);
    }
    for a in 2..7 {
        timed.submit(a, 0, unforeseen(units, 1.0, 0.9));
    }
    timed.run_until(timed.now + 100.0);
    let wide = (2..7).filter(|a| timed.started[&action(*a)].0.as_f64() > 1.0).count();
    assert!(wide <= 1, "the last may have both cores: {wide}");
}

/// Suites on two cores that are asked for one by one at nearly the same moment; each core beyond
/// the first makes them slower by `drag`. The mean completion time of 1, 2, 3 and 5 at once.
fn suites_at_once(policy: Policy, serial: f64, drag: f64) -> [f64; 4] {
    const ROUNDS: usize = 6;
    let mut timed = Timed::new(Config { policy, ..Config::default() }, 2, 1);
    let suite = |units: &'static [f64], seconds| {
        let mut suite = unforeseen(units, seconds, serial);
        suite.truth.drag = drag;
        suite
    };
    for a in 0..6 {
        // The first of all finds cold files.
        let units: &[f64] = if a % 2 == 0 { &[1.0] } else { &[2.0] };
        timed.submit(a, 0, suite(units, if a == 0 { 3.8 } else { 1.9 }));
        timed.run_until(timed.now + 10.0);
    }
    let mut a = 6;
    [1, 2, 3, 5].map(|at_once| {
        let mut sum = 0.0;
        for _ in 0..ROUNDS {
            let begun = timed.now;
            for n in 0..at_once {
                timed.run_until(begun + n as f64 * 1e-3);
                timed.submit(a + n, 0, suite(&[1.0, 2.0], 1.9));
            }
            timed.run_until(begun + 50.0);
            sum += (a..a + at_once).map(|a| timed.ended[&action(a)] - begun).sum::<f64>();
            a += at_once;
        }
        sum / (ROUNDS * at_once) as f64
    })
}

#[test]
fn those_who_come_together_are_seen_together() {
    for (serial, drag) in [(1.0, 0.4), (1.0, 0.0), (0.9, 0.0), (0.7, 0.0), (0.3, 0.0)] {
        let ours = suites_at_once(Policy::Elastic, serial, drag);
        let fixed = [1, 2].map(Units::cores);
        let fixed = fixed.map(|dop| suites_at_once(Policy::FixedDop { dop }, serial, drag));
        for (load, ours) in ours.into_iter().enumerate() {
            let best = fixed[0][load].min(fixed[1][load]);
            assert!(ours <= 1.02 * best, "{serial}, {drag}, load {load}: {ours} against {best}");
        }
    }
}

#[test]
fn those_who_ask_for_long_ones_do_not_delay_the_short() {
    let mut timed = timed(2, 1);
    for a in 0..4 {
        timed.submit(a, 0, foreseen(&[1.0], 100.0, 1.0));
    }
    timed.submit(4, 0, foreseen(&[1.0], 1.0, 1.0));
    timed.run_until(1e6);
    assert!(timed.ended[&action(4)] < 102.0, "{}", timed.ended[&action(4)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Short actions of its own job and of others come without end, at twice of what the
    /// node can do. A long one starts when those that rank before it are served: the
    /// backlog of its job up to its rank, at its job's share of the node, and no later
    /// than what runs has ended.
    #[test]
    fn nobody_starves(jobs in 1usize..4, cores in 1u32..6, long in 5.0..40.0_f64,
                      short in 0.2..2.0_f64, wide in any::<bool>(), malleable in any::<bool>()) {
        let mut timed = timed(cores, jobs);
        let every = short / f64::from(cores) / 2.0;
        let wide: &[f64] = if wide { &[1.0, 2.0, 4.0] } else { &[1.0] };
        let victim = Submitted { malleable, ..foreseen(wide, long, 0.2) };
        let share = f64::from(cores) / jobs as f64;
        // What its own job brings until its rank has come, at its share; and three times
        // that, since shares are of cores held at the moment, and cores are whole.
        let until_rank = long + 2.0 * f64::from(cores) / jobs as f64 * long / share;
        let bound = 3.0 * (until_rank + 20.0 * short) + 10.0;
        let mut submitted = None;
        for number in 1.. {
            timed.submit(number, number % jobs, foreseen(&[1.0], short, 1.0));
            timed.run_until(timed.now + every);
            if timed.started.contains_key(&action(0)) {
                break;
            }
            if submitted.is_none() && timed.now > 5.0 * short {
                timed.submit(0, 0, victim.clone());
                prop_assert!(timed.units(0).is_none(), "others wait already");
                submitted = Some(timed.now);
            }
            let waited = timed.now - submitted.unwrap_or(timed.now);
            prop_assert!(waited < bound, "{waited} of {bound}");
        }
    }
}
