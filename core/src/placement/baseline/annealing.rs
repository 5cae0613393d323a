//! Sort-initialised simulated annealing over allocations.

use super::super::allocation::Degree;
use super::super::interference::Interference;
use super::presorted::presorted;

/// How the temperature falls.
#[derive(Debug, Clone, Copy)]
pub struct Cooling {
    /// Factor for each iteration, below 1.
    pub rate: f64,
    /// The search ends below this temperature, in seconds.
    pub threshold: f64,
}

/// The makespan that Heddle's Algorithm 2 finds for a budget of `gpus` (a sum of
/// degrees), and the degrees that it chose, descending. The paper leaves the three
/// perturbations open; here redistribute moves one step of degree from one worker to
/// another, split makes two halves of a worker, and merge joins two equal ones.
pub fn anneal(
    lengths: &[f64],
    gpus: u64,
    degrees: &[Degree],
    interference: &Interference,
    cooling: Cooling,
    seed: u64,
) -> (f64, Vec<u64>) {
    let mut random = SplitMix(seed);
    let evaluate = |allocation: &[u64]| {
        let times: Vec<f64> = allocation.iter().filter_map(|&d| time_of(d, degrees)).collect();
        presorted(lengths, &times, interference)
    };
    let mut current = initial(gpus, degrees, &mut random);
    let mut cost = evaluate(&current);
    let mut temperature = cost;
    let mut best = (cost, current.clone());
    while temperature > cooling.threshold {
        let mut other = current.clone();
        perturb(&mut other, degrees, &mut random);
        other.sort_unstable_by(|a, b| b.cmp(a));
        let other_cost = evaluate(&other);
        let delta = other_cost - cost;
        if delta < 0.0 || random.fraction() < (-delta / temperature).exp() {
            current = other;
            cost = other_cost;
            if cost < best.0 {
                best = (cost, current.clone());
            }
        }
        temperature *= cooling.rate;
    }
    best
}

fn time_of(gpus: u64, degrees: &[Degree]) -> Option<f64> {
    degrees.iter().find(|degree| degree.gpus == gpus).map(|degree| degree.token_time)
}

/// Degrees at random until the budget is spent, or nothing more fits.
fn initial(gpus: u64, degrees: &[Degree], random: &mut SplitMix) -> Vec<u64> {
    let mut left = gpus;
    let mut allocation: Vec<u64> = Vec::new();
    loop {
        let fitting: Vec<u64> = degrees.iter().map(|d| d.gpus).filter(|&d| d <= left).collect();
        if fitting.is_empty() {
            allocation.sort_unstable_by(|a, b| b.cmp(a));
            return allocation;
        }
        let chosen = fitting[random.below(fitting.len())];
        allocation.push(chosen);
        left -= chosen;
    }
}

fn perturb(allocation: &mut Vec<u64>, degrees: &[Degree], random: &mut SplitMix) {
    if allocation.is_empty() {
        return;
    }
    let exists = |gpus: u64| time_of(gpus, degrees).is_some();
    let (a, b) = (random.below(allocation.len()), random.below(allocation.len()));
    let (x, y) = (allocation[a], allocation[b]);
    match random.below(3) {
        0 if a != b && x > 1 && exists(x / 2) && exists(y + x / 2) => {
            allocation[a] = x / 2;
            allocation[b] = y + x / 2;
        }
        1 if x > 1 && exists(x / 2) => {
            allocation[a] = x / 2;
            allocation.push(x / 2);
        }
        2 if a != b && x == y && exists(x * 2) => {
            allocation[a] = x * 2;
            allocation.swap_remove(b);
        }
        _ => {}
    }
}

/// Steele, Lea and Flood's generator: the same numbers for the same seed.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
