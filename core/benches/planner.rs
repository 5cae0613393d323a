//! Prints what plans cost, beside the paper's own algorithms:
//! `cargo bench -p rollwright-core --bench planner`.
#![allow(clippy::disallowed_methods, missing_docs, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rollwright_core::arrange::{Choice, ChunkTable, Chunks, CoreTable, Free, Task, arrange};
use rollwright_core::placement::baseline::presorted;
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
    (0..n)
        .map(|i| {
            let uniform = ((i * 0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1_u64 << 53) as f64;
            (400.0 / (1.0 - uniform).powf(0.7)).min(40_000.0).round()
        })
        .collect()
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

fn placements() {
    let lengths = lengths(6400);
    let curve = interference(6400, 0.004);
    let equal = [0.02; 16];
    let (table, want) = median(3, || presorted(&lengths, &equal, &curve));
    let (ours, got) = median(101, || place(&lengths, &equal, &curve).expect("a plan"));
    assert_eq!(got.makespan.to_bits(), want.to_bits(), "the same optimum");
    let ratio = table.as_secs_f64() / ours.as_secs_f64();
    println!("placement, n = 6400, m = 16 equal workers: {ours:?}; table {table:?}: {ratio:.0}x");
    // With the second slope the work of all decides, not the longest trajectory.
    for slope in [0.004, 0.05] {
        heterogeneous(&lengths, slope);
    }
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
        println!(
            "allocation, n = 6400, {gpus} GPUs, at most {max_workers} workers: {taken:?} {makespan:?}"
        );
    }
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

fn main() {
    placements();
    allocations();
    arrangements();
}
