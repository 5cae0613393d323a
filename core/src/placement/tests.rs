//! Exact plans against brute force and against the paper's own algorithms.

use std::num::NonZeroUsize;

use proptest::prelude::*;

use super::baseline::{Aggregation, Cooling, aggregated, anneal, presorted};
use super::classes::Classes;
use super::fleet::Fleet;
use super::prices::{Market, Prices, Verdict};
use super::reach::{Reach, Sorted};
use super::search::{Chain, Found};
use super::*;

fn curve() -> impl Strategy<Value = Interference> {
    prop::collection::vec(0_u32..40, 1..8).prop_map(|steps| {
        let mut factor = 0.75;
        let factors = steps.into_iter().map(|step| {
            factor += f64::from(step) / 64.0;
            factor
        });
        Interference::new(factors.collect()).unwrap()
    })
}

fn lengths(most: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(prop_oneof![(0_u32..20).prop_map(f64::from), 0.0..100.0], 0..=most)
}

fn cost(group: &[usize], lengths: &[f64], token_time: f64, interference: &Interference) -> f64 {
    let longest = group.iter().map(|&i| lengths[i]).fold(0.0, f64::max);
    interference.at(group.len()) * token_time * longest
}

/// Fails unless every index is there once and the slowest group takes `makespan`.
fn check(
    makespan: f64,
    groups: &[Vec<usize>],
    times: &[f64],
    lengths: &[f64],
    interference: &Interference,
) {
    assert_eq!(groups.len(), times.len());
    let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
    all.sort_unstable();
    assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
    let costs =
        groups.iter().zip(times).map(|(group, time)| cost(group, lengths, *time, interference));
    let slowest = costs.fold(0.0, f64::max);
    assert_eq!(slowest.to_bits(), makespan.to_bits(), "{slowest} is not {makespan}");
}

/// The least makespan over all m^n assignments.
fn brute_force(lengths: &[f64], times: &[f64], interference: &Interference) -> f64 {
    fn assign(
        next: usize,
        groups: &mut [Vec<usize>],
        rest: (&[f64], &[f64], &Interference),
    ) -> f64 {
        let (lengths, times, interference) = rest;
        if next == lengths.len() {
            let costs = groups
                .iter()
                .zip(times)
                .map(|(group, time)| cost(group, lengths, *time, interference));
            return costs.fold(0.0, f64::max);
        }
        let mut best = f64::INFINITY;
        for worker in 0..groups.len() {
            groups[worker].push(next);
            best = best.min(assign(next + 1, groups, rest));
            groups[worker].pop();
        }
        best
    }
    assign(0, &mut vec![Vec::new(); times.len()], (lengths, times, interference))
}

/// The makespan of the search that does not look at every combination.
fn by_prices(lengths: &[f64], times: &[f64], interference: &Interference) -> f64 {
    let sorted = Sorted::new(lengths);
    let fleet = Fleet::new(times, lengths.len(), interference);
    let all = Chain::new(vec![(0, sorted.len())], &sorted, &fleet.kinds);
    workers::by_prices(&fleet, &sorted, Found { best: all, low: 0.0 }).unwrap().makespan
}

/// The least over every multiset of degrees within the budget.
fn brute_force_allocation(
    lengths: &[f64],
    left: (u64, usize),
    degrees: &[Degree],
    interference: &Interference,
    times: &mut Vec<f64>,
) -> f64 {
    let mut best = f64::INFINITY;
    if !times.is_empty() {
        best = brute_force(lengths, times, interference);
    }
    for (i, degree) in degrees.iter().enumerate() {
        if left.1 > 0 && degree.gpus <= left.0 {
            times.push(degree.token_time);
            let left = (left.0 - degree.gpus, left.1 - 1);
            best =
                best.min(brute_force_allocation(lengths, left, &degrees[i..], interference, times));
            times.pop();
        }
    }
    best
}

fn token_time() -> impl Strategy<Value = f64> {
    prop_oneof![
        prop::sample::select(vec![0.006, 0.008, 0.012, 0.02]),
        (1_u32..100).prop_map(|t| f64::from(t) / 1000.0)
    ]
}

proptest! {
    #[test]
    fn placement_is_the_brute_force_optimum(
        lengths in lengths(6),
        times in prop::collection::vec(token_time(), 1..5),
        interference in curve(),
    ) {
        let got = place(&lengths, &times, &interference).unwrap();
        check(got.makespan, &got.groups, &times, &lengths, &interference);
        let want = brute_force(&lengths, &times, &interference);
        prop_assert_eq!(got.makespan.to_bits(), want.to_bits(), "{} is not {}", got.makespan, want);
        if !lengths.is_empty() {
            let priced = by_prices(&lengths, &times, &interference);
            prop_assert_eq!(priced.to_bits(), want.to_bits(), "{} is not {}", priced, want);
        }
    }

    #[test]
    fn equal_workers_match_the_presorted_table(
        lengths in prop::collection::vec(0.0..1e5, 1..120),
        workers in 1_usize..9,
        interference in curve(),
    ) {
        let times = vec![0.0123; workers];
        let got = place(&lengths, &times, &interference).unwrap();
        check(got.makespan, &got.groups, &times, &lengths, &interference);
        let want = presorted(&lengths, &times, &interference);
        prop_assert_eq!(got.makespan.to_bits(), want.to_bits(), "{} is not {}", got.makespan, want);
    }

    /// Every order of the workers, each with the paper's table.
    #[test]
    fn different_workers_match_the_best_order_of_the_presorted_table(
        lengths in prop::collection::vec(0.0..1e4, 1..60),
        times in prop::collection::vec(token_time(), 1..6),
        interference in curve(),
    ) {
        let got = place(&lengths, &times, &interference).unwrap();
        check(got.makespan, &got.groups, &times, &lengths, &interference);
        let mut want = f64::INFINITY;
        permutations(&mut times.clone(), 0, &mut |order| {
            want = want.min(presorted(&lengths, order, &interference));
        });
        prop_assert_eq!(got.makespan.to_bits(), want.to_bits(), "{} is not {}", got.makespan, want);
        let priced = by_prices(&lengths, &times, &interference);
        prop_assert_eq!(priced.to_bits(), want.to_bits(), "{} is not {}", priced, want);
    }

    /// Blocks only take plans away, and where every trajectory is a block none is.
    #[test]
    fn aggregation_never_beats_the_optimum_and_alone_is_the_presorted_table(
        lengths in lengths(40),
        times in prop::collection::vec(token_time(), 1..6),
        interference in curve(),
        below in 0.0..120.0_f64,
        block in 1_usize..8,
    ) {
        let of = |below, block| {
            let block = NonZeroUsize::new(block).unwrap();
            aggregated(&lengths, &times, &interference, Aggregation { below, block })
        };
        let got = of(below, block);
        let exact = place(&lengths, &times, &interference).unwrap().makespan;
        let table = presorted(&lengths, &times, &interference);
        prop_assert!(exact <= table && table <= got, "{} <= {} <= {}", exact, table, got);
        prop_assert_eq!(of(0.0, block).to_bits(), table.to_bits());
        prop_assert_eq!(of(below, 1).to_bits(), table.to_bits());
    }

    /// Where all are aggregated, each block is a trajectory on a curve of its own.
    #[test]
    fn whole_blocks_are_the_presorted_table_of_their_longest(
        mut lengths in prop::collection::vec(0.0..100.0_f64, 1..60),
        times in prop::collection::vec(token_time(), 1..6),
        interference in curve(),
        block in 1_usize..8,
    ) {
        lengths.truncate((lengths.len() / block).max(1) * block);
        lengths.sort_unstable_by(|a, b| b.total_cmp(a));
        let longest: Vec<f64> = lengths.iter().copied().step_by(block).collect();
        let factors = (1..=60).map(|blocks| interference.at(blocks * block)).collect();
        let curve = Interference::new(factors).unwrap();
        prop_assume!(lengths.len() % block == 0);
        let aggregation =
            Aggregation { below: f64::INFINITY, block: NonZeroUsize::new(block).unwrap() };
        let got = aggregated(&lengths, &times, &interference, aggregation);
        prop_assert_eq!(got.to_bits(), presorted(&longest, &times, &curve).to_bits());
    }

    #[test]
    fn allocation_is_the_brute_force_optimum(
        lengths in lengths(5),
        gpus in 1_u64..9,
        max_workers in 1_usize..4,
        times in (token_time(), token_time(), token_time()),
        sizes in prop::sample::select(vec![[1_u64, 2, 4], [2, 3, 8], [1, 5, 6]]),
        interference in curve(),
    ) {
        let degrees: Vec<Degree> = sizes
            .into_iter()
            .zip([times.0, times.1, times.2])
            .map(|(gpus, token_time)| Degree { gpus, token_time })
            .collect();
        let got = allocate(&lengths, gpus, max_workers as u64, &degrees, &interference);
        if gpus < sizes[0] {
            let smallest = sizes[0];
            prop_assert_eq!(got, Err(PlanError::BudgetTooSmall { gpus, smallest }));
            return Ok(());
        }
        let got = got.unwrap();
        prop_assert!(got.degrees.len() <= max_workers);
        prop_assert!(got.degrees.iter().sum::<u64>() <= gpus);
        let times: Vec<f64> = got
            .degrees
            .iter()
            .map(|gpus| degrees.iter().find(|degree| degree.gpus == *gpus).unwrap().token_time)
            .collect();
        check(got.makespan, &got.groups, &times, &lengths, &interference);
        let want = brute_force_allocation(&lengths, (gpus, max_workers), &degrees, &interference, &mut Vec::new());
        prop_assert_eq!(got.makespan.to_bits(), want.to_bits(), "{} is not {}", got.makespan, want);
    }

    /// The table, the layers and the relaxation agree on every bound.
    #[test]
    fn ways_to_decide_a_bound_agree(
        lengths in prop_oneof![
            prop::collection::vec(1.0..1e4, 1..40),
            prop::collection::vec(Just(7.0), 1..40),
            prop::collection::vec((1_u32..5).prop_map(f64::from), 1..40),
        ],
        times in prop::collection::vec(token_time(), 1..7),
        interference in curve(),
        part in 0.0..1.2_f64,
    ) {
        let sorted = Sorted::new(&lengths);
        let fleet = Fleet::new(&times, lengths.len(), &interference);
        let best = place(&lengths, &times, &interference).unwrap().makespan;
        let mut market = Market::new(fleet.counts.len());
        for bound in [best * part, f64::from_bits(best.to_bits() - 1), best] {
            let possible = bound >= best;
            let reach = Reach::tabulated(&sorted, &fleet.kinds, bound);
            let on_demand = Reach::on_demand(&sorted, &fleet.kinds, bound);
            let none = Prices::none();
            prop_assert_eq!(combinations::cover(&fleet.counts, &on_demand, &none).is_some(), possible);
            prop_assert_eq!(combinations::cover(&fleet.counts, &reach, &none).is_some(), possible);
            let mut merged = Reach::tabulated(&sorted, &fleet.kinds, bound);
            let classes = Classes::merge(&fleet.counts, &mut merged);
            let prices = match market.judge(&merged, &classes) {
                Verdict::Impossible(_) => {
                    prop_assert!(!possible);
                    continue;
                }
                Verdict::Covered(steps) => {
                    prop_assert!(possible);
                    let makespan = Chain::new(classes.steps(steps), &sorted, &fleet.kinds).makespan;
                    prop_assert!(makespan <= bound);
                    continue;
                }
                Verdict::Open(prices) => prices,
            };
            prop_assert_eq!(combinations::cover(classes.counts(), &merged, &prices).is_some(), possible);
            let mut used = vec![0; classes.counts().len()];
            // Prices for the rest of the way prove nothing that is wrong.
            used[0] = 1;
            let left: Vec<usize> =
                classes.counts().iter().zip(&used).map(|(count, used)| count - used).collect();
            let position = merged.end(0, 0);
            if position < merged.goal() && left.iter().any(|&left| left > 0) {
                let rest_is_possible = covers(&merged, position, &left);
                match prices::anew(&merged, position, &left, &prices, &mut 0) {
                    Verdict::Impossible(_) => prop_assert!(!rest_is_possible),
                    Verdict::Covered(_) => prop_assert!(rest_is_possible),
                    Verdict::Open(_) => {}
                }
            }
            let found = layers::cover(classes.counts(), &merged, &prices, 1 << 12, &mut 0);
            prop_assert_eq!(matches!(found, layers::Outcome::Covered(_)), possible);
            prop_assert!(!matches!(found, layers::Outcome::Undecided));
            if let layers::Outcome::Covered(steps) = layers::cover(&fleet.counts, &reach, &none, 2, &mut 0) {
                prop_assert!(possible);
                prop_assert!(Chain::new(steps, &sorted, &fleet.kinds).makespan <= bound);
            }
        }
    }
}

/// Whether some order of those that are left covers the rest, by trying each.
fn covers(reach: &Reach<'_>, position: usize, left: &[usize]) -> bool {
    position == reach.goal()
        || (0..left.len()).filter(|&kind| left[kind] > 0).any(|kind| {
            let mut left = left.to_vec();
            left[kind] -= 1;
            let end = reach.end(kind, position);
            end > position && covers(reach, end, &left)
        })
}

fn permutations(items: &mut [f64], from: usize, visit: &mut impl FnMut(&[f64])) {
    if from == items.len() {
        return visit(items);
    }
    for i in from..items.len() {
        items.swap(from, i);
        permutations(items, from + 1, visit);
        items.swap(from, i);
    }
}

/// Lengths with a long tail, the same for the same seed.
fn long_tail(n: u32) -> Vec<f64> {
    (0..n)
        .map(|i| 200.0 * f64::from(i * 2_654_435 % 9973 + 1).powf(0.3) + f64::from(i % 97))
        .collect()
}

fn affine(sizes: u32) -> Interference {
    Interference::new((0..sizes).map(|size| 1.0 + f64::from(size) * 0.01).collect()).unwrap()
}

#[test]
fn a_slow_worker_for_the_longest_can_be_best() {
    // The longest on the slow worker takes 20, and the fast one has time for the rest.
    // On the fast one: alone 25.2, with one other 21.6, with two 21, with all 22.
    let interference = Interference::new(vec![1.0, 1.8, 2.1, 2.2]).unwrap();
    let got = place(&[6.0, 10.0, 6.0, 6.0], &[1.0, 2.0], &interference).unwrap();
    assert_eq!(got, Placement { makespan: 20.0, groups: vec![vec![0, 2, 3], vec![1]] });
}

#[test]
fn sixteen_kinds_match_the_best_of_the_table_alone() {
    // More combinations than are looked at for every bound.
    let lengths = long_tail(300);
    let interference = affine(300);
    let mut times: Vec<f64> = (0..16).map(|i| 0.006 + 0.001 * f64::from(i)).collect();
    times.extend([times[0], times[3], times[7], times[9]]);
    let got = place(&lengths, &times, &interference).unwrap();
    check(got.makespan, &got.groups, &times, &lengths, &interference);
    let sorted = Sorted::new(&lengths);
    let fleet = Fleet::new(&times, lengths.len(), &interference);
    assert!(fleet.combinations().unwrap() > 1 << 18);
    let reach = Reach::tabulated(&sorted, &fleet.kinds, f64::from_bits(got.makespan.to_bits() - 1));
    assert!(combinations::cover(&fleet.counts, &reach, &Prices::none()).is_none());
}

#[test]
fn sixteen_kinds_of_many_workers_have_a_proven_optimum() {
    // The work of all decides, and the combinations are beyond every table.
    let lengths: Vec<f64> = (0..200_u32).map(|i| f64::from(i * 7919 % 1009 + 1)).collect();
    let interference = affine(200);
    let times: Vec<f64> = (0..64).map(|i| 0.006 + 0.0011 * f64::from(i % 16)).collect();
    let got = place(&lengths, &times, &interference).unwrap();
    check(got.makespan, &got.groups, &times, &lengths, &interference);
    // Equal lengths: the groups that fit sum up, whatever the order.
    let times = &times[..48];
    let got = place(&[100.0; 999], times, &interference).unwrap();
    check(got.makespan, &got.groups, times, &[100.0; 999], &interference);
    let bound = f64::from_bits(got.makespan.to_bits() - 1);
    let most = |time: &f64| (1..=999).rev().find(|&s| interference.at(s) * time * 100.0 <= bound);
    assert!(times.iter().filter_map(most).sum::<usize>() < 999);
}

/// Was refused: too many combinations were left where prices are made for the whole way only.
#[test]
fn a_curve_in_steps_has_a_proven_optimum() {
    // SplitMix64.
    let mut state = 0xecda_c3a5_189c_5330_u64;
    let lengths = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        9_000.0 + (((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 * 1_000.0).floor()
    });
    let lengths: Vec<f64> = lengths.take(351).collect();
    assert_eq!(lengths[..3], [9289.0, 9349.0, 9905.0]);
    let steps = Interference::new((0..64).map(|size| 1.3794_f64.powi(size / 3)).collect()).unwrap();
    let times: Vec<f64> = (0..96).map(|i| 0.006 + 0.0011 * f64::from(i % 16)).collect();
    let got = place(&lengths, &times, &steps).unwrap();
    check(got.makespan, &got.groups, &times, &lengths, &steps);
}

#[test]
fn hundreds_of_workers_for_one_long_trajectory_need_no_table() {
    let mut lengths = vec![10.0; 300];
    lengths[7] = 5000.0;
    let times: Vec<f64> = (0..160).map(|i| 0.006 + 0.001 * f64::from(i % 16)).collect();
    let got = place(&lengths, &times, &affine(300)).unwrap();
    assert_eq!(got.makespan.to_bits(), (0.006 * 5000.0_f64).to_bits());
}

#[test]
fn aggregation_loses_the_plans_that_divide_a_block() {
    // Two each is best; a block of all four goes to one worker.
    let interference = Interference::new(vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    let (lengths, times) = ([4.0, 4.0, 4.0, 4.0], [1.0, 1.0]);
    let of = |below| {
        let block = NonZeroUsize::new(4).unwrap();
        aggregated(&lengths, &times, &interference, Aggregation { below, block })
    };
    // A length equal to the threshold is not below it.
    assert_eq!((of(4.0), of(4.5)), (8.0, 16.0));
}

#[test]
fn annealing_never_beats_the_exact_allocation() {
    let lengths = long_tail(60);
    let interference = affine(60);
    let degrees = [(1, 0.020), (2, 0.012), (4, 0.008), (8, 0.006)]
        .map(|(gpus, token_time)| Degree { gpus, token_time });
    let exact = allocate(&lengths, 32, 32, &degrees, &interference).unwrap();
    let cooling = Cooling { rate: 0.98, threshold: 0.01 };
    for seed in 0..5 {
        let (annealed, chosen) = anneal(&lengths, 32, &degrees, &interference, cooling, seed);
        assert_eq!(chosen.iter().sum::<u64>(), 32);
        assert!(exact.makespan <= annealed, "{} beats {}", annealed, exact.makespan);
    }
}

#[test]
fn refusals_say_why() {
    let one = Interference::new(vec![1.0]).unwrap();
    assert_eq!(place(&[1.0], &[], &one), Err(PlanError::NoWorker));
    let kinds: Vec<f64> = (1..=17).map(f64::from).collect();
    assert_eq!(place(&[1.0; 20], &kinds, &one), Err(PlanError::TooManyKinds { got: 17 }));
    assert_eq!(place(&[1e300], &[1e300], &one), Err(PlanError::Overflow));
    assert_eq!(place(&[], &[1.0], &one).unwrap().groups, [Vec::<usize>::new()]);
    assert!(matches!(
        Interference::new(vec![1.0, 0.5]),
        Err(InvalidInterference::Decreasing { size: 2 })
    ));
    assert!(Interference::new(vec![]).is_err());
    assert!(Interference::new(vec![f64::NAN]).is_err());
}
