//! `static:N` and `kubernetes:R:L`.

use super::*;
use crate::replicas::replicas;

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
fn a_call_that_is_refused_for_years_tries_as_seldom_as_it_may() {
    let workload = [arrives(0.0, vec![act(&[1.0], 1e8)]), arrives(0.0, vec![act(&[1.0], 1.0)])];
    // At 63 + 60 k, one by one or not.
    let start = 100_000_023.0;
    let concurrency = times(&quota(Some(1), None), &workload, "static:1");
    assert_eq!(concurrency[1], [0.0, start, start + 1.0]);
    let window = times(&quota(None, Some((1, 1e8))), &workload, "static:1");
    assert!(window.contains(&[0.0, start, start + 1.0]), "{window:?}");
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
fn a_pod_that_fits_at_arrival_delays_no_submission() {
    // The call of the first goes out before that of the second, which needs no pod.
    let mut cluster = cpu(1, 1, 1.0);
    cluster.pools.extend(quota(Some(1), None).pools);
    let call = || act_on(1, None, &[1.0], 5.0, 0.0);
    let workload = [arrives(0.0, vec![call(), act(&[1.0], 1.0)]), arrives(0.0, vec![call()])];
    let times = times(&cluster, &workload, "static:1");
    assert_eq!(times[0], [0.0, 0.0, 5.0]);
    // Refused at 0, 1 and 3.
    assert_eq!(times[2], [0.0, 7.0, 12.0]);
}
