//! What survives the end of the process.

use std::collections::BTreeMap;

use crate::buffer::{Batch, Recovered, SettledGroup};
use crate::ids::{GroupId, TrajectoryId};
use crate::trajectory::{Keep, KeptTrajectory, OpenGroup, RecoveredGroup};
use crate::version::{BatchId, Version};

#[derive(Default)]
pub(super) struct Disk {
    pub(super) groups: BTreeMap<GroupId, GroupRecord>,
    pub(super) records: BTreeMap<TrajectoryId, Keep>,
    pub(super) batch: Option<Batch>,
    pub(super) last: BatchId,
    settled: usize,
}

pub(super) struct GroupRecord {
    open: OpenGroup,
    pub(super) numbers: u32,
    /// Order of settling, and what settled.
    pub(super) settled: Option<(usize, SettledGroup)>,
}

impl Disk {
    pub(super) fn write_group(&mut self, open: &OpenGroup, numbers: u32) {
        let record = GroupRecord { open: open.clone(), numbers, settled: None };
        let record = self.groups.entry(open.group.clone()).or_insert(record);
        assert!(record.numbers <= numbers && record.settled.is_none());
        record.numbers = numbers;
    }

    pub(super) fn settle(&mut self, group: &SettledGroup) {
        for member in &group.trajectories {
            assert!(self.records.contains_key(&member.trajectory), "{member:?} is not on disk");
        }
        self.settled += 1;
        let record = self.groups.get_mut(&group.group).expect("the group's record");
        assert_eq!(record.open.needed as usize, group.trajectories.len());
        assert!(record.settled.replace((self.settled, group.clone())).is_none(), "settled twice");
    }

    pub(super) fn remove(&mut self, group: &SettledGroup) {
        assert!(self.groups.remove(&group.group).is_some(), "{group:?} is not on disk");
        for member in &group.trajectories {
            assert!(self.records.remove(&member.trajectory).is_some(), "{member:?} is not on disk");
        }
    }

    /// What a new process is told, for trajectories and buffer.
    pub(super) fn recovered(&self, version: Version) -> (Vec<RecoveredGroup>, Recovered) {
        let (mut open, mut settled) = (Vec::new(), BTreeMap::new());
        for (id, group) in &self.groups {
            if let Some((order, group)) = &group.settled {
                settled.insert(*order, group.clone());
                continue;
            }
            let of_group = self.records.values().filter(|keep| keep.group == *id);
            let kept = of_group.map(|keep| KeptTrajectory {
                trajectory: keep.trajectory.clone(),
                reward: keep.reward,
                opened_at: keep.opened_at,
                log: keep.log,
                took: keep.took,
            });
            let (kept, numbers) = (kept.collect(), group.numbers);
            open.push(RecoveredGroup { open: group.open.clone(), numbers, kept });
        }
        let taken = self.batch.clone();
        let in_batch =
            |group: &SettledGroup| taken.as_ref().is_some_and(|batch| batch.groups.contains(group));
        let groups = settled.into_values().filter(|group| !in_batch(group)).collect();
        (open, Recovered { version, groups, taken: taken.clone(), last: self.last })
    }
}
