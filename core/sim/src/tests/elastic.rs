//! `elastic`, `elastic-trajectory` and `tangram`, by examples.

use super::*;

fn malleable(phase: Phase) -> Phase {
    let Phase::Act(action) = phase else { return phase };
    Phase::Act(Action { malleable: true, ..action })
}

/// Five short actions a second for two cores too few, and one that takes all cores.
fn overload(short: &[Phase], long: Vec<Phase>) -> Vec<Trajectory> {
    let times = (0..1500).map(|place| f64::from(place) / 5.0);
    let mut workload: Vec<Trajectory> =
        times.map(|seconds| arrives(seconds, short.to_vec())).collect();
    workload.push(arrives(1.0, long));
    workload
}

#[test]
fn short_actions_first_and_nobody_starves() {
    // The long one is overtaken by those that come in its own 40 core-seconds: 50 s of work.
    let workload = overload(&[act(&[1.0], 1.0)], vec![act(&[4.0], 40.0)]);
    for policy in ["elastic", "tangram"] {
        let times = times(&cpu(1, 4, 1.0), &workload, policy);
        let [submitted, started, _] = times[1500];
        assert!(started - submitted <= 52.0, "{policy}: {started}");
        let behind = times[..1500].iter().filter(|times| times[1] > started).count();
        assert!(behind > 500, "{policy}: the line was empty");
    }
}

#[test]
fn short_trajectories_age() {
    // Every other trajectory goes on for 20 s, so that it goes first.
    let short = [act(&[1.0], 1.0), generate(20.0)];
    let workload = overload(&short, vec![act(&[4.0], 4.0)]);
    let times = times(&cpu(1, 4, 1.0), &workload, "elastic-trajectory");
    let [submitted, started, _] = times[1500];
    assert!((20.0..=28.0).contains(&(started - submitted)), "{started}");
}

#[test]
fn the_longest_trajectory_goes_first() {
    let workload = [
        arrives(0.0, vec![act(&[1.0], 5.0)]),
        arrives(1.0, vec![act(&[1.0], 1.0), generate(1.0)]),
        arrives(2.0, vec![act(&[1.0], 2.0), generate(50.0)]),
    ];
    let starts = |policy: &str| -> Vec<f64> {
        times(&cpu(1, 1, 1.0), &workload, policy).iter().map(|times| times[1]).collect()
    };
    assert_eq!(starts("elastic"), [0.0, 5.0, 6.0]);
    assert_eq!(starts("elastic-trajectory"), [0.0, 7.0, 5.0]);
}

#[test]
fn what_is_malleable_is_resized_while_it_runs() {
    let workload = [
        arrives(0.0, vec![malleable(act(&[1.0, 2.0, 4.0], 40.0))]),
        arrives(4.0, vec![act(&[2.0], 8.0)]),
    ];
    // 4 cores until 4 s: 16 of 40 core-seconds; 2 until 8 s: 24; then 4.
    let got = times(&cpu(1, 4, 1.0), &workload, "elastic");
    assert_eq!(got, [[0.0, 0.0, 12.0], [4.0, 4.0, 8.0]]);
    let (report, _) = run(&cpu(1, 4, 1.0), &workload, "elastic");
    assert!((report.utilization["cpu"] - 1.0).abs() < 1e-9, "{:?}", report.utilization);
    // The others leave it as it is.
    let fixed = times(&cpu(1, 4, 1.0), &workload, "fixed:4");
    assert_eq!(fixed, [[0.0, 0.0, 10.0], [4.0, 10.0, 14.0]]);
}

#[test]
fn tangram_arranges_what_fits_for_the_least_sum_of_durations() {
    // 6 cores for {1, 2, 4}: 4 for the long one and 2 for the short one.
    let workload = [
        arrives(0.0, vec![act(&[1.0, 2.0, 4.0], 8.0)]),
        arrives(0.0, vec![act(&[1.0, 2.0, 4.0], 40.0)]),
    ];
    let got = times(&cpu(1, 6, 1.0), &workload, "tangram");
    assert_eq!(got, [[0.0, 0.0, 4.0], [0.0, 0.0, 10.0]]);
}

#[test]
fn restores_count_where_gpus_are_chosen() {
    // Alone, 8 GPUs would be faster: 2 + 8 / 8 s. But the service is resident on 4: 8 / 4 s.
    let second = vec![generate(9.0), serve(0, &[4.0, 8.0], 8.0)];
    let workload = [arrives(0.0, vec![serve(0, &[4.0], 8.0)]), arrives(0.0, second)];
    let cluster = gpu(8, &[&[4, 8]]);
    for policy in ["elastic", "tangram"] {
        assert_eq!(times(&cluster, &workload, policy)[1], [9.0, 9.0, 11.0], "{policy}");
    }
    assert_eq!(times(&cluster, &workload, "fixed:8")[1], [9.0, 9.0, 12.0]);
}

#[test]
fn more_units_than_the_core_counts_are_left_out_or_refused() {
    let cluster = cpu(1, 10_000, 1.0);
    let both = [arrives(0.0, vec![act(&[1.0, 8192.0], 8192.0)])];
    assert_eq!(times(&cluster, &both, "elastic")[0][2], 8192.0);
    let workload = [arrives(0.0, vec![act(&[8192.0], 8192.0)])];
    assert_eq!(times(&cluster, &workload, "fixed:1")[0][2], 1.0);
    for policy in ["elastic", "elastic-trajectory", "tangram"] {
        let policy = policy.parse().unwrap();
        let refused = simulate(&cluster, &workload, policy, &mut || Duration::ZERO).unwrap_err();
        assert!(refused.misfit.to_string().contains("more than 4096 units"));
    }
}
