//! Each rule by an example computed by hand, and what must hold of every run.

use std::time::Duration;

use proptest::prelude::*;
use rollwright_core::quota::{QuotaLimit, Rate};

use crate::chunks::Gpus;
use crate::cluster::{Bytes, Cluster, Pool, PoolKind, Service, nanos};
use crate::replicas::replicas;
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
fn fixed_takes_the_largest_units_up_to_n_else_the_smallest() {
    let workload = [
        arrives(0.0, vec![act(&[1.0, 2.0, 4.0], 8.0)]),
        arrives(0.0, vec![act(&[4.0, 8.0], 8.0)]),
        // 10 * (0.2 + 0.8 / 2)
        arrives(0.0, vec![act_on(0, None, &[1.0, 2.0], 10.0, 0.2)]),
    ];
    let times = times(&cpu(1, 16, 1.0), &workload, "fixed:3");
    assert_eq!(times, [[0.0, 0.0, 4.0], [0.0, 0.0, 2.0], [0.0, 0.0, 6.0]]);
}

#[test]
fn the_head_of_a_line_is_not_overtaken() {
    let workload = [
        arrives(0.0, vec![act(&[3.0], 30.0)]),
        arrives(1.0, vec![act(&[4.0], 4.0)]),
        arrives(2.0, vec![act(&[1.0], 5.0)]),
    ];
    let times = times(&cpu(1, 4, 1.0), &workload, "fixed:4");
    assert_eq!(times, [[0.0, 0.0, 10.0], [1.0, 10.0, 11.0], [2.0, 11.0, 16.0]]);
}

#[test]
fn completions_come_first_then_submissions_in_input_order() {
    let workload = [
        arrives(0.0, vec![act(&[1.0], 5.0)]),
        arrives(0.0, vec![generate(5.0), act(&[1.0], 1.0)]),
        arrives(5.0, vec![act(&[1.0], 1.0)]),
        arrives(0.0, vec![generate(4.0), generate(1.0), act(&[1.0], 1.0)]),
    ];
    let times = times(&cpu(1, 1, 1.0), &workload, "fixed:1");
    assert_eq!(times[1..], [[5.0, 5.0, 6.0], [5.0, 6.0, 7.0], [5.0, 7.0, 8.0]]);
}

#[test]
fn instants_are_equal_after_rounding_to_a_nanosecond() {
    // 0.1 + 0.2 is a little more than 0.3 as floating-point numbers.
    let workload = [
        arrives(0.0, vec![generate(0.1), generate(0.2), act(&[1.0], 1.0)]),
        arrives(0.0, vec![generate(0.3), act(&[1.0], 1.0)]),
    ];
    let times = times(&cpu(1, 1, 1.0), &workload, "fixed:1");
    assert_eq!(times, [[0.3, 0.3, 1.3], [0.3, 1.3, 2.3]]);
}

#[test]
fn shares_of_a_node_occupy_their_sum_rounded_up() {
    let share = || arrives(0.0, vec![act(&[0.4], 5.0)]);
    let workload = [share(), share(), share()];
    let cluster = cpu(1, 1, 1.0);
    // The third would make it two cores.
    let third = times(&cluster, &workload, "fixed:1")[2];
    assert_eq!(third, [0.0, 5.0, 10.0]);
    let (report, _) = run(&cluster, &workload, "fixed:1");
    // Three times 0.4 cores for 5 s in 10 s; one core was held all the time.
    assert!((report.utilization["cpu"] - 0.6).abs() < 1e-12);
    assert!((report.reserved["cpu"] - 1.0).abs() < 1e-12);
    // Ten tenths are one core, not a little more.
    let tenths: Vec<Trajectory> = (0..10).map(|_| arrives(0.0, vec![act(&[0.1], 1.0)])).collect();
    assert!(times(&cluster, &tenths, "fixed:1").iter().all(|times| times[1] == 0.0));
    // A core beside a share.
    let mixed = [share(), arrives(0.0, vec![act(&[1.0], 5.0)]), share()];
    assert!(times(&cpu(1, 2, 1.0), &mixed, "fixed:1").iter().all(|times| times[1] == 0.0));
}

#[test]
fn a_sandbox_opens_where_most_memory_is_free_and_holds_it_to_the_end() {
    let stays =
        |gib: f64, seconds: f64| with_memory(gib, vec![act(&[1.0], 1.0), generate(seconds)]);
    let workload = [
        stays(6.0, 9.0),  // node 0: 4 left, until 10
        stays(5.0, 19.0), // node 1: 5 left, until 20
        stays(5.0, 29.0), // node 1: 0 left
        stays(4.5, 1.0),  // none: waits for the first, although cores are free
        stays(1.0, 1.0),  // fits node 0, but waits in line
    ];
    let times = times(&cpu(2, 8, 10.0), &workload, "fixed:1");
    assert_eq!(times[2], [0.0, 0.0, 1.0]);
    assert_eq!(times[3], [0.0, 10.0, 11.0]);
    assert_eq!(times[4], [0.0, 10.0, 11.0]);
}

#[test]
fn actions_stay_on_the_node_of_their_sandbox() {
    // Both sandboxes open on node 0 (no memory: all nodes are equal), so the second
    // trajectory waits although node 1 is idle.
    let workload = [arrives(0.0, vec![act(&[1.0], 3.0)]), arrives(0.0, vec![act(&[1.0], 3.0)])];
    let times = times(&cpu(2, 1, 1.0), &workload, "fixed:1");
    assert_eq!(times, [[0.0, 0.0, 3.0], [0.0, 3.0, 6.0]]);
}

#[test]
fn a_service_is_restored_where_it_is_not_resident() {
    let workload = [
        arrives(0.0, vec![serve(0, &[4.0], 8.0)]),
        arrives(10.0, vec![serve(1, &[4.0], 8.0)]),
        arrives(20.0, vec![serve(0, &[4.0], 8.0)]),
        // Needs GPUs of the least recently used: those of service 1.
        arrives(30.0, vec![serve(2, &[4.0], 8.0)]),
        arrives(40.0, vec![serve(0, &[4.0], 8.0)]),
        arrives(50.0, vec![serve(1, &[4.0], 8.0)]),
    ];
    let cluster = gpu(8, &[&[4], &[4], &[4]]);
    let exec: Vec<f64> =
        times(&cluster, &workload, "fixed:8").iter().map(|times| times[2] - times[1]).collect();
    assert_eq!(exec, [4.0, 4.0, 2.0, 4.0, 2.0, 4.0]);
    // Restores are part of what a pool ran: 6 actions on 4 of 8 GPUs, 20 s in 54.
    let (report, _) = run(&cluster, &workload, "fixed:8");
    assert!((report.utilization["rm"] - 4.0 * 20.0 / (8.0 * 54.0)).abs() < 1e-12);
    assert_eq!(report.utilization, report.reserved);
}

#[test]
fn a_degree_of_a_service_is_a_resident_of_its_own() {
    let workload =
        [arrives(0.0, vec![serve(0, &[4.0], 8.0)]), arrives(10.0, vec![serve(0, &[2.0], 8.0)])];
    let times = times(&gpu(8, &[&[2, 4]]), &workload, "fixed:8");
    assert_eq!(times[1], [10.0, 10.0, 16.0]);
}

#[test]
fn chunks_are_aligned_and_come_from_the_smallest_free_one() {
    let mut gpus = Gpus::new(2, 8);
    let first = gpus.take(0, 2).unwrap();
    assert_eq!((first.node, first.start), (0, 0));
    // The free chunk of 2 beside it, not one of node 1 or the 4.
    let second = gpus.take(1, 1).unwrap();
    assert_eq!((second.node, second.start), (0, 2));
    assert_eq!(gpus.take(2, 1).map(|chunk| chunk.start), Some(3));
    assert_eq!(gpus.take(3, 4).map(|chunk| (chunk.node, chunk.start)), Some((0, 4)));
    assert_eq!(gpus.take(4, 8).map(|chunk| chunk.node), Some(1));
    // All are busy.
    assert_eq!(gpus.take(5, 1), None);
    gpus.give(second, 7);
    gpus.give(first, 9);
    // Two GPUs that do not run are no aligned chunk of 4.
    assert_eq!(gpus.take(5, 4), None);
    // The one that was used less recently.
    assert_eq!(gpus.take(5, 1).map(|chunk| chunk.start), Some(2));
    assert!(gpus.take(0, 2).unwrap().resident);
}

#[test]
fn a_quota_bounds_what_runs_and_what_starts_in_a_window() {
    let call = || arrives(0.0, vec![act(&[1.0], 4.0)]);
    let calls = [call(), call(), call()];
    let starts = |cluster: &Cluster| -> Vec<f64> {
        times(cluster, &calls, "fixed:1").iter().map(|times| times[1]).collect()
    };
    assert_eq!(starts(&quota(Some(1), None)), [0.0, 4.0, 8.0]);
    // The window is half-open: at 10 the starts at 0 are out.
    assert_eq!(starts(&quota(None, Some((2, 10.0)))), [0.0, 0.0, 10.0]);
    assert_eq!(starts(&quota(Some(1), Some((2, 10.0)))), [0.0, 4.0, 10.0]);
}

#[test]
fn a_line_holds_up_no_other_line() {
    let mut cluster = quota(Some(1), None);
    cluster.pools.extend(cpu(1, 1, 1.0).pools);
    let workload = [
        arrives(0.0, vec![act(&[1.0], 9.0)]),
        arrives(0.0, vec![act(&[1.0], 9.0)]),
        arrives(1.0, vec![act_on(1, None, &[1.0], 1.0, 0.0)]),
    ];
    let times = times(&cluster, &workload, "fixed:1");
    assert_eq!(times[1..], [[0.0, 9.0, 18.0], [1.0, 1.0, 2.0]]);
}

#[test]
fn a_pod_owns_its_cores_and_memory_from_arrival_to_the_end() {
    let phases = || vec![generate(1.0), act(&[1.0, 2.0, 4.0], 4.0), generate(3.0)];
    let workload = [
        with_memory(1.0, phases()),
        with_memory(1.0, phases()),
        with_memory(1.0, vec![act(&[1.0], 1.0), act(&[1.0], 1.0)]),
        // Needs no pod.
        arrives(0.0, vec![generate(2.0)]),
    ];
    let cluster = cpu(1, 4, 10.0);
    let times = times(&cluster, &workload, "static:2");
    // Two pods of 2 cores; the third comes when the first two end, at 6.
    assert_eq!(times[..2], [[1.0, 1.0, 3.0], [1.0, 1.0, 3.0]]);
    // The wait for the pod is queueing of the first action alone.
    assert_eq!(times[2..], [[0.0, 6.0, 7.0], [7.0, 7.0, 8.0]]);
    let (report, _) = run(&cluster, &workload, "static:2");
    assert_eq!(report.makespan_s, 8.0);
    // 2 x 2 cores for 2 s, and 1 for 2 s; 2 cores for 6, 6 and 2 s.
    assert!((report.utilization["cpu"] - 10.0 / 32.0).abs() < 1e-12);
    assert!((report.reserved["cpu"] - 28.0 / 32.0).abs() < 1e-12);
}

#[test]
fn replicas_are_dealt_until_no_more_fit_and_waited_for_by_service() {
    let cluster = gpu(8, &[&[4, 8], &[2]]);
    // 4, 2, then 4 does not fit, then 2.
    assert_eq!(replicas(&cluster), [1, 2]);
    let workload = [
        arrives(0.0, vec![serve(0, &[4.0, 8.0], 8.0)]),
        arrives(0.0, vec![serve(0, &[4.0, 8.0], 8.0)]),
        arrives(0.0, vec![serve(1, &[2.0], 8.0)]),
    ];
    let times = times(&cluster, &workload, "static:1");
    // Nothing is restored.
    assert_eq!(times, [[0.0, 0.0, 2.0], [0.0, 2.0, 4.0], [0.0, 0.0, 4.0]]);
    let (report, _) = run(&cluster, &workload, "static:1");
    assert!((report.utilization["rm"] - (4.0 * 4.0 + 2.0 * 4.0) / 32.0).abs() < 1e-12);
    assert!((report.reserved["rm"] - 1.0).abs() < 1e-12);
}

#[test]
fn a_refused_call_backs_off() {
    let workload = [
        arrives(0.0, vec![act(&[1.0], 2.5)]),
        arrives(0.0, vec![act(&[1.0], 1.0)]),
        arrives(2.7, vec![act(&[1.0], 100.0)]),
        arrives(3.0, vec![act(&[1.0], 1.0)]),
    ];
    let times = times(&quota(Some(1), None), &workload, "static:1");
    // Refused at 0, 1 and 3; at 3 the third call holds it since 2.7.
    assert_eq!(times[2], [2.7, 2.7, 102.7]);
    // Then at 7, 15, 31, 63 and, 60 s on, 123.
    assert_eq!(times[1], [0.0, 123.0, 124.0]);
    // From 3: 4, 6, 10, 18, 34, 66, 126.
    assert_eq!(times[3], [3.0, 126.0, 127.0]);
}

#[test]
fn running_actions_share_the_cores_of_a_node() {
    let cluster = cpu(1, 4, 1.0);
    let action = |at: f64| arrives(at, vec![act(&[1.0, 8.0], 8.0)]);
    let workload = [action(0.0), action(1.0)];
    // The first has all 4 cores for 1 s: half done. Then 2 cores each: the other half
    // takes 2 s. The second is half done then, and has 4 cores for the rest.
    let shared = times(&cluster, &workload, "kubernetes:0.5:8");
    assert_eq!(shared, [[0.0, 0.0, 3.0], [1.0, 1.0, 4.0]]);
    let (report, _) = run(&cluster, &workload, "kubernetes:0.5:8");
    assert!((report.utilization["cpu"] - 1.0).abs() < 1e-9);
    assert!((report.reserved["cpu"] - 0.5 * 6.0 / 16.0).abs() < 1e-12);
    // No more than L.
    assert_eq!(times(&cluster, &workload[..1], "kubernetes:0.5:2")[0], [0.0, 0.0, 4.0]);
    // What one cannot use is the others': 1 and 3 cores.
    let uneven = [arrives(0.0, vec![act(&[1.0], 3.0)]), arrives(0.0, vec![act(&[3.0, 8.0], 9.0)])];
    let got = times(&cluster, &uneven, "kubernetes:0.5:8");
    assert_eq!(got, [[0.0, 0.0, 3.0], [0.0, 0.0, 3.0]]);
    // Below one core, in proportion: 8 actions of 4 cores.
    let many: Vec<Trajectory> = (0..8).map(|_| action(0.0)).collect();
    let got = times(&cluster, &many, "kubernetes:0.5:8");
    assert!(got.iter().all(|times| *times == [0.0, 0.0, 16.0]), "{got:?}");
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
        assert!(matches!(wrong.parse::<Policy>(), Err(UnknownPolicy::Unknown(_))), "{wrong}");
    }
    assert!(matches!("elastic".parse::<Policy>(), Err(UnknownPolicy::NotYet(_))));
}

fn any_workload() -> impl Strategy<Value = Vec<Trajectory>> {
    let units = prop::sample::select(vec![
        vec![0.3],
        vec![0.5, 1.0],
        vec![1.0],
        vec![1.0, 2.0, 4.0],
        vec![3.0],
    ]);
    let phase = prop_oneof![
        (0_u32..5).prop_map(|s| generate(f64::from(s))),
        (units, 0_u32..9, 0_u32..3).prop_map(|(units, s, serial)| {
            act_on(0, None, &units, f64::from(s), f64::from(serial) / 2.0)
        }),
        (0_usize..2, 0_u32..9).prop_map(|(service, s)| act_on(
            1,
            Some(service),
            &[2.0, 4.0],
            f64::from(s),
            0.1
        )),
        (0_u32..5).prop_map(|s| act_on(2, None, &[1.0], f64::from(s), 0.0)),
    ];
    let trajectory = (0_u32..10, 0_u32..4, prop::collection::vec(phase, 0..6)).prop_map(
        |(arrival, gib, phases)| Trajectory {
            memory: Bytes::from_gib(f64::from(gib)),
            ..arrives(f64::from(arrival), phases)
        },
    );
    prop::collection::vec(trajectory, 1..12)
}

fn everything() -> Cluster {
    let mut cluster = cpu(2, 4, 6.0);
    cluster.pools.push(pool("rm", PoolKind::Gpu { nodes: 1, gpus: 8 }));
    cluster.pools.extend(quota(Some(2), Some((3, 5.0))).pools);
    let service = |name: &str| Service {
        name: name.to_owned(),
        pool: 1,
        degrees: vec![2, 4],
        restore: nanos(1.0),
    };
    cluster.services = vec![service("a"), service("b")];
    cluster
}

proptest! {
    #[test]
    fn every_action_runs_once_and_within_the_capacity(
        workload in any_workload(),
        policy in prop::sample::select(vec!["fixed:1", "fixed:4", "static:3", "static:4", "kubernetes:0.5:2", "kubernetes:3:8"]),
    ) {
        let cluster = everything();
        let (report, records) = run(&cluster, &workload, policy);
        let actions: usize = workload.iter().map(|trajectory| trajectory.actions().count()).sum();
        prop_assert_eq!((report.actions, records.len()), (actions, actions));
        for part in report.utilization.values().chain(report.reserved.values()) {
            prop_assert!((0.0..=1.0 + 1e-9).contains(part), "{part}");
        }
        let action = |record: &Record| match &workload[record.trajectory].phases[record.phase] {
            Phase::Act(action) => action,
            Phase::Generate(_) => panic!("a record of no action"),
        };
        for record in &records {
            prop_assert!(record.submitted <= record.started && record.started <= record.ended);
            // Whoever runs beside it, at its start.
            let beside = records.iter().filter(|other| {
                action(other).pool == action(record).pool
                    && other.started <= record.started && record.started < other.ended
            });
            let (units, calls) = beside.fold((0, 0), |(units, calls), other| (units + other.units, calls + 1));
            let most = [8 * UNIT, 8 * UNIT, u64::MAX][action(record).pool];
            prop_assert!(units <= most, "{units}");
            prop_assert!(action(record).pool != 2 || calls <= 2);
        }
        // Again the same.
        prop_assert_eq!(run(&cluster, &workload, policy), (report, records));
    }
}
