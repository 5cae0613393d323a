//! What is in the store, in memory: as much as the buffer holds, without payloads.

use std::collections::{BTreeMap, HashMap};

use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::BatchId;

use super::StoreError;
use super::meta::{
    Acknowledged, BatchForm, GroupForm, GroupMeta, RecordForm, RecordMeta, TakenBatch, Weights,
    WeightsForm, encode,
};
use super::segment::Place;

/// Sorts of records in the embedded database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Groups,
    Records,
    Batches,
    Meta,
}

/// Keys of [`Space::Meta`].
pub(super) const WEIGHTS: &[u8] = b"weights";
pub(super) const ACKNOWLEDGED: &[u8] = b"acknowledged";

/// What a commit writes: the last value of each key, `None` where it is removed.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) keys: HashMap<(Space, Vec<u8>), Option<Vec<u8>>>,
    /// Payloads that nothing names any more.
    pub(super) freed: Vec<Place>,
}

impl Changes {
    fn put(&mut self, space: Space, key: &[u8], value: Vec<u8>) {
        self.keys.insert((space, key.to_vec()), Some(value));
    }

    fn remove(&mut self, space: Space, key: &[u8]) {
        self.keys.insert((space, key.to_vec()), None);
    }
}

/// A group and its records.
pub(super) struct Held {
    pub(super) form: GroupForm,
    pub(super) records: Vec<TrajectoryId>,
}

/// What is in the store.
#[derive(Default)]
pub(super) struct Index {
    pub(super) groups: HashMap<GroupId, Held>,
    pub(super) records: HashMap<TrajectoryId, Place>,
    pub(super) batches: BTreeMap<BatchId, Vec<GroupId>>,
    pub(super) acknowledged: Acknowledged,
    /// Place of the next group in the order of settling.
    pub(super) next_settled: u64,
}

impl Index {
    fn held(&mut self, group: &GroupId) -> Result<&mut Held, StoreError> {
        let missing = || StoreError::GroupNotFound { group: group.to_string() };
        self.groups.get_mut(group).ok_or_else(missing)
    }

    /// A group that is there already stays as it is, but for its numbers, which grow.
    pub(super) fn open(
        &mut self,
        meta: &GroupMeta,
        payload: Option<Place>,
        changes: &mut Changes,
    ) -> Result<(), StoreError> {
        if let Some(held) = self.groups.get_mut(&meta.id) {
            changes.freed.extend(payload);
            if held.form.numbers < meta.numbers {
                held.form.numbers = meta.numbers;
                changes.put(Space::Groups, meta.id.as_str().as_bytes(), encode(&held.form)?);
            }
            return Ok(());
        }
        let form = GroupForm::new(meta, payload);
        changes.put(Space::Groups, meta.id.as_str().as_bytes(), encode(&form)?);
        self.groups.insert(meta.id.clone(), Held { form, records: Vec::new() });
        Ok(())
    }

    /// A record that is there already stays as it is.
    pub(super) fn keep(
        &mut self,
        meta: &RecordMeta,
        place: Place,
        changes: &mut Changes,
    ) -> Result<(), StoreError> {
        if self.records.contains_key(&meta.trajectory) {
            changes.freed.push(place);
            return Ok(());
        }
        let held = match self.held(&meta.group) {
            Ok(held) => held,
            Err(error) => {
                changes.freed.push(place);
                return Err(error);
            }
        };
        // It was aborted while its record was on its way, and its group settled without it.
        let settled = held.form.settled.is_some();
        if settled && !held.form.kept.iter().any(|kept| kept == meta.trajectory.as_str()) {
            changes.freed.push(place);
            return Err(StoreError::RecordNotFound { trajectory: meta.trajectory.to_string() });
        }
        let form = encode(&RecordForm::new(meta, place))?;
        held.records.push(meta.trajectory.clone());
        changes.put(Space::Records, meta.trajectory.as_str().as_bytes(), form);
        self.records.insert(meta.trajectory.clone(), place);
        Ok(())
    }

    fn forget(&mut self, trajectory: &TrajectoryId, changes: &mut Changes) {
        if let Some(place) = self.records.remove(trajectory) {
            changes.remove(Space::Records, trajectory.as_str().as_bytes());
            changes.freed.push(place);
        }
    }

    /// Drops records of an open group.
    pub(super) fn drop_records(
        &mut self,
        group: &GroupId,
        trajectories: &[TrajectoryId],
        changes: &mut Changes,
    ) {
        let Some(held) = self.groups.get_mut(group) else { return };
        held.records.retain(|record| !trajectories.contains(record));
        for trajectory in trajectories {
            self.forget(trajectory, changes);
        }
    }

    /// Only `kept` stay, in this order. All of them must be there.
    pub(super) fn settle(
        &mut self,
        group: &GroupId,
        kept: &[TrajectoryId],
        changes: &mut Changes,
    ) -> Result<(), StoreError> {
        let order = self.next_settled;
        let held = self.held(group)?;
        if let Some(missing) = kept.iter().find(|kept| !held.records.contains(kept)) {
            return Err(StoreError::RecordNotFound { trajectory: missing.to_string() });
        }
        held.form.settled.get_or_insert(order);
        held.form.kept = kept.iter().map(TrajectoryId::to_string).collect();
        let form = encode(&held.form)?;
        let before = std::mem::replace(&mut held.records, kept.to_vec());
        self.next_settled += 1;
        changes.put(Space::Groups, group.as_str().as_bytes(), form);
        for record in before.iter().filter(|record| !kept.contains(record)) {
            self.forget(record, changes);
        }
        Ok(())
    }

    /// The group and its records are gone.
    pub(super) fn end(&mut self, group: &GroupId, changes: &mut Changes) {
        let Some(held) = self.groups.remove(group) else { return };
        for record in &held.records {
            self.forget(record, changes);
        }
        changes.freed.extend(held.form.payload);
        changes.remove(Space::Groups, group.as_str().as_bytes());
    }

    /// Takes note of a batch. All of its groups must be there.
    pub(super) fn take(
        &mut self,
        batch: &TakenBatch,
        changes: &mut Changes,
    ) -> Result<(), StoreError> {
        for group in &batch.groups {
            self.held(group)?;
        }
        let form = encode(&BatchForm::new(batch))?;
        changes.put(Space::Batches, &batch.id.0.to_be_bytes(), form);
        self.batches.insert(batch.id, batch.groups.clone());
        Ok(())
    }

    /// The batch, its groups and their records are gone. Does nothing again.
    pub(super) fn acknowledge(
        &mut self,
        batch: BatchId,
        changes: &mut Changes,
    ) -> Result<(), StoreError> {
        let Some(groups) = self.batches.remove(&batch) else { return Ok(()) };
        changes.remove(Space::Batches, &batch.0.to_be_bytes());
        for group in &groups {
            self.end(group, changes);
        }
        self.acknowledged.count += 1;
        self.acknowledged.last = self.acknowledged.last.max(Some(batch.0));
        changes.put(Space::Meta, ACKNOWLEDGED, encode(&self.acknowledged)?);
        Ok(())
    }
}

/// A new version of the weights is current.
pub(super) fn set_weights(weights: &Weights, changes: &mut Changes) -> Result<(), StoreError> {
    changes.put(Space::Meta, WEIGHTS, encode(&WeightsForm::new(weights))?);
    Ok(())
}
