//! What one decision of `elastic` takes, with many waiting on 5 nodes of 256 cores.
//!
//! `cargo bench -p rollwright-sim --bench decisions`
//!
//! A run is repeated and each decision counts with the least time that it took, so that what
//! else the machine does is left out.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

#[path = "battery/random.rs"]
#[allow(dead_code, reason = "shared")]
mod random;

use std::time::{Duration, Instant};

use random::Random;
use rollwright_sim::cluster::{Bytes, Cluster, Pool, PoolKind, nanos};
use rollwright_sim::workload::{Action, Phase, Trajectory, UNIT};
use rollwright_sim::{Policy, simulate};

const REPEATED: usize = 5;

fn main() {
    println!("| units | trajectories | waiting | p50 | p99 | p99, as measured |");
    println!("|---|---|---|---|---|---|");
    for (name, units) in
        [("1, 2, 4, 8", vec![1, 2, 4, 8]), ("1 to 16", (1..=16).collect::<Vec<u64>>())]
    {
        for waiting in [500, 2000, 8000] {
            measure(name, &units, waiting);
        }
    }
}

fn measure(name: &str, units: &[u64], waiting: usize) {
    let kind = PoolKind::Cpu { nodes: 5, cores: 256, memory: Bytes::from_gib(1e6) };
    let pools = vec![Pool { name: "cpu".to_owned(), kind }];
    let cluster = Cluster { pools, ..Cluster::default() };
    let mut random = Random::new(5);
    let units: Vec<u64> = units.iter().map(|units| units * UNIT).collect();
    let count = 2 * waiting + 1100;
    let workload: Vec<Trajectory> = (0..count)
        .map(|_| {
            let mut act = || {
                Phase::Act(Action {
                    pool: 0,
                    service: None,
                    units: units.clone(),
                    duration: random.lognormal(100.0, 0.8),
                    serial: 0.05,
                    malleable: false,
                })
            };
            let phases = vec![act(), Phase::Generate(nanos(1.0)), act()];
            let memory = Bytes::from_gib(1.0);
            let arrival = nanos(random.between(0.0, 20.0));
            Trajectory { name: String::new(), arrival, memory, phases }
        })
        .collect();
    let mut least: Vec<Duration> = Vec::new();
    let mut measured = Vec::new();
    let mut queued = 0.0;
    for run in 0..REPEATED {
        let start = Instant::now();
        let mut times = Vec::new();
        let mut clock = || {
            let now = start.elapsed();
            times.push(now);
            now
        };
        let Ok((report, _)) = simulate(&cluster, &workload, Policy::Elastic, &mut clock) else {
            unreachable!("it fits")
        };
        measured.push(report.decision_us.p99);
        // Little's law.
        queued = report.queue_s.mean * report.actions as f64 / report.makespan_s;
        let took: Vec<Duration> =
            times.chunks(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        if run == 0 {
            least = took;
        } else {
            least.iter_mut().zip(took).for_each(|(least, took)| *least = took.min(*least));
        }
    }
    least.sort_unstable();
    let at = |part: f64| {
        least[((least.len() as f64 * part).ceil() as usize).max(1) - 1].as_secs_f64() * 1e6
    };
    measured.sort_by(f64::total_cmp);
    println!(
        "| {name} | {count} | {queued:.0} | {:.0} us | {:.0} us | {:.0} us |",
        at(0.5),
        at(0.99),
        measured[REPEATED / 2]
    );
}
