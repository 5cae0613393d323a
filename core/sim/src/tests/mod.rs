//! Each rule by an example computed by hand, and what must hold of every run.
#![expect(clippy::float_cmp, reason = "hand-computed times are exact")]

mod any;
mod elastic;
mod fixed;
mod pods;

use std::time::Duration;

use rollwright_core::quota::{QuotaLimit, Rate};

use crate::cluster::{Bytes, Cluster, Pool, PoolKind, Service, nanos};
use crate::workload::{Action, Phase, Trajectory, UNIT};
use crate::*;

fn pool(name: &str, kind: PoolKind) -> Pool {
    Pool { name: name.to_owned(), kind }
}

/// Pool 0: CPU nodes.
fn cpu(nodes: u64, cores: u64, gib: f64) -> Cluster {
    let kind = PoolKind::Cpu { nodes, cores, memory: Bytes::from_gib(gib) };
    Cluster { pools: vec![pool("cpu", kind)], ..Cluster::default() }
}

/// Pool 0: one node with GPUs, and services by their degrees, restored in 2 s.
fn gpu(gpus: u64, services: &[&[u64]]) -> Cluster {
    let service = |(i, degrees): (usize, &&[u64])| Service {
        name: format!("s{i}"),
        pool: 0,
        degrees: degrees.to_vec(),
        restore: nanos(2.0),
    };
    Cluster {
        pools: vec![pool("rm", PoolKind::Gpu { nodes: 1, gpus })],
        services: services.iter().enumerate().map(service).collect(),
        depth: None,
    }
}

fn quota(concurrency: Option<u32>, rate: Option<(u32, f64)>) -> Cluster {
    let rate =
        rate.map(|(amount, period)| Rate { amount, period: Duration::from_secs_f64(period) });
    let limit = QuotaLimit { concurrency, rate };
    Cluster { pools: vec![pool("search", PoolKind::Quota(limit))], ..Cluster::default() }
}

fn generate(seconds: f64) -> Phase {
    Phase::Generate(nanos(seconds))
}

fn act_on(pool: usize, service: Option<usize>, units: &[f64], duration: f64, serial: f64) -> Phase {
    let units = units.iter().map(|units| (units * UNIT as f64).round() as u64).collect();
    Phase::Act(Action { pool, service, units, duration, serial, malleable: false })
}

fn act(units: &[f64], duration: f64) -> Phase {
    act_on(0, None, units, duration, 0.0)
}

fn serve(service: usize, units: &[f64], duration: f64) -> Phase {
    act_on(0, Some(service), units, duration, 0.0)
}

fn arrives(seconds: f64, phases: Vec<Phase>) -> Trajectory {
    Trajectory { arrival: nanos(seconds), phases, ..Trajectory::default() }
}

fn with_memory(gib: f64, phases: Vec<Phase>) -> Trajectory {
    Trajectory { memory: Bytes::from_gib(gib), ..arrives(0.0, phases) }
}

fn run(cluster: &Cluster, workload: &[Trajectory], policy: &str) -> (Report, Vec<Record>) {
    simulate(cluster, workload, policy.parse().unwrap(), &mut || Duration::ZERO).unwrap()
}

/// Submission, start and end of every action in seconds, by trajectory and phase.
fn times(cluster: &Cluster, workload: &[Trajectory], policy: &str) -> Vec<[f64; 3]> {
    let (_, mut records) = run(cluster, workload, policy);
    records.sort_by_key(|record| (record.trajectory, record.phase));
    let seconds = |record: &Record| {
        [record.submitted, record.started, record.ended].map(|time| time as f64 / 1e9)
    };
    records.iter().map(seconds).collect()
}

#[test]
fn percentiles_are_by_nearest_rank() {
    let of = |seconds: std::ops::RangeInclusive<u64>| {
        Distribution::of(seconds.map(|s| s * 1_000_000_000).collect())
    };
    let ten = of(1..=10);
    assert_eq!((ten.mean, ten.p50, ten.p90, ten.p99, ten.max), (5.5, 5.0, 9.0, 10.0, 10.0));
    let hundred = of(1..=100);
    assert_eq!((hundred.p50, hundred.p90, hundred.p99), (50.0, 90.0, 99.0));
    assert_eq!(of(7..=7).p50, 7.0);
}

#[test]
fn a_workload_without_actions_has_zeros() {
    let workload = [arrives(5.0, vec![generate(10.0)]), arrives(6.0, vec![])];
    let (report, records) = run(&cpu(1, 1, 1.0), &workload, "fixed:1");
    assert!(records.is_empty());
    assert_eq!(report.act_s, Distribution::default());
    assert_eq!(report.makespan_s, 10.0);
    assert_eq!(report.utilization["cpu"].to_bits(), 0.0_f64.to_bits());
}

#[test]
fn what_can_never_run_is_refused() {
    let refusal = |cluster: &Cluster, trajectory: Trajectory, policy: &str| {
        let policy = policy.parse().unwrap();
        let refused = simulate(cluster, &[trajectory], policy, &mut || Duration::ZERO).unwrap_err();
        refused.misfit.to_string()
    };
    let cluster = cpu(1, 4, 1.0);
    let two = || vec![act(&[2.0], 1.0)];
    assert!(refusal(&cluster, with_memory(2.0, two()), "fixed:1").contains("memory"));
    assert!(refusal(&cluster, arrives(0.0, two()), "static:1").contains("at least 2 units"));
    assert!(refusal(&cluster, arrives(0.0, two()), "static:5").contains("a pod of 5 cores"));
    assert!(refusal(&cluster, arrives(0.0, two()), "kubernetes:4.5:8").contains("a pod of 4.5"));
    let mut both = cpu(1, 4, 1.0);
    both.pools.extend(cpu(1, 4, 1.0).pools);
    let phases = vec![act(&[1.0], 1.0), act_on(1, None, &[1.0], 1.0, 0.0)];
    assert!(refusal(&both, arrives(0.0, phases), "fixed:1").contains("two pools"));
    let crowded = gpu(2, &[&[2], &[1]]);
    let second = arrives(0.0, vec![serve(1, &[1.0], 1.0)]);
    assert!(refusal(&crowded, second, "static:1").contains("no replica of service s1"));
}

#[test]
fn what_takes_longer_than_time_can_tell_is_refused() {
    let workload: Vec<Trajectory> =
        (0..4).map(|_| arrives(1e9, vec![act(&[1.0], 1e9), generate(1e9)])).collect();
    let policy = "kubernetes:1:0.000001".parse().unwrap();
    let refused = simulate(&cpu(1, 4, 1.0), &workload, policy, &mut || Duration::ZERO);
    assert_eq!(refused.unwrap_err().misfit, Misfit::TooLong);
}

#[test]
fn policies_have_names() {
    assert_eq!("fixed:4".parse(), Ok(Policy::Fixed { units: 4 * UNIT }));
    assert_eq!(
        "kubernetes:0.5:8".parse(),
        Ok(Policy::Kubernetes { request: UNIT / 2, limit: 8.0 })
    );
    for wrong in [
        "",
        "fixed",
        "fixed:0",
        "fixed:-1",
        "fixed:+1",
        "fixed:1.5",
        "static:",
        "kubernetes:1",
        "kubernetes:0:1",
        "kubernetes:nan:1",
        "kubernetes:1:2:3",
    ] {
        assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
    }
    assert_eq!("elastic".parse(), Ok(Policy::Elastic));
    assert_eq!("elastic-trajectory".parse(), Ok(Policy::ElasticTrajectory));
}
