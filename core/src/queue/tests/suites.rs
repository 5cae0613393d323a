//! Test suites whose durations vary, asked for as `bench elastic` asks for real ones: what the
//! policy learned is never quite true.

use super::timed::{Submitted, Timed, unforeseen};
use super::world::action;
use crate::queue::{Config, Policy};
use crate::resources::Units;

/// Suites that are asked for at one moment.
const LOADS: [usize; 4] = [1, 2, 3, 5];
const LEARN: usize = 3;

/// What the suites of one machine are like.
#[derive(Debug, Clone, Copy)]
struct Suites {
    /// Seconds on one core and on two.
    seconds: [f64; 2],
    /// Deviation of a duration's logarithm.
    noise: f64,
    /// The same of what all suites of a few minutes have in common.
    drift: f64,
    /// What the other core adds while it is busy, as a part.
    crowding: f64,
    /// What the first after a pause adds, as a part.
    cold: f64,
}

/// SplitMix64.
fn uniform(seed: u64) -> f64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Box and Muller.
fn normal(seed: u64) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(2 * seed)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(2 * seed + 1)).cos()
}

impl Suites {
    /// The `n`-th suite of a run on one core and on two: the same for every policy.
    fn drawn(&self, seed: u64, turn: usize, n: usize, first: bool) -> [f64; 2] {
        let lately = |turn: usize| {
            // Four turns in common.
            let shocks = (0..4).map(|back| normal(seed << 20 | (turn + back) as u64));
            self.drift * shocks.sum::<f64>() / 2.0
        };
        let cold = if first { 1.0 + self.cold } else { 1.0 };
        let mean = (self.noise * self.noise + self.drift * self.drift) / 2.0;
        let own = self.noise * normal(seed << 20 | 1 << 18 | n as u64);
        self.seconds.map(|seconds| seconds * cold * (lately(turn) + own - mean).exp())
    }
}

/// The mean completion time of each load under a policy.
fn mean_act(policy: Policy, suites: Suites, seed: u64) -> [f64; LOADS.len()] {
    let mut timed = Timed::new(Config { policy, ..Config::default() }, 2, 0);
    timed.crowding = suites.crowding;
    let most = LOADS[LOADS.len() - 1];
    let mut a = 0;
    for t in 0..most {
        timed.open(t, 0);
        timed.run_until(timed.now + env("OPEN", 0.2 + 3.0 * uniform(seed << 21 | a as u64).powi(2)));
        let unpack = Submitted { profile: "", ..unforeseen(&[0.25], 0.1, 1.0) };
        timed.submit(a, t, unpack);
        timed.run_until(timed.now + env("UNPACK", 0.15 + uniform(seed << 21 | 1 << 20 | a as u64)));
        a += 1;
    }
    let suite = |units: &'static [f64], seconds: [f64; 2]| {
        let mut suite = unforeseen(units, seconds[0], 1.0);
        suite.truth.drag = seconds[1] / seconds[0] - 1.0;
        suite
    };
    for n in 0..LEARN {
        for units in [&[1.0][..], &[2.0]] {
            let drawn = suites.drawn(seed, 0, a, a == most);
            timed.submit(a, n % most, suite(units, drawn));
            while !timed.ended.contains_key(&action(a)) {
                assert!(timed.step(f64::MAX));
            }
            timed.run_until(timed.now + 0.005);
            a += 1;
        }
    }
    let mut sums = [0.0; LOADS.len()];
    let rounds = env("ROUNDS", 6.0) as usize;
    for round in 0..rounds {
        for (load, at_once) in LOADS.into_iter().enumerate() {
            let begun = timed.now;
            let turn = round * LOADS.len() + load + 1;
            for n in 0..at_once {
                timed.run_until(begun + n as f64 * 1e-3);
                let drawn = suites.drawn(seed, turn, a + n, n == 0);
                timed.submit(a + n, n, suite(&[1.0, 2.0], drawn));
            }
            let act = |a: usize| timed_act(&mut timed, a, begun);
            sums[load] += (a..a + at_once).map(act).sum::<f64>() / at_once as f64;
            a += at_once;
            // The others' turns.
            timed.run_until(timed.now + env("PAUSE", 2.0 + 2.0 * uniform(seed << 21 | 1 << 19 | a as u64)) * (timed.now - begun));
        }
    }
    sums.map(|sum| sum / rounds as f64)
}

/// Runs until an action has ended; its completion time.
fn timed_act(timed: &mut Timed, a: usize, begun: f64) -> f64 {
    while !timed.ended.contains_key(&action(a)) {
        assert!(timed.step(f64::MAX));
    }
    timed.ended[&action(a)] - begun
}

/// Mean over seeds of ours over the best fixed degree, by load.
fn against_fixed(suites: Suites, seeds: std::ops::Range<u64>) -> [f64; LOADS.len()] {
    let mut sums = [[0.0; LOADS.len()]; 3];
    let policies = [
        Policy::Elastic,
        Policy::FixedDop { dop: Units::cores(1) },
        Policy::FixedDop { dop: Units::cores(2) },
    ];
    for seed in seeds {
        for (sum, policy) in sums.iter_mut().zip(policies) {
            let means = mean_act(policy, suites, seed);
            for (sum, mean) in sum.iter_mut().zip(means) {
                *sum += mean;
            }
        }
    }
    let [ours, narrow, wide] = sums;
    eprintln!("{suites:?}");
    eprintln!("   ours {ours:.2?}\n   one {narrow:.2?}\n   two {wide:.2?}");
    let mut load = 0;
    ours.map(|ours| {
        let best = narrow[load].min(wide[load]);
        load += 1;
        ours / best
    })
}

fn env(name: &str, default: f64) -> f64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn explore() {
    let seeds = env("SEEDS", 10.0) as u64;
    let first = env("FIRST", 0.0) as u64;
    for two in [1.5, 1.65, 0.9] {
        if env("TWO", two) != two {
            continue;
        }
        for (at, (noise, drift, crowding, cold)) in
            [(0.0, 0.0, 0.0, 0.0), (0.1, 0.05, 0.05, 0.2), (0.25, 0.1, 0.1, 0.3), (0.2, 0.1, 0.0, 0.0), (0.15, 0.1, 0.3, 0.2)].into_iter().enumerate()
        {
            if env("AT", at as f64) != at as f64 {
                continue;
            }
            let suites = Suites { seconds: [1.5, two], noise, drift, crowding, cold };
            let ratios = against_fixed(suites, first..first + seeds);
            eprintln!("   {ratios:.3?}");
        }
    }
}
