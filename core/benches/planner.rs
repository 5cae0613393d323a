//! Prints what plans cost, beside the paper's own algorithms:
//! `cargo bench -p rollwright-core --bench planner`.
#![allow(clippy::disallowed_methods, missing_docs, reason = "a benchmark reads the clock")]

use std::cmp::Ordering;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rollwright_core::arrange::{Choice, ChunkTable, Chunks, CoreTable, Free, Task, arrange};
use rollwright_core::placement::baseline::{Aggregation, Cooling, aggregated, anneal, presorted};
use rollwright_core::placement::{Degree, Interference, allocate, place};

/// The median of `times` runs, after one to warm up.
fn median<T>(times: usize, mut run: impl FnMut() -> T) -> (Duration, T) {
    let mut result = run();
    let mut taken: Vec<Duration> = (0..times)
        .map(|_| {
            let start = Instant::now();
            result = black_box(run());
            start.elapsed()
        })
        .collect();
    taken.sort_unstable();
    (taken[times / 2], result)
}

/// Token counts with a long tail, in no order.
fn lengths(n: u64) -> Vec<f64> {
    (0..n).map(|i| long_tailed(i.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

/// The token count at a point of the distribution, from 0 to 2^64.
fn long_tailed(point: u64) -> f64 {
    let uniform = (point >> 11) as f64 / (1_u64 << 53) as f64;
    (400.0 / (1.0 - uniform).powf(0.7)).min(40_000.0).round()
}

/// Random numbers, the same for the same seed.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    // Steele, Lea and Flood's generator.
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn interference(sizes: u32, slope: f64) -> Interference {
    let factors = (0..sizes).map(|size| 1.0 + slope * f64::from(size)).collect();
    Interference::new(factors).expect("ascending")
}

fn times(kinds: u32, each: usize) -> Vec<f64> {
    (0..kinds)
        .flat_map(|kind| std::iter::repeat_n(0.006 + 0.0011 * f64::from(kind), each))
        .collect()
}

/// The target's figure for Heddle's own, n = 6,400 and m = 16. Its section 6.2 says 42 ms.
const PAPER: Duration = Duration::from_millis(36);

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

fn faster(ours: Duration, theirs: Duration, target: f64) -> String {
    let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
    format!("{ratio:.0}x, target {target}x: {}", verdict(ratio >= target))
}

/// Whether every optimum is that of the table.
fn placements() -> bool {
    let lengths = lengths(6400);
    // With the second slope the work of all decides, not the longest trajectory.
    let slopes = [0.004, 0.05];
    let same = slopes.map(|slope| homogeneous(&lengths, slope));
    for slope in slopes {
        heterogeneous(&lengths, slope);
    }
    same == [true; 2]
}

fn homogeneous(lengths: &[f64], slope: f64) -> bool {
    let curve = interference(6400, slope);
    let equal = [0.02; 16];
    let (table, want) = median(3, || presorted(lengths, &equal, &curve));
    let (ours, got) = median(101, || place(lengths, &equal, &curve).map(|plan| plan.makespan));
    println!("placement, n = 6400, slope {slope}, m = 16 equal workers: {ours:?} {got:?}");
    println!("  the plain table: {table:?} {want:?}: {}", faster(ours, table, 500.0));
    // Below the mean length, four in five; the larger the blocks, the less exact.
    let below = lengths.iter().sum::<f64>() / lengths.len() as f64;
    for block in [8, 64].into_iter().filter_map(NonZeroUsize::new) {
        let aggregation = Aggregation { below, block };
        let (taken, makespan) = median(5, || aggregated(lengths, &equal, &curve, aggregation));
        println!(
            "  aggregated below {below:.0} by {block}: {taken:?} {makespan:?}: {}",
            faster(ours, taken, 50.0)
        );
    }
    println!("  a fixed {PAPER:?} (Heddle's section 6.2: 42 ms): {}", faster(ours, PAPER, 50.0));
    let same = got.as_ref().is_ok_and(|makespan| makespan.to_bits() == want.to_bits());
    if !same {
        println!("WRONG: the optimum is {want:?}, got {got:?}");
    }
    same
}

fn heterogeneous(lengths: &[f64], slope: f64) {
    let curve = interference(6400, slope);
    for (kinds, each) in [(2, 8), (4, 4), (8, 2), (16, 1), (8, 4), (6, 8), (16, 2), (16, 4)] {
        let start = Instant::now();
        let got = place(lengths, &times(kinds, each), &curve);
        let makespan = got.map(|placement| placement.makespan);
        println!(
            "placement, n = 6400, slope {slope}, {kinds} kinds x {each} workers: {:?} {makespan:?}",
            start.elapsed()
        );
    }
}

fn allocations() {
    let lengths = lengths(6400);
    let curve = interference(6400, 0.05);
    let degrees = [(1, 0.020), (2, 0.012), (4, 0.008), (8, 0.006)]
        .map(|(gpus, token_time)| Degree { gpus, token_time });
    for (gpus, max_workers) in [(64, 64), (64, 32), (64, 12), (1024, 1024), (1024, 300)] {
        let (taken, got) = median(21, || allocate(&lengths, gpus, max_workers, &degrees, &curve));
        let makespan = got.map(|allocation| allocation.makespan);
        print!(
            "allocation, n = 6400, {gpus} GPUs, at most {max_workers} workers: {taken:?} {makespan:?}"
        );
        if gpus == 64 {
            print!(", target below 10 ms: {}", verdict(taken < Duration::from_millis(10)));
        }
        println!();
    }
}

/// Whether no allocation is worse than what annealing finds.
fn annealings() -> bool {
    const INSTANCES: u64 = 1000;
    let cooling = Cooling { rate: 0.97, threshold: 0.01 };
    let (mut worse, mut better) = (0, 0);
    let start = Instant::now();
    for seed in 0..INSTANCES {
        let mut random = numbers(seed);
        let count = 8 + random() % 93;
        let lengths: Vec<f64> = (0..count).map(|_| long_tailed(random())).collect();
        let mut below = |bound: u64| random() % bound;
        let curve = interference(100, below(200) as f64 / 1000.0);
        let gpus = 8 + below(33);
        // More GPUs shorten a token's time by 5 to 50 % for each doubling.
        let mut token_time = 0.01 + below(20) as f64 / 1000.0;
        let degrees = [1, 2, 4, 8].map(|gpus| {
            token_time *= 0.5 + below(46) as f64 / 100.0;
            Degree { gpus, token_time }
        });
        let annealed = anneal(&lengths, gpus, &degrees, &curve, cooling, !seed).0;
        let exact = allocate(&lengths, gpus, gpus, &degrees, &curve);
        match exact.map(|allocation| allocation.makespan.total_cmp(&annealed)) {
            Ok(Ordering::Less) => better += 1,
            Ok(Ordering::Equal) => {}
            Ok(Ordering::Greater) | Err(_) => worse += 1,
        }
    }
    println!(
        "allocation, {INSTANCES} random instances in {:?}: worse than annealing in {worse} of \
         {INSTANCES}, target 0: {}; better in {better}",
        start.elapsed(),
        verdict(worse == 0)
    );
    worse == 0
}

fn tasks(count: u32, units: &[u64]) -> Vec<Task> {
    let choices = |i: u32| {
        let work = f64::from(i * 7919 % 503 + 1);
        units
            .iter()
            .map(move |&units| Choice { units, duration: work * (0.1 + 0.9 / units as f64) })
    };
    (0..count).map(|i| Task::new(choices(i)).expect("ascending")).collect()
}

fn arrangements() {
    let candidates = tasks(256, &[1, 2, 4, 8]);
    let (table, _) = median(101, || CoreTable::new(&candidates, 256));
    println!("every prefix of 256 candidates on 256 cores: {table:?}");
    let candidates = tasks(40, &[1, 2, 4, 8]);
    let (table, _) = median(101, || ChunkTable::new(&candidates, Chunks::new([0, 0, 0, 5])));
    println!("every prefix of 40 candidates on 40 GPUs: {table:?}");
    for (count, units) in [(1_000_u32, 1_280_u64), (2_000, 20_000), (20_000, 100_000)] {
        let tasks = tasks(count, &[1, 2, 4, 8]);
        let (taken, got) = median(3, || arrange(&tasks, &Free::Cores(units)));
        let total = got.map(|arrangement| arrangement.total);
        println!("{count} tasks on {units} cores: {taken:?} {total:?}");
    }
    for (count, chunks) in [(100, [3, 5, 4, 20]), (400, [30, 50, 40, 200])] {
        let tasks = tasks(count, &[1, 2, 4, 8]);
        let (taken, got) = median(3, || arrange(&tasks, &Free::Chunks(Chunks::new(chunks))));
        let total = got.map(|arrangement| arrangement.total);
        println!("{count} tasks on chunks {chunks:?}: {taken:?} {total:?}");
    }
}

/// Fails where an optimum differs, not where a plan took long.
fn main() -> ExitCode {
    let same = placements();
    allocations();
    let never_worse = annealings();
    arrangements();
    if same && never_worse { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
