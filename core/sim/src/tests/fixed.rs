//! `fixed:N`, and the rules that hold for it.

use super::*;
use crate::chunks::Gpus;

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
