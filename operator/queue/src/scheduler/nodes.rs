//! Links to the nodes' agents: what comes from them, and orders on their way.

use std::sync::Arc;

use pb::agent_message::Message as FromAgent;
use pb::queue_message::Message as ToAgent;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, NodeId, TrajectoryId};
use rollwright_core::queue::{End, Event, LiveAction, NodeOrder, NodeReport};
use rollwright_core::resources::{Cost, UnitChoice};
use rollwright_proto::v1 as pb;

use super::Scheduler;
use super::actions::Action;
use super::input::{Reply, TransferEvent};
use crate::convert;
use crate::fault::{self, infrastructure};
use crate::mailbox::{Mailbox, Written};

/// Bytes of output taken of an action whose request is not known any more.
const ADOPTED_OUTPUT: u64 = 2 << 20;

/// The current link of a node.
pub(super) struct Link {
    epoch: u64,
    outbox: Arc<Mailbox<pb::QueueMessage>>,
}

impl Link {
    /// Ends the stream to the agent.
    pub(super) fn hang_up(&self) {
        self.outbox.close(None);
    }
}

fn message(message: ToAgent) -> pb::QueueMessage {
    pb::QueueMessage { message: Some(message) }
}

impl Scheduler {
    pub(super) fn link_up(
        &mut self,
        hello: &pb::Hello,
        outbox: Arc<Mailbox<pb::QueueMessage>>,
        reply: Reply<(NodeId, u64)>,
    ) {
        self.next_epoch += 1;
        let epoch = self.next_epoch;
        let gpus_only = self.config.gpu_pools.iter().any(|pool| pool.name == hello.pool);
        let up = self.check_pool(&hello.pool).and_then(|()| convert::node_up(hello, epoch));
        let mut up = match up {
            Ok(up) => up,
            // A link that has gone does not want the answer.
            Err(fault) => return drop(reply.send(Err(fault))),
        };
        let node = up.node.clone();
        if gpus_only {
            // A node of a GPU pool is not for sandboxes.
            (up.numa, up.memory) = (Vec::new(), 0);
        }
        tracing::info!(%node, epoch, sandboxes = up.sandboxes.len(), actions = up.actions.len(), "node linked");
        if let Some(old) = self.links.insert(node.clone(), Link { epoch, outbox }) {
            let message = format!("a newer link of node `{node}` has taken its place");
            old.outbox.close(Some(infrastructure("LinkReplaced", message)));
            self.transfers.end_node(&node, &node_away(&node));
        }
        for live in &up.actions {
            self.take_in(&node, live);
        }
        // Before anything is sent: a link that is found closed then goes down again.
        self.events.push(Event::NodeUp(up));
        // The welcome is the first message, also before those of the GPU pools.
        let heartbeat = self.config.heartbeat.try_into().ok();
        self.send(&node, message(ToAgent::Welcome(pb::Welcome { epoch, heartbeat })));
        if reply.send(Ok((node.clone(), epoch))).is_err() {
            return self.link_down(&node, epoch);
        }
        let warm =
            self.config.templates.iter().filter(|(_, template)| template.warm > 0 && !gpus_only);
        let warm: Vec<pb::WarmSandboxes> = warm
            .map(|(name, template)| {
                let spec = pb::SandboxSpec { template: name.clone(), ..template.spec.clone() };
                pb::WarmSandboxes { spec: Some(spec), count: template.warm }
            })
            .collect();
        for warm in warm {
            self.send(&node, message(ToAgent::WarmSandboxes(warm)));
        }
        self.refresh_gauges();
    }

    fn check_pool(&self, pool: &str) -> Result<(), Fault> {
        let pools = &self.config.pools;
        let gpu = self.config.gpu_pools.iter().map(|pool| pool.name.as_str());
        if pools.is_empty() || pools.contains(pool) || gpu.clone().any(|name| name == pool) {
            return Ok(());
        }
        let known = pools.iter().map(String::as_str).chain(gpu).collect::<Vec<_>>().join(", ");
        let message =
            format!("pool `{pool}` is none of this queue's pools of nodes: they are [{known}]");
        Err(fault::user("Forbidden", message))
    }

    /// An action that an agent has and that is not known here: it was started by a
    /// queue that died before its record was durable. The agent's word stands for
    /// the record, so that the same id never runs twice.
    fn take_in(&mut self, node: &NodeId, live: &LiveAction) {
        if self.actions.contains_key(&live.action) || self.retained.may_hold(live.action.as_str()) {
            return;
        }
        let Some(trajectory) = self.trajectories.get(&live.trajectory) else { return };
        if trajectory.node.as_ref() != Some(node) || trajectory.closing {
            return;
        }
        tracing::info!(action = %live.action, %node, "taking in an action that is not on record");
        let job = trajectory.job.clone();
        let action = Action {
            output_cap: ADOPTED_OUTPUT,
            node: Some(node.clone()),
            ..Action::new(job, live.trajectory.clone(), self.now())
        };
        let cost =
            Cost { cpu: UnitChoice::fixed(live.units), quota: std::collections::BTreeMap::new() };
        if let Err(fault) = self.admit(&live.action, action, cost, Some(self.now())) {
            tracing::error!(action = %live.action, %fault, "cannot take in an action");
        }
    }

    pub(super) fn link_down(&mut self, node: &NodeId, epoch: u64) {
        if self.links.get(node).is_none_or(|link| link.epoch != epoch) {
            return;
        }
        tracing::warn!(%node, epoch, "node's link is down");
        if let Some(link) = self.links.remove(node) {
            link.outbox.close(None);
        }
        self.transfers.end_node(node, &node_away(node));
        self.events.push(Event::NodeDown { node: node.clone(), epoch });
        self.refresh_gauges();
    }

    pub(super) fn link_batch(
        &mut self,
        node: &NodeId,
        epoch: u64,
        messages: Vec<pb::AgentMessage>,
    ) {
        if self.links.get(node).is_none_or(|link| link.epoch != epoch) {
            return;
        }
        for message in messages.into_iter().filter_map(|message| message.message) {
            match self.agent_says(node, message) {
                Ok(Some(report)) => {
                    let node = node.clone();
                    self.events.push(Event::Report { node, epoch, report });
                }
                Ok(None) => {}
                Err(fault) => tracing::error!(%node, %fault, "the agent sent nonsense"),
            }
        }
    }

    /// Keeps the details of a message, and makes of it what the core must know.
    fn agent_says(
        &mut self,
        node: &NodeId,
        message: FromAgent,
    ) -> Result<Option<NodeReport>, Fault> {
        let trajectory = |id: &str| TrajectoryId::new(id).map_err(convert::bad_id);
        let action = |id: &str| ActionId::new(id).map_err(convert::bad_id);
        Ok(match message {
            FromAgent::SandboxReady(ready) => {
                let id = trajectory(&ready.trajectory_id)?;
                if let Some(open) = self.trajectories.get_mut(&id) {
                    open.reset = Some((ready.times.unwrap_or_default(), ready.warm));
                }
                Some(NodeReport::SandboxReady(id))
            }
            FromAgent::SandboxFailed(failed) => {
                let fault = failed.fault.map_or_else(unnamed, fault::from_proto);
                Some(NodeReport::SandboxFailed(trajectory(&failed.trajectory_id)?, fault))
            }
            FromAgent::SandboxClosed(closed) => {
                Some(NodeReport::SandboxClosed(trajectory(&closed.trajectory_id)?))
            }
            FromAgent::ActionStarted(started) => {
                let action = action(&started.action_id)?;
                Some(NodeReport::ActionStarted { action, attempt: started.attempt })
            }
            FromAgent::ActionOutput(output) => {
                self.output(node, output);
                None
            }
            FromAgent::ActionEnded(ended) => Some(self.ended_report(node, ended)?),
            FromAgent::FileData(file) => {
                self.file_event(node, file.transfer, TransferEvent::Data(file.data, file.last));
                None
            }
            FromAgent::FileCredit(credit) => {
                self.file_event(node, credit.transfer, TransferEvent::Credit(credit.bytes));
                None
            }
            FromAgent::FileDone(done) => {
                self.transfers.done(node, done.transfer, done.fault.map(fault::from_proto));
                None
            }
            // Of a heartbeat its arrival is what counts, of the others the GPU pools are told.
            FromAgent::Heartbeat(_)
            | FromAgent::EngineReport(_)
            | FromAgent::EngineBroke(_)
            | FromAgent::GpuChanged(_)
            | FromAgent::CallEnded(_)
            | FromAgent::Leaving(_) => None,
            FromAgent::Hello(_) => {
                return Err(fault::user("InvalidLink", "hello comes once, as the first message"));
            }
        })
    }

    fn ended_report(&mut self, node: &NodeId, ended: pb::ActionEnded) -> Result<NodeReport, Fault> {
        let id = ActionId::new(&ended.action_id).map_err(convert::bad_id)?;
        let end = match &ended.end {
            Some(pb::action_ended::End::Finished(_)) => End::Finished,
            Some(pb::action_ended::End::Fault(fault)) => {
                End::Failed(fault::from_proto(fault.clone()))
            }
            None => End::Failed(unnamed()),
        };
        let usage = ended.end.as_ref().and_then(convert::usage);
        let here = self.is_on(&id, node);
        if let Some(action) = self.actions.get_mut(&id).filter(|_| here)
            && action.ended.is_none()
            && action.report.as_ref().is_none_or(|(attempt, _)| *attempt <= ended.attempt)
            && let Some(details) = ended.end
        {
            // Of one that was not started nobody but this queue knows the end.
            action.report = (!ended.not_started).then_some((ended.attempt, details));
            action.node = Some(node.clone());
        }
        let (attempt, not_started) = (ended.attempt, ended.not_started);
        Ok(NodeReport::ActionEnded { action: id, attempt, end, not_started, usage })
    }

    /// True when an action's sandbox is on this node: others have no say in it.
    pub(super) fn is_on(&self, action: &ActionId, node: &NodeId) -> bool {
        let action = self.actions.get(action);
        let trajectory = action.and_then(|action| self.trajectories.get(&action.trajectory));
        trajectory.is_some_and(|trajectory| trajectory.node.as_ref() == Some(node))
    }

    /// Carries out an order of the core to a node.
    pub(super) fn order(&mut self, node: &NodeId, epoch: u64, order: NodeOrder) {
        if self.links.get(node).is_none_or(|link| link.epoch != epoch) {
            return;
        }
        match order {
            NodeOrder::OpenSandbox(id) => {
                let Some(open) = self.trajectories.get(&id) else { return };
                let open = pb::OpenSandbox {
                    trajectory_id: id.as_str().to_owned(),
                    spec: Some(open.spec.clone()),
                };
                self.send_for(node, &id, message(ToAgent::OpenSandbox(open)));
            }
            NodeOrder::CloseSandbox(id) => {
                let close = pb::CloseSandbox { trajectory_id: id.as_str().to_owned() };
                self.send_for(node, &id, message(ToAgent::CloseSandbox(close)));
            }
            NodeOrder::Start { action, attempt, units, cores } => {
                let request = self.actions.get(&action).and_then(|live| live.request.as_ref());
                if let Some(request) = request {
                    // One on a share keeps it.
                    let grows = request.malleable() && !units.is_share();
                    let most = request.cpu_units.last().filter(|_| grows);
                    let start = pb::StartAction {
                        action_id: action.as_str().to_owned(),
                        attempt,
                        trajectory_id: request.trajectory_id.clone(),
                        command: request.command.clone(),
                        cores: cores.iter().collect(),
                        cpu_units: units.as_f64(),
                        timeout: request.timeout,
                        output_limit: request.output_limit,
                        most_units: most.copied().unwrap_or_default(),
                    };
                    self.send(node, message(ToAgent::StartAction(start)));
                } else {
                    let message = "what to run was lost when the queue was restarted";
                    let fault = infrastructure("RequestLost", message);
                    let end = End::Failed(fault);
                    let (not_started, usage) = (false, None);
                    let report =
                        NodeReport::ActionEnded { action, attempt, end, not_started, usage };
                    self.events.push(Event::Report { node: node.clone(), epoch, report });
                }
            }
            NodeOrder::Resize { action, units, cores } => {
                let resize = pb::ResizeAction {
                    action_id: action.as_str().to_owned(),
                    cores: cores.iter().collect(),
                    cpu_units: units.as_f64(),
                };
                self.send(node, message(ToAgent::ResizeAction(resize)));
            }
            NodeOrder::Kill(action) => {
                let kill = pb::KillAction { action_id: action.as_str().to_owned() };
                self.send(node, message(ToAgent::KillAction(kill)));
            }
            // While its end is not durable, that is what the agent waits for.
            NodeOrder::Forget(action) => match self.actions.get_mut(&action) {
                Some(live)
                    if live.ended.is_some()
                        && live.node.as_ref().is_none_or(|other| other == node) =>
                {
                    live.node = Some(node.clone());
                }
                _ => self.acknowledge(node, &action),
            },
        }
    }

    /// Lets an agent forget an action.
    pub(super) fn acknowledge(&mut self, node: &NodeId, action: &ActionId) {
        let ack = pb::AckAction { action_id: action.as_str().to_owned() };
        self.send(node, message(ToAgent::AckAction(ack)));
    }

    /// Sends a message about a trajectory, after its placement is durable.
    fn send_for(&mut self, node: &NodeId, id: &TrajectoryId, message: pb::QueueMessage) {
        // One of the same id on another node has nothing to do with this record.
        let open = self.trajectories.get_mut(id).filter(|open| open.node.as_ref() == Some(node));
        match open.and_then(|open| open.held.as_mut()) {
            Some(held) => held.push(message),
            None => self.send(node, message),
        }
    }

    /// Sends a message on the node's current link, if it has one.
    pub(super) fn send(&mut self, node: &NodeId, message: pb::QueueMessage) {
        let Some(link) = self.links.get(node) else { return };
        match link.outbox.write(message, false) {
            Written::First => self.touched_links.push(Arc::clone(&link.outbox)),
            Written::More => {}
            Written::Closed | Written::Overflow => {
                let epoch = link.epoch;
                self.link_down(node, epoch);
            }
        }
    }
}

fn node_away(node: &NodeId) -> Fault {
    infrastructure("NodeAway", format!("the link to node `{node}` was lost: try again"))
}

fn unnamed() -> Fault {
    infrastructure("AgentFault", "the agent reported a failure without a reason")
}
