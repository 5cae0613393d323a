//! Quantiles in little room.

use std::collections::BTreeMap;

/// Ratio of a bucket's upper bound to its lower one: 2.5% error either way.
const GAMMA: f64 = 1.05;
/// Smallest and largest value told apart.
const RANGE: (f64, f64) = (1e-4, 1e7);
/// Values after which the older half counts half.
const WINDOW: f64 = 256.0;

/// Quantiles of positive values with a bounded relative error: `DDSketch` (Masson, Rim and
/// Lee, VLDB 2019, section 2), with a fixed range of values instead of its collapsing
/// buckets. Old values fade, so that it follows a drift.
#[derive(Debug, Clone, Default)]
pub struct Sketch {
    /// By the logarithm of the value; at most 520 of them, by the range.
    buckets: BTreeMap<i32, f64>,
    count: f64,
}

impl Sketch {
    /// All buckets, ascending, with their counts.
    pub(super) fn keep(&self) -> Vec<(i32, f64)> {
        self.buckets.iter().map(|(bucket, count)| (*bucket, *count)).collect()
    }

    /// From buckets that were kept; others than could be are left out.
    pub(super) fn restored(kept: &[(i32, f64)]) -> Self {
        let known = bucket(RANGE.0)..=bucket(RANGE.1);
        let sane = |(bucket, count): &&(i32, f64)| {
            known.contains(bucket) && count.is_finite() && *count > 0.0
        };
        let buckets: BTreeMap<i32, f64> = kept.iter().filter(sane).copied().collect();
        let count = buckets.values().sum();
        Self { buckets, count }
    }

    /// Counts a value.
    pub fn insert(&mut self, value: f64) {
        *self.buckets.entry(bucket(value)).or_default() += 1.0;
        self.count += 1.0;
        if self.count >= 2.0 * WINDOW {
            self.count /= 2.0;
            self.buckets.retain(|_, count| {
                *count /= 2.0;
                *count > 1e-3
            });
        }
    }

    /// The value below which the fraction `at` of all lies; `None` without any.
    pub fn quantile(&self, at: f64) -> Option<f64> {
        walk(self.buckets.iter(), self.count * at)
    }

    /// The median of those that are larger than `value`, half of those in its bucket among
    /// them; `None` where none is.
    pub fn median_above(&self, value: f64) -> Option<f64> {
        let own = bucket(value);
        let alike = self.buckets.get(&own).map_or(0.0, |count| count / 2.0);
        let above = || self.buckets.range(own + 1..);
        let count: f64 = above().map(|(_, count)| *count).sum();
        if alike > count {
            return Some(middle(own).max(value));
        }
        walk(above(), (count - alike) / 2.0)
    }
}

fn walk<'a>(buckets: impl Iterator<Item = (&'a i32, &'a f64)>, below: f64) -> Option<f64> {
    let mut seen = 0.0;
    let mut last = None;
    for (bucket, count) in buckets {
        seen += count;
        last = Some(middle(*bucket));
        if seen >= below {
            break;
        }
    }
    last
}

fn bucket(value: f64) -> i32 {
    (value.clamp(RANGE.0, RANGE.1).ln() / GAMMA.ln()).ceil() as i32
}

/// The value of a bucket with the least relative error.
fn middle(bucket: i32) -> f64 {
    2.0 * GAMMA.powi(bucket) / (GAMMA + 1.0)
}
