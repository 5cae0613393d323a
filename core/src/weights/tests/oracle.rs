//! What must never happen, whatever the order of events.

use std::collections::BTreeSet;

use super::world::{Outstanding, World, rank};
use crate::ids::WorkerId;
use crate::version::Version;
use crate::weights::{Committed, Step, Strategy};

impl World {
    pub(super) fn called(&mut self, worker: WorkerId, call: u64, step: Step) {
        let engine = self.engines.get_mut(&worker).unwrap();
        if !matches!(step, Step::Pull { .. }) {
            assert!(!engine.open, "{worker}: {step:?} while it gets requests");
            assert_eq!(engine.in_flight, 0, "{worker}: {step:?} with requests in flight");
            let busy = self.calls.iter().any(|other| {
                other.worker == worker && other.alive && !matches!(other.step, Step::Pull { .. })
            });
            assert!(!busy, "{worker}: two calls at a time");
        }
        let first = matches!(step, Step::Pull { .. } | Step::Pause);
        // A worker whose word was not enough is asked again later.
        let again = step == Step::Verify && engine.last == Some(rank(&step));
        let later = engine.last.is_none_or(|last| rank(&step) > last);
        assert!(first || again || later, "{step:?} after {:?}", engine.last);
        if matches!(step, Step::Update { .. }) {
            assert!(engine.paused, "an update of an engine that generates");
            assert_eq!(engine.told, None, "it may hold anything from now on");
        }
        self.calls.push(Outstanding { worker, call, step, alive: true });
    }

    pub(super) fn released(&mut self, worker: &WorkerId) {
        let engine = self.engines.get_mut(worker).unwrap();
        assert!(!engine.open, "{worker} is released twice");
        assert!(!engine.paused, "{worker} serves while it is paused");
        assert_eq!(engine.holds, engine.told, "{worker} holds something else");
        engine.open = true;
        engine.last = None;
        engine.written = false;
    }

    pub(super) fn has_committed(&mut self, committed: Committed) {
        let version = committed.version;
        // A commit that is asked for again is answered again.
        let Some((begun, _)) = self.begun.filter(|(begun, _)| *begun == version) else {
            assert_eq!(version, self.current);
            return;
        };
        assert!(begun > self.current && self.committing);
        (self.current, self.begun, self.committing) = (version, None, false);
        self.engines.values_mut().for_each(|engine| engine.written = false);
        let serving = self.engines.values().filter(|e| e.open && !e.reserved).count();
        assert_eq!(committed.workers as usize, serving);
        for (id, engine) in &self.engines {
            // What a reserved worker has in flight is an evaluation's, also when that has ended.
            let needed = self.pins.values().any(|v| engine.holds == Some(*v));
            let pinned = engine.reserved && (needed || !engine.open);
            let generates = engine.open || engine.in_flight > 0;
            assert!(!generates || pinned || engine.holds == Some(version), "{id} {engine:?}");
        }
        self.committed.push(committed);
    }

    /// What holds between events.
    pub(super) fn check(&self) {
        assert_eq!(self.weights.current(), self.current);
        assert_eq!(self.weights.begun().map(|(v, _)| v), self.begun.map(|(v, _)| v));
        let target = self.begun.filter(|_| self.committing).map(|(v, _)| v);
        let mut old = false;
        let mut new = false;
        for (id, engine) in &self.engines {
            if engine.open && !engine.reserved {
                assert!(!engine.paused);
                assert!(
                    engine.holds == Some(self.current) || engine.holds == target,
                    "{id} serves {:?}",
                    engine.holds
                );
                old |= target.is_some() && engine.holds != target;
                new |= target.is_some() && engine.holds == target;
            }
        }
        if self.config.strategy == Strategy::Pause {
            assert!(!(old && new), "two versions take requests");
        }
        // One that is taken out of service is on its way to be updated.
        let reserved = self.engines.values().filter(|e| e.reserved && e.open).count();
        assert!(reserved <= self.config.evaluation_workers as usize);
        let versions: BTreeSet<Version> = self.pins.values().copied().collect();
        for version in versions {
            assert!(self.weights.pinned(version));
            let kept = self.engines.values().any(|engine| engine.told == Some(version));
            assert!(kept || version == self.current, "pinned {version} is held by nobody");
        }
    }
}
