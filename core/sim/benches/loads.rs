//! The mean completion time of `elastic` at five loads, against the best fixed number of units
//! in hindsight, Tangram, and a bound that no schedule can beat; and what bounded look-aheads
//! lose, ours and Tangram's.
//!
//! `cargo bench -p rollwright-sim --bench loads -- [seed=1]`
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

#[path = "battery/random.rs"]
#[expect(dead_code, reason = "the battery draws more kinds of numbers")]
mod random;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use random::Random;
use rollwright_sim::cluster::{Bytes, Cluster, Pool, PoolKind, nanos};
use rollwright_sim::workload::{Action, Phase, Trajectory, UNIT};
use rollwright_sim::{Policy, Report, simulate};

const CORES: u64 = 128;
const DEGREES: [u64; 5] = [1, 2, 4, 8, 16];
/// Trajectories that come at once, each with one test run.
const BATCHES: [usize; 5] = [20, 80, 160, 400, 1600];
/// Parts of the cores that a stream would keep busy on one core each.
const STREAMS: [f64; 5] = [0.3, 0.6, 0.8, 0.95, 1.1];
/// Actions of a stream.
const STREAM: usize = 1500;
/// Entries of the look-ahead of Tangram's Algorithm 2 that are tried.
const DEPTHS: [u64; 3] = [1, 2, 3];

fn main() {
    let seed = std::env::args().find_map(|arg| arg.strip_prefix("seed=")?.parse().ok());
    let mut random = Random::new(seed.unwrap_or(1));
    println!("Simulated: one node of {CORES} cores, units {DEGREES:?}, mean work 80 s\n");
    println!(
        "| load | elastic | / best fixed (wished: <= 1.01) | / tangram (<= 1) | / lower bound | / its own without bounds (<= 1.02) | tangram, depth {DEPTHS:?} / all |"
    );
    println!("|---|---|---|---|---|---|---|");
    for count in BATCHES {
        let workload: Vec<Trajectory> = (0..count).map(|_| test_run(&mut random, 0.0)).collect();
        row(&format!("{count} at once"), &workload);
    }
    for busy in STREAMS {
        let mean_gap = 80.0 / (CORES as f64 * busy);
        let mut at = 0.0;
        let workload: Vec<Trajectory> = (0..STREAM)
            .map(|_| {
                at += random.exponential(mean_gap);
                test_run(&mut random, at)
            })
            .collect();
        row(&format!("stream, {:.0}% busy", busy * 100.0), &workload);
    }
}

fn test_run(random: &mut Random, arrival: f64) -> Trajectory {
    let action = Action {
        pool: 0,
        service: None,
        units: DEGREES.map(|units| units * UNIT).to_vec(),
        duration: random.lognormal(80.0 * (-0.32_f64).exp(), 0.8),
        serial: random.between(0.02, 0.3),
        malleable: false,
    };
    Trajectory {
        name: String::new(),
        arrival: nanos(arrival),
        memory: Bytes::from_gib(1.0),
        phases: vec![Phase::Act(action)],
    }
}

fn row(load: &str, workload: &[Trajectory]) {
    let ours = mean(workload, Policy::Elastic, None);
    let fixed = DEGREES.map(|n| (mean(workload, Policy::Fixed { units: n * UNIT }, None), n));
    let (fixed, degree) = fixed
        .into_iter()
        .fold((f64::INFINITY, 0), |best, next| if next.0 < best.0 { next } else { best });
    let tangram = mean(workload, Policy::Tangram, None);
    let bound = lower_bound(workload);
    let depths = DEPTHS
        .map(|depth| format!("{:.3}", mean(workload, Policy::Tangram, Some(depth)) / tangram));
    let unbounded = mean(workload, Policy::ElasticUnbounded, None);
    println!(
        "| {load} | {ours:.2} s | {} (N={degree}, {fixed:.2} s) | {} ({tangram:.2} s) | {:.3} ({bound:.2} s) | {} | {} |",
        judged(ours / fixed, 1.01),
        judged(ours / tangram, 1.0),
        ours / bound,
        judged(ours / unbounded, 1.02),
        depths.join(", ")
    );
}

/// A ratio, and whether it is what was wished.
fn judged(ratio: f64, most: f64) -> String {
    format!("{ratio:.3}{}", if ratio <= most { "" } else { " **missed**" })
}

fn mean(workload: &[Trajectory], policy: Policy, depth: Option<u64>) -> f64 {
    let kind = PoolKind::Cpu { nodes: 1, cores: CORES, memory: Bytes::from_gib(1e6) };
    let pools = vec![Pool { name: "cpu".to_owned(), kind }];
    let cluster = Cluster { pools, depth, ..Cluster::default() };
    let start = Instant::now();
    let report: Report = match simulate(&cluster, workload, policy, &mut || start.elapsed()) {
        Ok((report, _)) => report,
        Err(refused) => unreachable!("{refused}"),
    };
    report.act_s.mean
}

/// No schedule that keeps an action on its units has a smaller mean completion time.
///
/// An action that holds m cores for h seconds ends h / 2 after the middle of its work, and the
/// middles (mean busy times) of all obey, for every set of actions of areas a on C cores,
/// `sum(a M) >= a(S)^2 / 2C`. Their sum is least in the preemptive schedule in which all cores
/// serve the smallest area that is there (Goemans, "Improved approximation algorithms for
/// scheduling with release dates", 1997); smaller areas make it smaller. So the sum of ends
/// is at least that sum for the least areas, plus half of the least heights; nor does any
/// action take less than its least height.
fn lower_bound(workload: &[Trajectory]) -> f64 {
    let actions = workload.iter().filter_map(|trajectory| {
        let action = trajectory.actions().next()?;
        let units = || action.units.iter().map(|units| *units as f64 / UNIT as f64);
        let area = units().map(|m| m * action.seconds(m)).fold(f64::INFINITY, f64::min);
        let height = units().map(|m| action.seconds(m)).fold(f64::INFINITY, f64::min);
        Some((trajectory.arrival as f64 / 1e9, area, height))
    });
    let mut actions: Vec<(f64, f64, f64)> = actions.collect();
    actions.sort_by(|a, b| a.0.total_cmp(&b.0));
    let heights: f64 = actions.iter().map(|(.., height)| height).sum();
    let arrivals: f64 = actions.iter().map(|(arrival, ..)| arrival).sum();
    // Smallest area first; what is left of each, and its mean busy time so far.
    let mut there: BinaryHeap<(Reverse<u64>, usize)> = BinaryHeap::new();
    let mut left: Vec<f64> = actions.iter().map(|(_, area, _)| *area).collect();
    let (mut now, mut next, mut middles) = (0.0_f64, 0, 0.0);
    while next < actions.len() || !there.is_empty() {
        if there.is_empty() {
            now = now.max(actions[next].0);
        }
        while actions.get(next).is_some_and(|(arrival, ..)| *arrival <= now) {
            there.push((Reverse(actions[next].1.to_bits()), next));
            next += 1;
        }
        let Some(&(_, first)) = there.peek() else { continue };
        let until = actions.get(next).map_or(f64::INFINITY, |(arrival, ..)| *arrival);
        let span = (left[first] / CORES as f64).min(until - now);
        middles += span * CORES as f64 * (now + span / 2.0) / actions[first].1;
        left[first] -= span * CORES as f64;
        now += span;
        if left[first] <= 1e-9 {
            there.pop();
        }
    }
    let by_area = middles + heights / 2.0 - arrivals;
    by_area.max(heights) / actions.len().max(1) as f64
}
