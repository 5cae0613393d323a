//! What a caller may know of the load.

use rollwright_auth::Caller;
use rollwright_proto::v1 as pb;

use super::Scheduler;
use crate::convert;

impl Scheduler {
    /// Everything, for ourselves and for those who may operate the queue; for others how
    /// much of theirs waits, runs and is open.
    pub(super) fn stats(&self, caller: Option<&Caller>) -> pb::StatsResponse {
        let Some(caller) = caller.filter(|caller| !caller.may_operate()) else {
            return convert::stats(&self.core.stats(), self.accepted, self.ended);
        };
        let mut own = pb::StatsResponse::default();
        for action in self.actions.values() {
            if action.ended.is_none() && caller.may_use(&action.job) {
                let of = if action.started.is_some() { &mut own.running } else { &mut own.waiting };
                *of += 1;
            }
        }
        let open = self.trajectories.values().filter(|open| caller.may_use(&open.job));
        own.trajectories = open.count() as u64;
        own
    }
}
