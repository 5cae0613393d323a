//! The requests that wait, in the order of (priority, taken back, arrival), with an
//! index for what suits a worker best.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::affinity::{Own, TaskIndex};
use super::need::Need;
use super::worker::Seat;
use crate::version::RequestId;

/// Requests of one band are equals: within it a better fit may come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Band {
    priority: Reverse<i64>,
    fresh: bool,
}

impl Band {
    pub(super) fn new(priority: i64, back: bool) -> Self {
        Self { priority: Reverse(priority), fresh: !back }
    }
}

/// A place in the order; less is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) band: Band,
    pub(super) request: RequestId,
}

/// Where a request stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) key: Key,
    pub(super) need: Need,
    pub(super) task: TaskIndex,
    pub(super) home: Option<Seat>,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    /// By what may generate them: a handful of versions at a time.
    tiers: BTreeMap<Need, Tier>,
    len: usize,
}

#[derive(Debug, Default)]
struct Tier {
    all: BTreeSet<Key>,
    /// Each is also in one of these two: by its worker, or without one by its task.
    at_home: BTreeMap<Seat, BTreeSet<Key>>,
    homeless: BTreeMap<TaskIndex, BTreeSet<Key>>,
}

/// The first in line that a worker may take, by how well they suit it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Candidates {
    /// One whose trajectory is at home there.
    pub(super) home: Option<Key>,
    /// One that is at home nowhere, and whose task prefers the worker's class.
    pub(super) own: Option<Key>,
    /// Any.
    pub(super) any: Option<Key>,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, place: &Place) {
        let tier = self.tiers.entry(place.need).or_default();
        self.len += usize::from(tier.all.insert(place.key));
        match place.home {
            Some(seat) => tier.at_home.entry(seat).or_default().insert(place.key),
            None => tier.homeless.entry(place.task).or_default().insert(place.key),
        };
    }

    pub(super) fn remove(&mut self, place: &Place) {
        let Some(tier) = self.tiers.get_mut(&place.need) else { return };
        self.len -= usize::from(tier.all.remove(&place.key));
        match place.home {
            Some(seat) => remove_from(&mut tier.at_home, &seat, place.key),
            None => remove_from(&mut tier.homeless, &place.task, place.key),
        }
        if tier.all.is_empty() {
            self.tiers.remove(&place.need);
        }
    }

    /// Requests that wait and are at home on the worker.
    pub(super) fn at_home(&self, seat: Seat) -> impl Iterator<Item = RequestId> + '_ {
        let sets = self.tiers.values().filter_map(move |tier| tier.at_home.get(&seat));
        sets.flatten().map(|key| key.request)
    }

    /// The first that a worker may take. `may` is asked in order and says of one
    /// whether this worker is excluded for a reason of its own.
    pub(super) fn candidates(
        &self,
        seat: Seat,
        meets: impl Fn(Need) -> bool,
        own: &Own,
        may: impl Fn(RequestId) -> bool,
    ) -> Candidates {
        let first = |keys: &BTreeSet<Key>| keys.iter().find(|key| may(key.request)).copied();
        let mut best = Candidates::default();
        for (_, tier) in self.tiers.iter().filter(|(need, _)| meets(**need)) {
            earlier(&mut best.any, first(&tier.all));
            earlier(&mut best.home, tier.at_home.get(&seat).and_then(first));
            match own {
                Own::All => {
                    let firsts = tier.homeless.values().filter_map(first);
                    earlier(&mut best.own, firsts.min());
                }
                Own::Some(tasks) => {
                    let sets = tasks.iter().filter_map(|task| tier.homeless.get(task));
                    earlier(&mut best.own, sets.filter_map(first).min());
                }
            }
        }
        best
    }
}

fn earlier(best: &mut Option<Key>, key: Option<Key>) {
    if let Some(key) = key
        && best.is_none_or(|least| key < least)
    {
        *best = Some(key);
    }
}

fn remove_from<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<Key>>, of: &K, key: Key) {
    if let Some(keys) = sets.get_mut(of) {
        keys.remove(&key);
        if keys.is_empty() {
            sets.remove(of);
        }
    }
}
