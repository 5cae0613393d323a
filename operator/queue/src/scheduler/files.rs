//! Files on their way between callers and sandboxes. At most one MiB is in flight
//! beyond the credit that the receiver gave, less where many share a link, so a slow
//! side holds up only itself.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use pb::queue_message::Message as ToAgent;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{NodeId, TrajectoryId};
use rollwright_proto::v1 as pb;

use super::Scheduler;
use super::input::TransferEvent;
use crate::convert;
use crate::fault::{full, infrastructure, user};
use crate::mailbox::{Mailbox, Written};
use rollwright_auth::Caller;

/// Transfers at once.
const MOST: usize = 1024;
/// Bytes that the uploads to one node share as their windows, and what each gets of
/// it at least and at most.
const NODE_WINDOW: u64 = 8 << 20;
const MIN_WINDOW: u64 = 32 << 10;
const MAX_WINDOW: u64 = 1 << 20;

/// All transfers under way.
#[derive(Default)]
pub(super) struct Transfers {
    open: HashMap<u64, Under>,
}

struct Under {
    node: NodeId,
    trajectory: TrajectoryId,
    put: bool,
    to: Arc<Mailbox<TransferEvent>>,
}

impl Transfers {
    /// Tells the caller; false when it does not read any more.
    fn write(&self, node: &NodeId, transfer: u64, event: TransferEvent) -> bool {
        let Some(under) = self.open.get(&transfer).filter(|under| under.node == *node) else {
            return true;
        };
        match under.to.write(event, false) {
            Written::First | Written::More => {
                under.to.wake();
            }
            Written::Closed | Written::Overflow => return false,
        }
        true
    }

    /// Bytes that a further upload to this node may send at once.
    fn window(&self, node: &NodeId) -> u64 {
        let puts = self.open.values().filter(|under| under.put && under.node == *node).count();
        (NODE_WINDOW / (puts as u64 + 1)).clamp(MIN_WINDOW, MAX_WINDOW)
    }

    pub(super) fn done(&mut self, node: &NodeId, transfer: u64, fault: Option<Fault>) {
        if fault.is_none() {
            self.write(node, transfer, TransferEvent::Done);
        }
        if self.open.get(&transfer).is_some_and(|under| under.node == *node)
            && let Some(under) = self.open.remove(&transfer)
            && fault.is_some()
        {
            under.to.close(fault);
        }
    }

    pub(super) fn end_node(&mut self, node: &NodeId, fault: &Fault) {
        self.end(fault, |under| under.node == *node);
    }

    pub(super) fn end_trajectory(&mut self, trajectory: &TrajectoryId, fault: &Fault) {
        self.end(fault, |under| under.trajectory == *trajectory);
    }

    pub(super) fn end_all(&mut self, fault: &Fault) {
        self.end(fault, |_| true);
    }

    fn end(&mut self, fault: &Fault, which: impl Fn(&Under) -> bool) {
        self.open.retain(|_, under| {
            let ends = which(under);
            if ends {
                under.to.close(Some(fault.clone()));
            }
            !ends
        });
    }
}

impl Scheduler {
    /// What an agent says to the caller of a transfer.
    pub(super) fn file_event(&mut self, node: &NodeId, transfer: u64, event: TransferEvent) {
        if !self.transfers.write(node, transfer, event) {
            self.file_end(transfer, false);
        }
    }

    /// Begins a transfer; returns how many bytes may be sent at once.
    pub(super) fn file_open(
        &mut self,
        caller: &Caller,
        transfer: u64,
        target: pb::FileTarget,
        put: bool,
        to: Arc<Mailbox<TransferEvent>>,
    ) -> Result<u64, Fault> {
        if !target.path.starts_with('/') {
            return Err(user("InvalidPath", "path must be absolute, inside the sandbox"));
        }
        let trajectory = TrajectoryId::new(&target.trajectory_id).map_err(convert::bad_id)?;
        self.trajectory_job(caller, &trajectory)?;
        let open = self.trajectories.get(&trajectory).filter(|open| open.ready.is_some());
        let Some(node) = open.and_then(|open| open.node.clone()) else {
            let message =
                format!("the sandbox of `{trajectory}` is not ready: wait until it is open");
            return Err(user("TrajectoryNotOpen", message));
        };
        if !self.links.contains_key(&node) {
            let message = format!("the link to node `{node}` is down: try again");
            return Err(infrastructure("NodeAway", message));
        }
        if self.transfers.open.len() >= MOST {
            return Err(full(format!("{MOST} files are on their way: try again later")));
        }
        self.check_budget(0)?;
        let window = self.transfers.window(&node);
        self.transfers.open.insert(transfer, Under { node: node.clone(), trajectory, put, to });
        self.send_file(
            &node,
            ToAgent::FileOpen(pb::FileOpen { transfer, target: Some(target), put }),
        );
        Ok(window)
    }

    pub(super) fn file_data(&mut self, transfer: u64, data: Bytes, last: bool) {
        let Some(under) = self.transfers.open.get(&transfer) else { return };
        let node = under.node.clone();
        self.send_file(&node, ToAgent::FileData(pb::FileData { transfer, data, last }));
    }

    pub(super) fn file_credit(&mut self, transfer: u64, bytes: u64) {
        let Some(under) = self.transfers.open.get(&transfer) else { return };
        let node = under.node.clone();
        self.send_file(&node, ToAgent::FileCredit(pb::FileCredit { transfer, bytes }));
    }

    /// The caller has gone, or has all that it wanted.
    pub(super) fn file_end(&mut self, transfer: u64, complete: bool) {
        let Some(under) = self.transfers.open.remove(&transfer) else { return };
        let cancelled =
            || Fault::new(FaultKind::Cancelled, "TransferCancelled", "the caller has gone");
        let fault = (!complete).then(|| crate::fault::to_proto(&cancelled()));
        self.send_file(&under.node, ToAgent::FileDone(pb::FileDone { transfer, fault }));
    }

    fn send_file(&mut self, node: &NodeId, message: ToAgent) {
        self.send(node, pb::QueueMessage { message: Some(message) });
    }
}
