//! Seeded draws.

use std::f64::consts::TAU;

/// `SplitMix64`.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// All draws follow from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0 and below 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Between two numbers, each as likely.
    pub fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// A whole number, both ends included.
    pub fn whole(&mut self, from: u64, to: u64) -> u64 {
        (self.uniform(from as f64, to as f64 + 1.0) as u64).min(to)
    }

    /// Between two numbers, each order of magnitude as likely.
    pub fn log_uniform(&mut self, from: f64, to: f64) -> f64 {
        self.uniform(from.ln(), to.ln()).exp()
    }

    /// A Gaussian (Box and Muller).
    pub fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        mean + deviation * radius * (TAU * self.unit()).cos()
    }

    /// A log-normal by its own mean and coefficient of variation, as the lesson on long
    /// tails gives them: `s^2 = ln(1 + cv^2)`.
    pub fn log_normal(&mut self, mean: f64, cv: f64) -> f64 {
        let variance = cv.mul_add(cv, 1.0).ln();
        (self.normal(-variance / 2.0, variance.sqrt())).exp() * mean
    }

    /// The mean of the longest of `count`, over `draws` draws of all.
    pub fn mean_of_longest(
        &mut self,
        count: u32,
        draws: u32,
        draw: impl Fn(&mut Self) -> f64,
    ) -> f64 {
        let mut longest = || (0..count).map(|_| draw(self)).fold(0.0, f64::max);
        (0..draws).map(|_| longest()).sum::<f64>() / f64::from(draws)
    }

    /// Anew ordered, each order as likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.whole(0, i as u64) as usize);
        }
    }
}
