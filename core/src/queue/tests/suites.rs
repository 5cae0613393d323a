//! Test suites whose durations vary, asked for as `bench elastic` asks for real ones: what the
//! policy learned is never quite true.

use super::timed::{Submitted, Timed, unforeseen};
use super::world::action;
use crate::queue::{Config, Policy};
use crate::resources::Units;

/// Suites that are asked for at one moment.
const LOADS: [usize; 4] = [1, 2, 3, 5];
const ROUNDS: usize = 6;
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

/// `SplitMix64`.
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
        let mean = f64::midpoint(self.noise * self.noise, self.drift * self.drift);
        let own = self.noise * normal(seed << 20 | 1 << 18 | n as u64);
        self.seconds.map(|seconds| seconds * cold * (lately(turn) + own - mean).exp())
    }
}

/// The mean completion time of each load under a policy.
fn mean_act(policy: Policy, suites: Suites, seed: u64, rounds: usize) -> [f64; LOADS.len()] {
    let mut timed = Timed::new(Config { policy, ..Config::default() }, 2, 0);
    timed.crowding = suites.crowding;
    let most = LOADS[LOADS.len() - 1];
    let mut a = 0;
    for t in 0..most {
        timed.open(t, 0);
        timed.run_until(timed.now + 0.2 + 3.0 * uniform(seed << 21 | a as u64).powi(2));
        let unpack = Submitted { profile: "", ..unforeseen(&[0.25], 0.1, 1.0) };
        timed.submit(a, t, unpack);
        timed.run_until(timed.now + 0.15 + uniform(seed << 21 | 1 << 20 | a as u64));
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
            run_to_end(&mut timed, a);
            timed.run_until(timed.now + 0.005);
            a += 1;
        }
    }
    let mut sums = [0.0; LOADS.len()];
    for round in 0..rounds {
        for (load, at_once) in LOADS.into_iter().enumerate() {
            let begun = timed.now;
            let turn = round * LOADS.len() + load + 1;
            for n in 0..at_once {
                timed.run_until(begun + n as f64 * 1e-3);
                let drawn = suites.drawn(seed, turn, a + n, n == 0);
                timed.submit(a + n, n, suite(&[1.0, 2.0], drawn));
            }
            let ends = (a..a + at_once).map(|a| run_to_end(&mut timed, a) - begun);
            sums[load] += ends.sum::<f64>() / at_once as f64;
            a += at_once;
            // The others' turns.
            let pause = 2.0 + 2.0 * uniform(seed << 21 | 1 << 19 | a as u64);
            timed.run_until(timed.now + pause * (timed.now - begun));
        }
    }
    sums.map(|sum| sum / rounds as f64)
}

/// Runs until an action has ended; when that is.
fn run_to_end(timed: &mut Timed, a: usize) -> f64 {
    while !timed.ended.contains_key(&action(a)) {
        assert!(timed.step(f64::MAX), "{a} never ends");
    }
    timed.ended[&action(a)]
}

/// Ours over the best fixed degree in hindsight, in the mean of many runs, by load.
fn against_fixed(suites: Suites, seeds: std::ops::Range<u64>) -> [f64; LOADS.len()] {
    let [one, two] = [1, 2].map(|cores| Policy::FixedDop { dop: Units::cores(cores) });
    let means = [Policy::Elastic, one, two].map(|policy| {
        let runs = seeds.clone().map(|seed| mean_act(policy, suites, seed, ROUNDS));
        runs.fold([0.0; LOADS.len()], |sum, run| std::array::from_fn(|at| sum[at] + run[at]))
    });
    std::array::from_fn(|load| means[0][load] / means[1][load].min(means[2][load]))
}

#[test]
fn what_was_learned_of_few_and_noisy_suites_is_not_relied_on() {
    // As quick on two cores, a tenth slower, and so much faster that serving one after the
    // other is nearly as good as side by side: there what is not known costs more.
    for (two, bound) in [(1.5, 1.02), (1.65, 1.02), (0.9, 1.08)] {
        let seconds = [1.5, two];
        let quiet = Suites { seconds, noise: 0.1, drift: 0.05, crowding: 0.05, cold: 0.2 };
        let loud = Suites { seconds, noise: 0.25, drift: 0.1, crowding: 0.1, cold: 0.3 };
        for suites in [quiet, loud] {
            let ratios = against_fixed(suites, 0..10);
            assert!(ratios.iter().all(|ratio| *ratio < bound), "{suites:?}: {ratios:.3?}");
        }
    }
}

#[test]
fn however_long_it_goes_on_nobody_waits_beside_a_free_core() {
    let suites = Suites { seconds: [1.5, 1.5], noise: 0.2, drift: 0.1, crowding: 0.05, cold: 0.2 };
    let narrow = Policy::FixedDop { dop: Units::cores(1) };
    for seed in 0..3 {
        let ours = mean_act(Policy::Elastic, suites, seed, 3 * ROUNDS);
        let best = mean_act(narrow, suites, seed, 3 * ROUNDS);
        for (ours, best) in ours.into_iter().zip(best) {
            assert!(ours < 1.02 * best, "{seed}: {ours} against {best}");
        }
    }
}
