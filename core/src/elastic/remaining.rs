//! Who is first where the last end counts: by how long trajectories will go on.

use std::time::Duration;

use super::work::Work;

/// Nobody is overtaken by those that are submitted later than this after it.
const AGEING: Duration = Duration::from_hours(1);
/// What each action takes from the longest that was seen: an outlier is forgotten.
const FADE: f64 = 1.0 - 1.0 / 1024.0;
/// What one more prediction counts in their mean, from the 32nd on.
const MEAN_WEIGHT: f64 = 1.0 / 32.0;

/// Puts actions in the order of their trajectories' predicted remaining length: the longest
/// first, and an action is overtaken only by those that are submitted within what its own
/// trajectory is shorter than the longest, and within an hour.
#[derive(Debug, Clone, Copy, Default)]
pub struct Remaining {
    /// Seconds.
    longest: f64,
    /// Mean of the predictions, and how many there were.
    mean: (f64, f64),
}

impl Remaining {
    /// `work` as part of a trajectory that will go on for `tail` seconds after it. Where nobody
    /// has said so, for as long as others do on average.
    pub fn order(&mut self, work: Work, tail: Option<f64>) -> Work {
        let tail = match tail.filter(|tail| tail.is_finite() && *tail >= 0.0) {
            Some(tail) => {
                let (mean, count) = (self.mean.0, self.mean.1 + 1.0);
                self.mean = (mean + (tail - mean) * (1.0 / count).max(MEAN_WEIGHT), count);
                tail
            }
            None => self.mean.0,
        };
        let all = tail + work.at_most(u32::MAX).seconds;
        self.longest = (self.longest * FADE).max(all);
        let patience = Duration::try_from_secs_f64(self.longest - all).unwrap_or(AGEING);
        work.followed_by(tail, patience.min(AGEING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::UnitChoice;
    use crate::time::Time;

    fn work(seconds: f64) -> Work {
        Work::amdahl(&UnitChoice::from_f64(&[1.0]).unwrap(), seconds, 1.0).unwrap()
    }

    #[test]
    fn the_longest_is_first_and_the_unknown_in_between() {
        let mut remaining = Remaining::default();
        let long = remaining.order(work(1.0), Some(100.0));
        let short = remaining.order(work(1.0), Some(2.0));
        let unknown = remaining.order(work(1.0), None);
        let rank = |work: &Work| work.rank(Time::ZERO);
        assert!(rank(&long) < rank(&unknown) && rank(&unknown) < rank(&short));
        assert_eq!(short.tail(), 2.0);
    }

    #[test]
    fn an_absurd_prediction_delays_nobody_by_more_than_the_ageing() {
        let mut remaining = Remaining::default();
        remaining.order(work(1.0), Some(1e12));
        let short = remaining.order(work(1.0), Some(0.0));
        assert_eq!(short.rank(Time::ZERO), Time::ZERO + AGEING);
        for _ in 0..100_000 {
            remaining.order(work(1.0), Some(9.0));
        }
        let later = remaining.order(work(1.0), Some(9.0));
        assert!(later.rank(Time::ZERO).as_nanos() < 1_000_000_000, "it is forgotten");
    }

    #[test]
    fn what_is_no_length_counts_as_unknown() {
        let mut remaining = Remaining::default();
        remaining.order(work(1.0), Some(10.0));
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(remaining.order(work(1.0), Some(wrong)).tail(), 10.0);
        }
    }
}
