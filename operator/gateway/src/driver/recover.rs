//! What the store holds of an earlier process, as the core takes it up.

use std::collections::HashMap;

use rollwright_core::buffer::{self, Batch, Member, SettledGroup};
use rollwright_core::fault::Fault;
use rollwright_core::ids::GroupId;
use rollwright_core::rollout::Recovered;
use rollwright_core::trajectory::{self, KeptTrajectory, LogState, OpenGroup, Purpose};
use rollwright_core::version::{BatchId, Version};

use super::record::source_from;
use crate::fault::infrastructure;
use crate::store::{self, RecordMeta};

/// From the store's words to the core's.
pub(crate) fn recovered(found: store::Recovered) -> Result<Recovered, Fault> {
    let version = found.weights.as_ref().map_or(Version::default(), |weights| weights.version);
    let source = source_from(found.weights.as_ref().and_then(|weights| weights.source.as_deref()));
    let taken: Option<&store::TakenBatch> = found.batches.first();
    if found.batches.len() > 1 {
        let message = format!("{} batches are out at once, and one can be", found.batches.len());
        return Err(infrastructure("DamagedStore", message));
    }
    let mut settled: Vec<(GroupId, SettledGroup)> =
        found.settled.iter().map(|group| (group.meta.id.clone(), settled_group(group))).collect();
    let taken = match taken {
        None => None,
        Some(taken) => {
            let mut known: HashMap<GroupId, SettledGroup> = HashMap::new();
            settled.retain(|(id, group)| {
                let out = taken.groups.contains(id);
                if out {
                    known.insert(id.clone(), group.clone());
                }
                !out
            });
            let groups = taken.groups.iter().map(|id| {
                known.remove(id).ok_or_else(|| {
                    let message = format!("batch {} names group `{id}`, which is gone", taken.id);
                    infrastructure("DamagedStore", message)
                })
            });
            let groups = groups.collect::<Result<_, _>>()?;
            let waited = std::time::Duration::ZERO;
            Some(Batch { id: taken.id, version: taken.version, groups, waited })
        }
    };
    let last_taken = taken.as_ref().map_or(BatchId::default(), |taken| taken.id);
    let last = found.last_acknowledged.unwrap_or_default().max(last_taken);
    let buffer = buffer::Recovered {
        version,
        groups: settled.into_iter().map(|(_, group)| group).collect(),
        taken,
        last,
    };
    let groups = found.open.into_iter().map(open_group).collect();
    Ok(Recovered { version, source, groups, buffer })
}

fn settled_group(group: &store::RecoveredGroup) -> SettledGroup {
    let member = |record: &RecordMeta| Member {
        trajectory: record.trajectory.clone(),
        start: record.start.unwrap_or(record.opened_at),
        oldest: record.oldest.unwrap_or(record.opened_at),
    };
    SettledGroup {
        group: group.meta.id.clone(),
        task: group.meta.task.clone(),
        trajectories: group.records.iter().map(member).collect(),
    }
}

fn open_group(group: store::RecoveredGroup) -> trajectory::RecoveredGroup {
    let kept = |record: RecordMeta| KeptTrajectory {
        trajectory: record.trajectory,
        reward: record.reward,
        opened_at: record.opened_at,
        log: LogState {
            turns: record.turns,
            prompt_tokens: record.prompt_tokens,
            generated_tokens: record.generated_tokens,
            start: record.start,
            oldest: record.oldest,
        },
        took: record.took,
    };
    let meta = group.meta;
    let purpose = if meta.evaluation {
        Purpose::Evaluation { pinned: meta.version }
    } else {
        Purpose::Training
    };
    trajectory::RecoveredGroup {
        open: OpenGroup {
            group: meta.id,
            task: meta.task,
            needed: meta.needed,
            purpose,
            recorded: meta.tokens,
        },
        numbers: meta.numbers,
        kept: group.records.into_iter().map(kept).collect(),
    }
}
