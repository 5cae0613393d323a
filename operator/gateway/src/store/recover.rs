//! What an earlier process left.

use std::path::Path;

use fjall::Keyspace;
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::BatchId;
use serde::de::DeserializeOwned;

use super::StoreError;
use super::index::{ACKNOWLEDGED, Held, Index, WEIGHTS};
use super::meta::{
    Acknowledged, BatchForm, GroupForm, GroupMeta, RecordForm, RecordMeta, TakenBatch, Weights,
    WeightsForm, decode,
};
use super::segment::{Place, Segments};
use super::writer::Spaces;

/// What was in the store when it was opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recovered {
    /// The current version of the weights, once one was set.
    pub weights: Option<Weights>,
    /// Groups that had not settled.
    pub open: Vec<RecoveredGroup>,
    /// Groups that had settled, in that order, those of `batches` included.
    pub settled: Vec<RecoveredGroup>,
    /// Batches that were not acknowledged, oldest first.
    pub batches: Vec<TakenBatch>,
    /// How many batches were acknowledged since the store is new.
    pub acknowledged: u64,
    /// The greatest number of a batch that was acknowledged.
    pub last_acknowledged: Option<BatchId>,
}

/// A group and its scored trajectories.
#[derive(Debug, Clone, PartialEq)]
pub struct RecoveredGroup {
    /// The group.
    pub meta: GroupMeta,
    /// Its records; of a settled group in the order in which they were kept.
    pub records: Vec<RecordMeta>,
}

/// Reads everything but payloads, and gives disk back that nothing names. Blocks.
pub(super) fn recover(
    spaces: &Spaces,
    segments: &Path,
) -> Result<(Index, Segments, Recovered), StoreError> {
    let mut index = Index::default();
    let mut recovered = Recovered::default();
    if let Some(value) = spaces.meta.get(WEIGHTS)? {
        recovered.weights = Some(decode::<WeightsForm>("version", "weights", &value)?.weights());
    }
    if let Some(value) = spaces.meta.get(ACKNOWLEDGED)? {
        index.acknowledged = decode::<Acknowledged>("batch", "acknowledged", &value)?;
    }
    recovered.acknowledged = index.acknowledged.count;
    recovered.last_acknowledged = index.acknowledged.last.map(BatchId);

    let mut places: Vec<(String, Place)> = Vec::new();
    for (id, form) in all::<GroupForm>(&spaces.groups, "group")? {
        let meta = form.meta(&id)?;
        places.extend(form.payload.map(|place| (id, place)));
        index.next_settled = index.next_settled.max(form.settled.map_or(0, |order| order + 1));
        index.groups.insert(meta.id, Held { form, records: Vec::new() });
    }
    let mut metas = std::collections::HashMap::new();
    for (id, form) in all::<RecordForm>(&spaces.records, "record")? {
        let meta = form.meta(&id)?;
        let Some(held) = index.groups.get_mut(&meta.group) else {
            let message = format!("its group `{}` is missing", meta.group);
            return Err(StoreError::Corrupt { what: "record", key: id, message });
        };
        held.records.push(meta.trajectory.clone());
        index.records.insert(meta.trajectory.clone(), form.place);
        places.push((id, form.place));
        metas.insert(meta.trajectory.clone(), meta);
    }
    for entry in spaces.batches.iter() {
        let (key, value) = entry.into_inner()?;
        let id = (*key).try_into().map(u64::from_be_bytes).map_err(|_| StoreError::Corrupt {
            what: "batch",
            key: format!("{key:?}"),
            message: "its number is not one".to_owned(),
        })?;
        let batch = decode::<BatchForm>("batch", &id.to_string(), &value)?.batch(BatchId(id))?;
        if let Some(missing) = batch.groups.iter().find(|id| !index.groups.contains_key(*id)) {
            let message = format!("its group `{missing}` is missing");
            return Err(StoreError::Corrupt { what: "batch", key: id.to_string(), message });
        }
        index.batches.insert(batch.id, batch.groups.clone());
        recovered.batches.push(batch);
    }
    let segments = Segments::open(segments, &places)?;

    let mut settled = Vec::new();
    for (id, held) in &mut index.groups {
        let group = group(id, held, &mut metas)?;
        match held.form.settled {
            Some(order) => settled.push((order, group)),
            None => recovered.open.push(group),
        }
    }
    settled.sort_by_key(|(order, _)| *order);
    recovered.settled = settled.into_iter().map(|(_, group)| group).collect();
    recovered.open.sort_by(|a, b| a.meta.id.cmp(&b.meta.id));
    Ok((index, segments, recovered))
}

/// Puts a group's records in order.
fn group(
    id: &GroupId,
    held: &mut Held,
    metas: &mut std::collections::HashMap<TrajectoryId, RecordMeta>,
) -> Result<RecoveredGroup, StoreError> {
    if held.form.settled.is_some() {
        let order =
            |record: &TrajectoryId| held.form.kept.iter().position(|kept| kept == record.as_str());
        held.records.sort_by_key(order);
        if held.records.len() != held.form.kept.len() {
            let message = format!(
                "it settled with {} records and has {}",
                held.form.kept.len(),
                held.records.len()
            );
            return Err(StoreError::Corrupt { what: "group", key: id.to_string(), message });
        }
    }
    let records = held.records.iter().filter_map(|record| metas.remove(record)).collect();
    Ok(RecoveredGroup { meta: held.form.meta(id.as_str())?, records })
}

fn all<T: DeserializeOwned>(
    keyspace: &Keyspace,
    what: &'static str,
) -> Result<Vec<(String, T)>, StoreError> {
    let mut found = Vec::new();
    for entry in keyspace.iter() {
        let (key, value) = entry.into_inner()?;
        let key = String::from_utf8_lossy(&key).into_owned();
        let form = decode(what, &key, &value)?;
        found.push((key, form));
    }
    Ok(found)
}
