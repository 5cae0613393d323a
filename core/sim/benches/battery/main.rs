//! What `elastic` makes of random workloads, against the best fixed number of units in
//! hindsight and against Tangram: the table of `docs/elastic.md`.
//!
//! `cargo bench -p rollwright-sim --bench battery -- [families=a,b] [cases=25] [worst=N] [policy=elastic]`
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

mod families;
mod random;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use families::{ALL, Case, case};
use rollwright_sim::workload::{Trajectory, UNIT};
use rollwright_sim::{Policy, Report, simulate};

/// Row of one case, ours over theirs.
struct Row {
    case: String,
    /// Ratios, ours over theirs: mean over the best fixed and over Tangram, makespan.
    ratios: [f64; 3],
    decision: f64,
    note: String,
}

/// What each may be at most.
const BOUNDS: [f64; 3] = [1.01, 1.0, 1.05];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, default: u64| {
        value(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let policy = value("policy").and_then(|name| name.parse().ok()).unwrap_or(Policy::Elastic);
    let wanted: Option<Vec<&str>> = value("families").map(|names| names.split(',').collect());
    let (first, cases, worst) = (number("first", 0), number("cases", 25), number("worst", 0));
    println!(
        "| family | mean ACT / best fixed | > 1.01 | mean ACT / tangram | > 1.00 | makespan / tangram | > 1.05 | decision p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut over: Vec<Row> = Vec::new();
    for (family, title) in ALL {
        if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&family)) {
            continue;
        }
        let rows = (first..first + cases).map(|seed| measure(family, seed, policy));
        let rows: Vec<Row> = rows.collect();
        let mut line = vec![format!("| {title} ")];
        for (place, bound) in BOUNDS.iter().enumerate() {
            let of = || rows.iter().map(|row| row.ratios[place]);
            let mean = of().sum::<f64>() / rows.len() as f64;
            let over = of().filter(|ratio| *ratio > bound + 1e-6).count();
            line.push(format!("| {mean:.3}, {:.3} | {over} ", of().fold(0.0, f64::max)));
        }
        let slowest = rows.iter().map(|row| row.decision).fold(0.0, f64::max);
        println!("{}| {slowest:.0} us |", line.concat());
        over.extend(rows.into_iter().filter(|row| excess(row) > 1e-6));
    }
    over.sort_by(|a, b| excess(b).total_cmp(&excess(a)));
    for row in over.iter().take(worst as usize) {
        let [fixed, tangram, makespan] = row.ratios;
        println!("{}: {fixed:.3} {tangram:.3} {makespan:.3} | {}", row.case, row.note);
    }
}

/// How far the worst ratio is over its bound.
fn excess(row: &Row) -> f64 {
    row.ratios.iter().zip(BOUNDS).map(|(ratio, bound)| ratio / bound - 1.0).fold(-1.0, f64::max)
}

fn run(Case { cluster, workload }: &Case, policy: Policy) -> Report {
    let start = Instant::now();
    match simulate(cluster, workload, policy, &mut || start.elapsed()) {
        Ok((report, _)) => report,
        Err(refused) => unreachable!("{refused}"),
    }
}

fn measure(family: &str, seed: u64, policy: Policy) -> Row {
    let case = case(family, seed);
    let began = Instant::now();
    let ours = run(&case, policy);
    let took = began.elapsed();
    let units: BTreeSet<u64> = case
        .workload
        .iter()
        .flat_map(Trajectory::actions)
        .flat_map(|action| action.units.iter().map(|units| units.div_ceil(UNIT) * UNIT))
        .collect();
    let fixed = units.iter().map(|&units| (run(&case, Policy::Fixed { units }), units / UNIT));
    let best = fixed.min_by(|a, b| a.0.act_s.mean.total_cmp(&b.0.act_s.mean));
    let Some((fixed, degree)) = best else { unreachable!("no units") };
    let began = Instant::now();
    let tangram = run(&case, Policy::Tangram);
    let slow = began.elapsed();
    Row {
        case: format!("{family} {seed}"),
        ratios: [
            ours.act_s.mean / fixed.act_s.mean,
            ours.act_s.mean / tangram.act_s.mean,
            ours.makespan_s / tangram.makespan_s,
        ],
        decision: ours.decision_us.p99,
        note: format!(
            "{} actions, mean ours {:.3} fixed:{degree} {:.3} tangram {:.3}, makespan {:.1} {:.1} \
             {:.1}, took {} {}",
            ours.actions,
            ours.act_s.mean,
            fixed.act_s.mean,
            tangram.act_s.mean,
            ours.makespan_s,
            fixed.makespan_s,
            tangram.makespan_s,
            shown(took),
            shown(slow),
        ),
    }
}

fn shown(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
