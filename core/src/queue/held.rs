//! What runs on a node, as the elastic decision sees it.

use std::sync::Arc;
use std::time::Duration;

use crate::elastic::{Resizable, Running, Work};
use crate::resources::{UnitChoice, Units};
use crate::time::Time;

/// Nothing is expected to end sooner than this after it should have.
const SOONEST: Duration = Duration::from_millis(1);

/// A granted action and how far it is.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) units: Units,
    pub(super) work: Arc<Work>,
    submitted: Time,
    /// When it is expected to end.
    pub(super) ends: Time,
    /// From when on it has had these units, and the part of it that was done by then.
    since: Time,
    done: f64,
    /// What it may be given while it runs: exclusive cores, since a share cannot be moved
    /// to a core before others have left it.
    resizable: Option<Work>,
}

impl Held {
    pub(super) fn new(
        work: &Arc<Work>,
        units: Units,
        submitted: Time,
        malleable: bool,
        now: Time,
    ) -> Self {
        let resizable = (malleable && !units.is_share()).then(|| exclusive(work)).flatten();
        let (work, ends) = (Arc::clone(work), now + pace(work, units));
        Self { units, work, submitted, ends, since: now, done: 0.0, resizable }
    }

    pub(super) fn is_resizable(&self) -> bool {
        self.resizable.is_some()
    }

    /// As the decision sees it, with `units` of what it holds that others could have.
    pub(super) fn view(&self, units: Units, now: Time) -> Running<'_> {
        let (submitted, left) = (self.submitted, 1.0 - self.done(now));
        let resizable = self.resizable.as_ref();
        let resizable = resizable.map(|work| Resizable { work, submitted, left });
        Running { ends: self.ends, units, resizable }
    }

    /// The part of it that is done, by its estimate.
    fn done(&self, now: Time) -> f64 {
        let pace = pace(&self.work, self.units).as_secs_f64().max(1e-9);
        (self.done + now.since(self.since).as_secs_f64() / pace).min(1.0)
    }

    pub(super) fn resize(&mut self, units: Units, now: Time) {
        self.done = self.done(now);
        self.since = now;
        self.units = units;
        self.ends = now + pace(&self.work, units).mul_f64(1.0 - self.done).max(SOONEST);
    }

    /// Seconds that it would have run by now, had it had its units from the start.
    pub(super) fn elapsed(&self, now: Time) -> f64 {
        let before = self.done * pace(&self.work, self.units).as_secs_f64();
        before + now.since(self.since).as_secs_f64()
    }

    /// It is now expected to last so many seconds in all, with these units.
    pub(super) fn expect(&mut self, total: f64, now: Time) {
        let left = Duration::try_from_secs_f64(total - self.elapsed(now)).unwrap_or(SOONEST);
        self.ends = now + left.max(SOONEST);
    }
}

/// How long an action lasts with `units`, or with the next fewer that are of use.
fn pace(work: &Work, units: Units) -> Duration {
    let choice = work.choices().iter().rfind(|choice| choice.units <= units);
    let seconds = choice.copied().unwrap_or(work.least()).seconds;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// The same without shares; `None` where that leaves no choice.
fn exclusive(work: &Work) -> Option<Work> {
    let units = work.choices().iter().map(|choice| choice.units).filter(|units| !units.is_share());
    let units = UnitChoice::new(units.collect()).ok().filter(|units| units.as_slice().len() > 1)?;
    let alone = Work::new(&units, |units| pace(work, units).as_secs_f64()).ok()?;
    Some(alone.in_place_of(work))
}
