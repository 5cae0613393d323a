//! How much more cores help: durations measured at different units.

use super::kept::KeptLevel;
use crate::resources::Units;

/// Different units that are told apart.
const LEVELS: usize = 32;
/// What one more duration takes from the weight of all before it: about the latest
/// hundred count.
const FADE: f64 = 1.0 - 1.0 / 128.0;
/// Durations that the assumed serial fraction counts for. Durations at one degree say
/// nothing of it, so that there it stands.
const WEIGHT: f64 = 1.0;
/// Durations at the same units that the law counts for: not everything obeys it, and what
/// starts a worker for each core may be slower on more of them.
const LAW_WEIGHT: f64 = 1.0;
/// Deviation of a duration from its mean, as a part, that is assumed, and for how many
/// durations that counts.
const NOISE: (f64, f64) = (0.1, 2.0);
/// Standard errors by which more units must be faster to be taken for faster.
const SURE: f64 = 0.5;
/// Durations of a level that is known; what has faded to fewer may be tried again.
const KNOWN: f64 = 0.5;
/// Seconds; nothing is quicker.
const LEAST: f64 = 1e-6;

/// Durations by units, and what follows from them by Amdahl's law.
#[derive(Debug, Clone, Default)]
pub(super) struct Scaling {
    levels: Vec<Level>,
    noise: Noise,
}

/// How far durations at the same units lie apart, in relation to their mean.
#[derive(Debug, Clone, Copy, Default)]
struct Noise {
    squares: f64,
    count: f64,
}

impl Noise {
    /// A duration against the mean of `weight` others.
    fn learn(&mut self, off: f64, weight: f64) {
        let square = off * off * weight / (weight + 1.0);
        (self.squares, self.count) = (self.squares * FADE + square, self.count * FADE + 1.0);
    }

    fn variance(self) -> f64 {
        let (assumed, weight) = NOISE;
        (self.squares + weight * assumed * assumed) / (self.count + weight)
    }
}

#[derive(Debug, Clone)]
struct Level {
    units: Units,
    weight: f64,
    mean: f64,
}

/// Seconds that the parts of an action take on one core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Amdahl {
    pub(super) serial: f64,
    pub(super) parallel: f64,
}

impl Amdahl {
    /// Of an action that takes a second on one core.
    pub(super) fn of_one_second(serial: f64) -> Self {
        Self { serial, parallel: 1.0 - serial }
    }

    pub(super) fn one_core(self) -> f64 {
        self.serial + self.parallel
    }

    pub(super) fn fraction(self) -> f64 {
        self.serial / self.one_core().max(LEAST)
    }

    pub(super) fn seconds(self, units: Units) -> f64 {
        self.serial + self.parallel / units.as_f64().max(1.0)
    }
}

/// How long actions last by their units: as measured at those units, else as the law has it
/// that fits what was measured at others.
#[derive(Debug)]
pub(super) struct Curve<'a> {
    pub(super) law: Amdahl,
    levels: &'a [Level],
    noise: Noise,
}

impl Curve<'_> {
    /// Of an action on `units`, a core or more.
    pub(super) fn seconds(&self, units: Units) -> f64 {
        let law = self.law.seconds(units);
        let Some(level) = self.level(units) else { return law };
        (level.weight * level.mean + LAW_WEIGHT * law) / (level.weight + LAW_WEIGHT)
    }

    pub(super) fn one_core(&self) -> f64 {
        self.seconds(Units::cores(1))
    }

    /// Whether `more` units are faster than `fewer`, by more than what chance may have made
    /// of the few durations that were measured at either. What was not measured is tried.
    pub(super) fn is_surely_faster(&self, more: Units, fewer: Units) -> bool {
        let known = |units| self.level(units).filter(|level| level.weight >= KNOWN);
        let Some((a, b)) = known(more).zip(known(fewer)) else { return true };
        let error = (self.noise.variance() * (1.0 / a.weight + 1.0 / b.weight)).sqrt();
        (self.seconds(fewer) / self.seconds(more)).ln() > SURE * error
    }

    fn level(&self, units: Units) -> Option<&Level> {
        self.levels.iter().find(|level| level.units == units)
    }
}

impl Scaling {
    pub(super) fn keep(&self) -> Vec<KeptLevel> {
        let kept = |&Level { units, weight, mean }: &Level| KeptLevel { units, weight, mean };
        self.levels.iter().map(kept).collect()
    }

    pub(super) fn restored(kept: &[KeptLevel]) -> Self {
        let level = |&KeptLevel { units, weight, mean }: &KeptLevel| Level { units, weight, mean };
        let sane = kept.iter().filter(|level| level.is_sane()).take(LEVELS);
        Self { levels: sane.map(level).collect(), noise: Noise::default() }
    }

    /// One lasted `seconds` on `units`, a core or more.
    pub(super) fn learn(&mut self, units: Units, seconds: f64) {
        for level in &mut self.levels {
            level.weight *= FADE;
        }
        let seconds = seconds.max(LEAST);
        if let Some(level) = self.levels.iter_mut().find(|level| level.units == units) {
            self.noise.learn(seconds / level.mean - 1.0, level.weight);
            level.weight += 1.0;
            // The first found cold files and counts half of the second, and so on.
            level.mean += (seconds - level.mean) * 2.0 / (level.weight + 1.0);
            return;
        }
        if self.levels.len() == LEVELS {
            let faintest =
                |a: &(usize, &Level), b: &(usize, &Level)| a.1.weight.total_cmp(&b.1.weight);
            if let Some((index, _)) = self.levels.iter().enumerate().min_by(faintest) {
                self.levels.swap_remove(index);
            }
        }
        self.levels.push(Level { units, weight: 1.0, mean: seconds });
    }

    /// Weight of all durations.
    pub(super) fn weight(&self) -> f64 {
        self.levels.iter().map(|level| level.weight).sum()
    }

    /// What follows from all durations, with the serial fraction `assumed` where they do not
    /// tell it. `None` without durations.
    pub(super) fn curve(&self, assumed: f64) -> Option<Curve<'_>> {
        Some(Curve { law: self.law(assumed)?, levels: &self.levels, noise: self.noise })
    }

    /// Least squares of the relative errors of `serial + parallel / units`, both at least
    /// 0, and of the serial fraction against `assumed`. `None` without durations.
    fn law(&self, assumed: f64) -> Option<Amdahl> {
        let weight = self.weight();
        if weight <= 0.0 {
            return None;
        }
        let scale = self.levels.iter().map(|level| level.weight * level.mean).sum::<f64>() / weight;
        // Normal equations in (serial, parallel).
        let (p, q) = ((1.0 - assumed) / scale, -assumed / scale);
        let mut squares = (WEIGHT * p * p, WEIGHT * p * q, WEIGHT * q * q);
        let mut sums = (0.0, 0.0);
        for Level { units, weight, mean } in &self.levels {
            let (u, v) = (1.0 / mean, 1.0 / (mean * units.as_f64().max(1.0)));
            squares.0 += weight * u * u;
            squares.1 += weight * u * v;
            squares.2 += weight * v * v;
            sums.0 += weight * u;
            sums.1 += weight * v;
        }
        let determinant = squares.0 * squares.2 - squares.1 * squares.1;
        let serial = (sums.0 * squares.2 - sums.1 * squares.1) / determinant;
        let parallel = (sums.1 * squares.0 - sums.0 * squares.1) / determinant;
        let fitted = if serial < 0.0 || !serial.is_finite() {
            Amdahl { serial: 0.0, parallel: sums.1 / squares.2 }
        } else if parallel < 0.0 || !parallel.is_finite() {
            Amdahl { serial: sums.0 / squares.0, parallel: 0.0 }
        } else {
            Amdahl { serial, parallel }
        };
        fitted.one_core().is_finite().then_some(fitted)
    }
}
