//! What a long simulation takes: a stream of short actions, some of them elastic, on 5 nodes of 64
//! cores that are 93% busy.
//!
//! `cargo bench -p rollwright-sim --bench million -- [actions=1000000] [every=8] [load=0.93] [policy=elastic]`
//!
//! `every=1` makes each action elastic. Processor time is what counts where the machine does
//! something else; reading the input is not in it.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

#[path = "battery/random.rs"]
#[allow(dead_code, reason = "shared")]
mod random;

use std::time::{Duration, Instant};

use random::Random;
use rollwright_sim::cluster::{Bytes, Cluster, Pool, PoolKind, nanos};
use rollwright_sim::workload::{Action, Phase, Trajectory, UNIT};
use rollwright_sim::{Policy, simulate};

const NODES: u64 = 5;
const CORES: u64 = 64;
/// Actions of a trajectory.
const TURNS: usize = 8;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, default: f64| {
        value(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let policy = value("policy").and_then(|name| name.parse().ok()).unwrap_or(Policy::Elastic);
    let (actions, every) = (number("actions", 1e6) as usize, number("every", 8.0) as usize);
    let workload = workload(actions, every.max(1), number("load", 0.93));
    let kind = PoolKind::Cpu { nodes: NODES, cores: CORES, memory: Bytes::from_gib(1e6) };
    let pools = vec![Pool { name: "cpu".to_owned(), kind }];
    let cluster = Cluster { pools, ..Cluster::default() };
    let (began, busy) = (Instant::now(), processor_time());
    let Ok((report, _)) = simulate(&cluster, &workload, policy, &mut || began.elapsed()) else {
        unreachable!("it fits")
    };
    let (busy, wall) = (processor_time().saturating_sub(busy), began.elapsed());
    let reached = busy < Duration::from_mins(1) && peak_mib() < 1024;
    println!(
        "{} actions: {:.1} s of processor time, {:.1} s of wall time, {} MiB at most (wished of a million: < 60 s, \
         < 1 GiB: {}); mean ACT {:.3} s, makespan {:.0} s, decisions p50 {:.1} us, p99 {:.1} us",
        report.actions,
        busy.as_secs_f64(),
        wall.as_secs_f64(),
        peak_mib(),
        if reached { "reached" } else { "MISSED" },
        report.act_s.mean,
        report.makespan_s,
        report.decision_us.p50,
        report.decision_us.p99,
    );
}

fn workload(actions: usize, every: usize, load: f64) -> Vec<Trajectory> {
    let mut random = Random::new(5);
    let mut submitted = 0;
    let mut work = 0.0;
    let mut trajectories: Vec<Trajectory> = (0..actions.div_ceil(TURNS))
        .map(|_| {
            let phases = (0..TURNS.min(actions - submitted)).flat_map(|_| {
                submitted += 1;
                let elastic = submitted % every == 0;
                let (units, median) =
                    if elastic { (&[1, 2, 4, 8][..], 40.0) } else { (&[1][..], 1.5) };
                let duration = random.lognormal(median, 0.8);
                work += duration;
                let units = units.iter().map(|units| units * UNIT).collect();
                let (pool, service, malleable) = (0, None, false);
                let action = Action { pool, service, units, duration, serial: 0.05, malleable };
                let thinks = random.exponential(8.0);
                [Phase::Generate(nanos(thinks)), Phase::Act(action)]
            });
            let phases = phases.collect();
            Trajectory { name: String::new(), arrival: 0, memory: Bytes::from_gib(1.0), phases }
        })
        .collect();
    let gap = work / (load * (NODES * CORES) as f64 * trajectories.len() as f64);
    let mut time = 0.0;
    for trajectory in &mut trajectories {
        time += random.exponential(gap);
        trajectory.arrival = nanos(time);
    }
    trajectories
}

/// Of this process, user and system.
fn processor_time() -> Duration {
    // Clock ticks, of which Linux has 100 a second; the name before them is in parentheses.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// The most memory that this process has held.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
