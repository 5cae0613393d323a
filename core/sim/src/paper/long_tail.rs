//! The lesson on long tails (004).

use super::figure::{Figure, Row, equal, higher, lower};
use super::groups::{Groups, Settings};
use super::random::Random;
use super::trial::{Failed, Trial};

const MATHEMATICS: &[&str] = &[
    "log-normal lengths with the mean and cv of the text; the mean over 2,000 draws",
    "no code of ours takes part: it checks the text's approximation",
];
const PATCHES: &[&str] = &[
    "64 prompts, K = 16, mean 800, cv 1 (004), on 64 slots; a token takes as long whatever runs",
    "static: 16 batches of 64 in turn, each until its longest ends",
    "the cap is at the 95th percentile of all lengths: which ones succeed is a model's behaviour",
    "dynamic K: 18 of a prompt start and the first 16 settle it, by the core's own Trajectories; whether outcomes are mixed is a model's behaviour",
];

/// Prompts, rollouts of each, and slots.
const PROMPTS: usize = 64;
const K: u32 = 16;
const SLOTS: usize = 64;
/// Mean length (004).
const MEAN: f64 = 800.0;

pub(super) fn figures() -> Vec<Figure> {
    vec![
        maxima(),
        Figure::simulated(
            [
                equal(
                    "long-tail-doubled-k",
                    "004 max-of-K",
                    "the maximum of 32 over that of 16, cv 1",
                    1.15,
                ),
                equal(
                    "long-tail-doubled-cv",
                    "004 max-of-K",
                    "the maximum of 16 at cv 2 over that at cv 1",
                    2.0,
                ),
                equal(
                    "long-tail-token-share",
                    "004",
                    "part of the tokens in the longest 5% of trajectories, cv 1",
                    0.3,
                ),
            ],
            MATHEMATICS,
            |trial| {
                let random = &mut trial.random;
                let sixteen = maximum(random, 16, 1.0);
                let mut lengths: Vec<f64> =
                    (0..20_000).map(|_| random.log_normal(1.0, 1.0)).collect();
                lengths.sort_by(f64::total_cmp);
                let tail: f64 = lengths[19_000..].iter().sum();
                Ok([
                    maximum(random, 32, 1.0) / sixteen,
                    maximum(random, 16, 2.0) / sixteen,
                    tail / lengths.iter().sum::<f64>(),
                ])
            },
        ),
        Figure::simulated(
            [
                lower(
                    "long-tail-continuous",
                    "004 last table",
                    "rollout time with continuous batching, over static",
                    0.30,
                ),
                lower("long-tail-cap", "004 last table", "the same with a length cap at p95", 0.18),
                lower("long-tail-dynamic-k", "004 last table", "the same with dynamic K", 0.13),
                higher(
                    "long-tail-cap-gain",
                    "004 patch 2",
                    "rollout time that the cap saves",
                    0.30,
                ),
            ],
            PATCHES,
            patches,
        ),
        Figure::beyond(
            [lower(
                "long-tail-fp8",
                "004 last table",
                "rollout time with FP8 as well, over static",
                0.08,
            )],
            "depends on hardware: tokens a second with weights of half the size",
        ),
        Figure::beyond(
            [higher("long-tail-packing", "004 patch 1", "trainer throughput by packing", 1.5)],
            "depends on hardware: attention kernels of the trainer",
        ),
    ]
}

const MAXIMA: [Row; 12] = [
    equal("long-tail-max-4-mild", "004 max-of-K", "longest of 4 over the mean, cv 0.5", 2.0),
    equal("long-tail-max-4", "004 max-of-K", "longest of 4 over the mean, cv 1", 2.8),
    equal("long-tail-max-4-open", "004 max-of-K", "longest of 4 over the mean, cv 2", 3.7),
    equal("long-tail-max-16-mild", "004 max-of-K", "longest of 16 over the mean, cv 0.5", 2.7),
    equal("long-tail-max-16", "004 max-of-K", "longest of 16 over the mean, cv 1", 5.0),
    equal("long-tail-max-16-open", "004 max-of-K", "longest of 16 over the mean, cv 2", 8.9),
    equal("long-tail-max-64-mild", "004 max-of-K", "longest of 64 over the mean, cv 0.5", 3.5),
    equal("long-tail-max-64", "004 max-of-K", "longest of 64 over the mean, cv 1", 7.8),
    equal("long-tail-max-64-open", "004 max-of-K", "longest of 64 over the mean, cv 2", 17.4),
    equal("long-tail-max-256-mild", "004 max-of-K", "longest of 256 over the mean, cv 0.5", 4.3),
    equal("long-tail-max-256", "004 max-of-K", "longest of 256 over the mean, cv 1", 11.3),
    equal("long-tail-max-256-open", "004 max-of-K", "longest of 256 over the mean, cv 2", 30.6),
];

fn maxima() -> Figure {
    Figure::simulated(MAXIMA, MATHEMATICS, |trial| {
        let mut all = [0.0; 12];
        let cases = [4, 16, 64, 256].into_iter().flat_map(|k| [0.5, 1.0, 2.0].map(|cv| (k, cv)));
        for (value, (k, cv)) in all.iter_mut().zip(cases) {
            *value = maximum(&mut trial.random, k, cv);
        }
        Ok(all)
    })
}

/// Mean of the longest of `k`, over the mean length.
fn maximum(random: &mut Random, k: u32, cv: f64) -> f64 {
    random.mean_of_longest(k, 2_000, |random| random.log_normal(1.0, cv))
}

fn patches(trial: &mut Trial<'_>) -> Result<[f64; 4], Failed> {
    let random = &mut trial.random;
    let count = PROMPTS * K as usize;
    let lengths: Vec<f64> = (0..count).map(|_| random.log_normal(MEAN, 1.0)).collect();
    let in_batches: f64 =
        lengths.chunks(SLOTS).map(|batch| batch.iter().copied().fold(0.0, f64::max)).sum();
    let mut sorted = lengths.clone();
    sorted.sort_by(f64::total_cmp);
    let cap = sorted[count * 95 / 100];
    let continuous = rollout(&lengths, 0, f64::INFINITY, random)?;
    let capped = rollout(&lengths, 0, cap, random)?;
    let dynamic = rollout(&lengths, 2, cap, random)?;
    let parts = [continuous, capped, dynamic].map(|time| time / in_batches);
    Ok([parts[0], parts[1], parts[2], 1.0 - capped / continuous])
}

/// Token times until all prompts are settled. Lengths beyond those given are drawn.
fn rollout(lengths: &[f64], redundant: u32, cap: f64, random: &Random) -> Result<f64, Failed> {
    let settings = Settings { needed: K, redundant, batch: PROMPTS, slots: SLOTS, bound: 1 };
    let (mut given, mut more) = (lengths.iter().copied(), random.clone());
    let draw = move || given.next().unwrap_or_else(|| more.log_normal(MEAN, 1.0)).min(cap);
    let mut all = Groups::new(settings, draw);
    for _ in 0..PROMPTS {
        all.open()?;
    }
    all.batch(false)?;
    Ok(all.now())
}
