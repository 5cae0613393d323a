//! One profile: durations, elasticity and use of CPU together.

use super::ProfileKey;
use super::kept::Kept;
use super::scaling::{Amdahl, Curve, Scaling};
use super::sketch::Sketch;
use crate::elastic::{InvalidWork, Work};
use crate::resources::{UnitChoice, Units};

/// Taken where nothing is known: ten seconds on one core, half of which more cores shorten,
/// the mean of all that it may be. To think that all scales gives cores away that the waiting
/// need; on a node with room it is tried all the same.
const UNKNOWN: Amdahl = Amdahl { serial: 5.0, parallel: 5.0 };
/// On a share it used this part of it or less: it was not held back.
const HELD_BACK: f64 = 0.8;
/// What one more action counts in the mean use of a core, from the eighth on.
const USE_WEIGHT: f64 = 1.0 / 8.0;
/// A change of the estimate by more than this is worth looking at the line anew.
const NEWS: f64 = 0.15;

/// What is known of an action before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prior {
    /// Seconds on one core.
    pub seconds: Option<f64>,
    /// The part that more cores do not shorten, 0 to 1.
    pub serial: Option<f64>,
}

/// What an action that ended by itself took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// What it ran on, from its start to its end.
    pub units: Units,
    /// How long the program ran.
    pub seconds: f64,
    /// What it used of the CPU meanwhile, where that is known.
    pub cpu_seconds: Option<f64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Sort {
    scaling: Scaling,
    /// Seconds on one core.
    durations: Sketch,
    /// Mean part of one core that it uses when it has it, and of how many.
    cores_used: Option<(f64, f64)>,
    /// The estimate when there was news last.
    told: Option<(f64, f64)>,
}

impl Sort {
    pub(super) fn keep(&self, key: ProfileKey) -> Kept {
        let (levels, buckets) = (self.scaling.keep(), self.durations.keep());
        Kept { key, levels, buckets, cores_used: self.cores_used }
    }

    pub(super) fn restored(kept: &Kept) -> Self {
        let sane = |(mean, count): &(f64, f64)| {
            (0.0..=1.0).contains(mean) && count.is_finite() && *count > 0.0
        };
        Self {
            scaling: Scaling::restored(&kept.levels),
            durations: Sketch::restored(&kept.buckets),
            cores_used: kept.cores_used.filter(sane),
            told: None,
        }
    }

    pub(super) fn learn(&mut self, sample: Sample) -> bool {
        let Sample { units, seconds, cpu_seconds } = sample;
        let cpu = cpu_seconds.filter(|cpu| cpu.is_finite() && *cpu >= 0.0);
        if !(seconds.is_finite() && seconds >= 0.0) {
            return false;
        }
        let rate = cpu.filter(|_| seconds > 0.0).map(|cpu| cpu / seconds);
        let (mut level, mut alone) = (units, seconds);
        if units.is_share() {
            level = Units::cores(1);
            match (rate, cpu) {
                // Others may have held it back, which says nothing of it but that it
                // wants more than its share.
                (Some(rate), Some(cpu)) if rate > HELD_BACK * units.as_f64() => {
                    self.uses(1.0);
                    alone = cpu.min(seconds);
                }
                (Some(rate), _) => self.uses(rate),
                _ => {}
            }
        } else if let Some(rate) = rate {
            self.uses(rate.min(1.0));
        }
        self.scaling.learn(level, alone);
        if let Some(curve) = self.scaling.curve(UNKNOWN.fraction()) {
            let slower = curve.one_core() / curve.seconds(level).max(1e-9);
            self.durations.insert(alone * slower);
        }
        self.is_news()
    }

    fn uses(&mut self, rate: f64) {
        let (mean, count) = self.cores_used.unwrap_or((0.0, 0.0));
        let count = count + 1.0;
        let weight = (1.0 / count).max(USE_WEIGHT);
        self.cores_used = Some((mean + (rate - mean) * weight, count));
    }

    fn is_news(&mut self) -> bool {
        let Some(curve) = self.scaling.curve(UNKNOWN.fraction()) else { return false };
        let now = (curve.one_core(), curve.law.fraction());
        let news = self.told.is_none_or(|(seconds, fraction)| {
            (now.0 - seconds).abs() > NEWS * seconds || (now.1 - fraction).abs() > NEWS
        });
        if news {
            self.told = Some(now);
        }
        news
    }

    /// Seconds on one core. What was measured outweighs a prior by the square of its number,
    /// so that a prior that is ten times wrong is soon forgotten.
    fn one_core(&self, curve: Option<&Curve<'_>>, prior: Prior, said: Prior) -> f64 {
        let learned = curve.map(|curve| {
            let seconds = curve.one_core();
            let Some(before) = prior.seconds else { return seconds };
            let weight = self.scaling.weight();
            let prior_weight = 1.0 / (1.0 + weight * weight);
            let log = prior_weight * before.max(1e-6).ln()
                + (1.0 - prior_weight) * seconds.max(1e-6).ln();
            log.exp()
        });
        let seconds = said.seconds.or(learned).or(prior.seconds);
        seconds.unwrap_or(UNKNOWN.one_core())
    }

    /// On a share an action that uses less than it is as quick as on a core of its own;
    /// one that uses more is held back by as much as others want theirs.
    pub(super) fn work(
        &self,
        units: &UnitChoice,
        prior: Prior,
        said: Prior,
    ) -> Result<Work, InvalidWork> {
        if let Some(got) = said.serial.or(prior.serial).filter(|s| !(0.0..=1.0).contains(s)) {
            return Err(InvalidWork::Serial { got });
        }
        let assumed = prior.serial.unwrap_or(UNKNOWN.fraction());
        let curve = self.scaling.curve(assumed);
        let one_core = self.one_core(curve.as_ref(), prior, said);
        let part = |units: Units| match (said.serial, &curve) {
            (None, Some(curve)) => curve.seconds(units) / curve.one_core().max(1e-9),
            (said, _) => Amdahl::of_one_second(said.unwrap_or(assumed)).seconds(units),
        };
        let used = self.cores_used.map_or(1.0, |(mean, _)| mean);
        // The most units so far that are of use, and how long it then lasts.
        let mut best: Option<(Units, f64)> = None;
        let seconds = |units: Units| {
            let slower =
                if units.is_share() { (used / units.as_f64()).max(1.0) } else { part(units) };
            let seconds = one_core * slower;
            let measured = curve.as_ref().filter(|_| said.serial.is_none());
            match best.zip(measured) {
                Some(((fewer, before), curve)) if !curve.is_surely_faster(units, fewer) => before,
                _ => {
                    if best.is_none_or(|(_, before)| seconds < before) {
                        best = Some((units, seconds));
                    }
                    seconds
                }
            }
        };
        Work::new(units, seconds)
    }

    /// Seconds in all of those actions that last longer than `elapsed`.
    pub(super) fn longer_than(&self, work: &Work, units: Units, elapsed: f64) -> Option<f64> {
        let expected = work.choices().iter().find(|choice| choice.units == units)?.seconds;
        let one_core = self.scaling.curve(UNKNOWN.fraction())?.one_core();
        if expected <= 0.0 || one_core <= 0.0 {
            return None;
        }
        let longer = self.durations.median_above(elapsed * one_core / expected)?;
        Some(longer * expected / one_core)
    }
}
