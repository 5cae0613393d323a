//! Exponential back-off with jitter from a seed.

use std::time::Duration;

use super::config::Backoff;

impl Backoff {
    /// Before jitter, after the `times`-th fault, from 1.
    pub(crate) fn after(&self, times: u32) -> Duration {
        let factor = 1_u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }

    /// Between half and all of it, as `draw` says.
    pub(super) fn jittered(&self, times: u32, draw: u64) -> Duration {
        let part = (mix(draw) >> 11) as f64 / (1_u64 << 53) as f64;
        self.after(times).mul_f64(0.5 + part / 2.0)
    }
}

/// `SplitMix64` (Steele et al., OOPSLA 2014): neighbouring numbers become unrelated ones.
const fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_most_with_jitter_in_the_upper_half() {
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(5) };
        let plain: Vec<_> = [1, 2, 3, 4, 40].map(|n| backoff.after(n).as_secs()).into();
        assert_eq!(plain, [1, 2, 4, 5, 5]);
        let drawn: Vec<_> = (0..100).map(|draw| backoff.jittered(2, draw)).collect();
        let (low, high) = (Duration::from_secs(1), Duration::from_secs(2));
        assert!(drawn.iter().all(|wait| (low..=high).contains(wait)));
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert!(*most > *least + Duration::from_millis(900), "{least:?} to {most:?}");
    }
}
