//! Every way against brute force.

use proptest::prelude::*;

use super::room::{Cores, Room};
use super::*;

fn task(choices: &[(u64, f64)]) -> Task {
    Task::new(choices.iter().map(|&(units, duration)| Choice { units, duration })).unwrap()
}

/// Tries every choice of every task.
fn brute_force<R: Room>(tasks: &[Task], left: R::Left) -> Option<f64> {
    let Some((first, rest)) = tasks.split_first() else { return Some(0.0) };
    let totals = first.choices().iter().filter_map(|choice| {
        Some(choice.duration + brute_force::<R>(rest, R::take(left, choice.units)?)?)
    });
    totals.reduce(f64::min)
}

/// Fails unless the units are choices of their tasks, fit, and sum to the total.
fn check<R: Room>(tasks: &[Task], room: &R, arrangement: &Arrangement) {
    assert_eq!(arrangement.units.len(), tasks.len());
    let mut left = room.full();
    let mut sum = 0.0;
    for (task, &units) in tasks.iter().zip(&arrangement.units) {
        let choice = task.choices().iter().find(|choice| choice.units == units).unwrap();
        sum += choice.duration;
        left = R::take(left, units).unwrap();
    }
    assert!(close(sum, arrangement.total), "{sum} is not {}", arrangement.total);
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs() + b.abs())
}

/// Any units from `sizes`, any durations: also longer ones for more units.
fn tasks(sizes: Vec<u64>, most: usize) -> impl Strategy<Value = Vec<Task>> {
    let count = sizes.len();
    let choices = proptest::sample::subsequence(sizes, 1..=count)
        .prop_flat_map(|units| {
            let durations =
                prop::collection::vec((0_u32..400).prop_map(|d| f64::from(d) / 8.0), units.len());
            (Just(units), durations)
        })
        .prop_map(|(units, durations)| task(&units.into_iter().zip(durations).collect::<Vec<_>>()));
    prop::collection::vec(choices, 0..=most)
}

fn infeasible() -> ArrangeError {
    ArrangeError::Infeasible { needed: 0, free: String::new() }
}

proptest! {
    #[test]
    fn cores_table_and_search_find_the_brute_force_optimum(
        tasks in tasks((1..=9).collect(), 5),
        units in 0_u64..40,
    ) {
        let want = brute_force::<Cores>(&tasks, units);
        let room = Cores(units);
        for got in [arrange(&tasks, &Free::Cores(units)), search::arrange(&tasks, &room, infeasible)] {
            match (want, got) {
                (Some(want), Ok(got)) => {
                    check(&tasks, &room, &got);
                    prop_assert!(close(want, got.total), "{} is not {want}", got.total);
                }
                (None, Err(ArrangeError::Infeasible { .. })) => {}
                (want, got) => prop_assert!(false, "want {want:?}, got {got:?}"),
            }
        }
    }

    #[test]
    fn one_core_table_answers_every_prefix_and_number_of_units(
        tasks in tasks((1..=6).collect(), 5),
        units in 0_usize..24,
    ) {
        let table = CoreTable::new(&tasks, units);
        for prefix in 0..=tasks.len() {
            for within in 0..=units {
                let want = brute_force::<Cores>(&tasks[..prefix], within as u64);
                let fits = table.longest() >= prefix;
                let want = want.filter(|_| fits);
                prop_assert_eq!(table.total(prefix, within).is_some(), want.is_some());
                if let (Some(want), Some(got)) = (want, table.arrangement(prefix, within)) {
                    check(&tasks[..prefix], &Cores(within as u64), &got);
                    prop_assert!(close(want, got.total));
                }
            }
        }
        // What is left out does not fit into all units.
        if let Some(next) = tasks.get(..=table.longest()) {
            prop_assert_eq!(brute_force::<Cores>(next, units as u64), None);
        }
    }

    #[test]
    fn chunk_table_and_search_find_the_brute_force_optimum_of_every_prefix(
        tasks in tasks(vec![1, 2, 4, 8], 6),
        counts in [0_u32..4, 0_u32..3, 0_u32..3, 0_u32..3],
    ) {
        let chunks = Chunks::new(counts);
        let table = ChunkTable::new(&tasks, chunks);
        for prefix in 0..=tasks.len() {
            let tasks = &tasks[..prefix];
            let want = brute_force::<Chunks>(tasks, chunks);
            prop_assert_eq!(table.total(prefix).is_some(), want.is_some());
            let searched = search::arrange(tasks, &chunks, infeasible);
            let all = arrange(tasks, &Free::Chunks(chunks));
            let Some(want) = want else {
                prop_assert_eq!(&searched, &Err(infeasible()));
                let refused = matches!(all, Err(ArrangeError::Infeasible { .. }));
                prop_assert!(refused);
                continue;
            };
            for got in [table.arrangement(prefix).unwrap(), searched.unwrap(), all.unwrap()] {
                check(tasks, &chunks, &got);
                prop_assert!(close(want, got.total), "{} is not {want}", got.total);
            }
        }
    }

    /// The rule of [`Chunks::take`] against every way to cut an interval of each
    /// chunk, on a map of the GPUs.
    #[test]
    fn the_smallest_chunk_first_holds_whatever_any_order_of_cuts_holds(
        counts in [0_u32..3, 0_u32..3, 0_u32..2, 0_u32..2],
        requests in prop::collection::vec(prop::sample::select(vec![1_u64, 2, 4, 8]), 0..7),
    ) {
        let mut left = Some(Chunks::new(counts));
        for &gpus in &requests {
            left = left.and_then(|left| left.take(gpus));
        }
        // A map of free GPUs: each chunk begins at a multiple of 8, so that it is
        // aligned and has no neighbour.
        let mut map = Vec::new();
        for (level, &count) in counts.iter().enumerate() {
            for _ in 0..count {
                map.extend((0..8).map(|gpu| gpu < 1 << level));
            }
        }
        prop_assert_eq!(left.is_some(), fits_somehow(&mut map, &requests));
    }

    #[test]
    fn marginal_gains_are_exact_where_they_apply(
        tasks in prop::collection::vec((1_u64..4, 1_u32..200, prop::collection::vec(1_u32..60, 0..6)), 0..5),
        units in 0_u64..24,
    ) {
        let tasks: Vec<Task> = tasks
            .into_iter()
            .map(|(from, end, mut gains)| {
                // Gains that shrink with the units.
                gains.sort_unstable_by(|a, b| b.cmp(a));
                let start = f64::from(end) + gains.iter().copied().map(f64::from).sum::<f64>();
                let mut choices = vec![(from, start)];
                for gain in gains {
                    let &(units, duration) = choices.last().unwrap();
                    choices.push((units + 1, duration - f64::from(gain)));
                }
                task(&choices)
            })
            .collect();
        let want = brute_force::<Cores>(&tasks, units);
        let got = marginal_gains(&tasks, units);
        prop_assert_eq!(want.is_some(), got.is_some());
        if let (Some(want), Some(got)) = (want, got) {
            check(&tasks, &Cores(units), &got);
            prop_assert!(close(want, got.total));
        }
    }
}

fn fits_somehow(map: &mut [bool], requests: &[u64]) -> bool {
    let Some((&gpus, rest)) = requests.split_first() else { return true };
    let size = gpus as usize;
    for start in (0..map.len()).step_by(size) {
        if map[start..start + size].iter().all(|free| *free) {
            map[start..start + size].fill(false);
            let fits = fits_somehow(map, rest);
            map[start..start + size].fill(true);
            if fits {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_gap_in_the_units_breaks_the_greedy_and_is_left_to_the_table() {
    // The second step of the first task gains more than its first.
    let tasks = [task(&[(1, 10.0), (2, 9.0), (4, 1.0)]), task(&[(1, 10.0), (2, 8.0)])];
    assert_eq!(marginal_gains(&tasks, 5), None);
    let got = arrange(&tasks, &Free::Cores(5)).unwrap();
    assert_eq!(got, Arrangement { total: 11.0, units: vec![4, 1] });
}

#[test]
fn a_free_chunk_is_split_and_parts_of_several_are_never_joined() {
    // Algorithm 4 as printed does neither.
    let two = [task(&[(2, 3.0)])];
    let four = Chunks::new([0, 0, 1, 0]);
    assert_eq!(arrange(&two, &Free::Chunks(four)).unwrap().units, [2]);
    let eight = [task(&[(8, 1.0)])];
    let scattered = Chunks::new([2, 1, 1, 0]);
    let refused = arrange(&eight, &Free::Chunks(scattered)).unwrap_err();
    assert!(refused.to_string().contains("need at least 8 units"), "{refused}");
}

#[test]
fn units_far_apart_need_no_table() {
    let tasks = [task(&[(1, 8.0), (1_000_000_000, 1.0)]), task(&[(1, 8.0), (999_999_999, 2.0)])];
    let got = arrange(&tasks, &Free::Cores(1_000_000_001)).unwrap();
    assert_eq!(got, Arrangement { total: 9.0, units: vec![1_000_000_000, 1] });
}

#[test]
fn a_thousand_tasks_on_thousands_of_cores_match_the_table() {
    let tasks: Vec<Task> = (0..300_u32)
        .map(|i| {
            let work = f64::from(i * 7919 % 503 + 1);
            task(&[1_u64, 3, 7, 12].map(|units| (units, work * (0.1 + 0.9 / units as f64))))
        })
        .collect();
    let table = CoreTable::new(&tasks, 1280);
    let searched = search::arrange(&tasks, &Cores(1280), infeasible).unwrap();
    check(&tasks, &Cores(1280), &searched);
    assert!(close(table.total(300, 1280).unwrap(), searched.total));
}

#[test]
fn many_chunks_need_no_table() {
    // Far more states than a table may have, but single GPUs would do no better.
    let small = task(&[(1, 8.0), (2, 5.0)]);
    let large = task(&[(4, 9.0), (8, 6.0)]);
    let tasks = [vec![small; 200], vec![large; 200]].concat();
    let chunks = Chunks::new([300, 300, 300, 250]);
    let got = arrange(&tasks, &Free::Chunks(chunks)).unwrap();
    check(&tasks, &chunks, &got);
    assert!(close(got.total, 200.0 * 5.0 + 200.0 * 6.0));
    let refused = arrange(&tasks, &Free::Chunks(Chunks::new([300, 300, 90, 20]))).unwrap_err();
    assert!(matches!(refused, ArrangeError::Infeasible { .. }), "{refused}");
}

#[test]
fn a_total_beyond_all_numbers_is_refused() {
    let tasks = [task(&[(1, 1e308)]), task(&[(1, 1e308)]), task(&[(2, 1.0)])];
    assert_eq!(arrange(&tasks, &Free::Cores(9)), Err(ArrangeError::Overflow));
}

#[test]
fn nothing_to_arrange_takes_no_time() {
    assert_eq!(arrange(&[], &Free::Cores(1)).unwrap().total.to_string(), "0");
    assert_eq!(arrange(&[], &Free::Chunks(Chunks::default())).unwrap().total.to_string(), "0");
}
