//! Runs the actions of one sandbox: a task that sleeps while none runs.
//!
//! The node gives orders over a channel and gets reports over another; what the
//! two kinds of runner have in common is here.

pub mod capture;
pub mod command;
pub mod docker;
pub mod helper;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_proto::v1::{ActionEnded, ActionOutput, Finished, StartAction, Usage, action_ended};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fault;

/// Orders that wait for one runner: some for each action that the node lets a sandbox
/// have. A runner that leaves more untaken is stuck.
pub const ORDERS: usize = 2048;

/// What a runner is told.
#[derive(Debug)]
pub enum Order {
    /// Start this action, in this whole environment and with the command resolved.
    Start(Box<StartAction>),
    /// Other cores and units for a running action.
    Resize {
        /// Action.
        action_id: String,
        /// Cores that it may run on from now.
        cores: Vec<u32>,
        /// Its units from now.
        cpu_units: f64,
        /// Held until it is done, where it gives up cores: others wait for that.
        left: Option<DropGuard>,
    },
    /// What follows takes cores that an action of another sandbox is to leave: wait for that.
    Await(CancellationToken),
    /// Kill the action's whole tree; it ends as cancelled.
    Kill {
        /// Action.
        action_id: String,
    },
    /// The action's end is durable: forget it.
    Ack {
        /// Action.
        action_id: String,
        /// Its try.
        attempt: u32,
    },
}

/// A runner that has not moved an action by then is stuck; then it is better that two share a
/// core than that one waits for ever.
const HANDOVER: Duration = Duration::from_secs(1);

/// Waits until an action of another sandbox has left its cores.
async fn wait_for(left: &CancellationToken) {
    if tokio::time::timeout(HANDOVER, left.cancelled()).await.is_err() {
        tracing::warn!("cores are taken that another action has not left for {HANDOVER:?}");
    }
}

/// What a runner says.
#[derive(Debug)]
pub enum Report {
    /// The program runs.
    Started {
        /// Action.
        action_id: String,
        /// Its try.
        attempt: u32,
    },
    /// A piece of output.
    Output(ActionOutput),
    /// The action ended; said once for each try.
    Ended(Box<ActionEnded>),
    /// The sandbox is gone with everything in it; nothing more follows.
    Lost(Fault),
}

/// Where a runner's reports go: source sandbox --what--> node.
#[derive(Debug, Clone)]
pub struct Reports {
    /// Name of the sandbox that reports.
    pub sandbox: Arc<str>,
    /// To the node.
    pub node_tx: mpsc::Sender<(Arc<str>, Report)>,
}

impl Reports {
    /// Sends one; the node's end ends the runner as well, so a failure says nothing new.
    pub async fn send(&self, report: Report) {
        let _ = self.node_tx.send((Arc::clone(&self.sandbox), report)).await;
    }

    /// The action ended in a fault.
    pub async fn failed(&self, action_id: &str, attempt: u32, fault: &Fault, not_started: bool) {
        self.send(Report::Ended(Box::new(failed(action_id, attempt, fault, not_started)))).await;
    }
}

/// An end by a fault.
pub fn failed(action_id: &str, attempt: u32, fault: &Fault, not_started: bool) -> ActionEnded {
    ActionEnded {
        action_id: action_id.to_owned(),
        attempt,
        not_started,
        end: Some(action_ended::End::Fault(fault::to_proto(fault))),
    }
}

/// An end by the program itself.
pub fn finished(action_id: &str, attempt: u32, finished: Finished) -> ActionEnded {
    ActionEnded {
        action_id: action_id.to_owned(),
        attempt,
        not_started: false,
        end: Some(action_ended::End::Finished(finished)),
    }
}

/// Why an action is being killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// Its time was over.
    Timeout,
    /// The queue said so.
    Cancelled,
}

impl KillReason {
    /// The fault that the action ends in.
    pub fn fault(self, limit: Option<std::time::Duration>) -> Fault {
        match (self, limit) {
            (Self::Timeout, Some(limit)) => fault::timeout(
                "ActionTimeout",
                format!("it ran longer than its time-out of {limit:?} and was killed"),
            ),
            (Self::Timeout, None) => fault::timeout("ActionTimeout", "it ran too long"),
            (Self::Cancelled, _) => fault::cancelled("it was cancelled and killed"),
        }
    }
}

/// Usage as far as a node knows it.
pub fn usage(exec_s: f64, cpu_s: f64, memory_peak_bytes: u64, output: (u64, u64)) -> Usage {
    Usage {
        exec_s,
        cpu_s,
        memory_peak_bytes,
        output_bytes: output.0,
        output_dropped_bytes: output.1,
        ..Default::default()
    }
}
