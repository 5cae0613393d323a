//! Opening and closing of sandboxes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollwright_core::fault::Fault;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::{
    OpenSandbox, ResetTimes, SandboxClosed, SandboxFailed, SandboxReady, SandboxSpec, WarmSandboxes,
};

use super::actor::{Actor, Entry, Event, Ready};
use crate::fault;
use crate::reset::warm::{MAX_POOLS, Taken};
use crate::reset::{Leaving, Made};
use crate::sandbox::Sandbox;

/// Most failures kept for the next stream.
const MAX_UNTOLD: usize = 4096;

impl Actor {
    pub(super) async fn open(&mut self, open: OpenSandbox) {
        let trajectory = open.trajectory_id.clone();
        match self.sandboxes.get(&trajectory) {
            Some(Entry::Ready(ready)) => {
                let (times, warm) = (ready.times, ready.warm);
                return self.say_ready(trajectory, times, warm).await;
            }
            // Its end will be told.
            Some(Entry::Opening { .. }) => return,
            Some(Entry::Closing) => {
                let fault = fault::infrastructure(
                    "SandboxClosing",
                    "the trajectory's last sandbox is still being removed: try again",
                );
                return self.say_failed(trajectory, &fault).await;
            }
            None => {}
        }
        let spec = open.spec.unwrap_or_default();
        if let Err(fault) = self.ground.config.policy.check(&spec) {
            self.ground.metrics.reset_failed(&fault);
            return self.say_failed(trajectory, &fault).await;
        }
        match self.warm.take(&spec) {
            Taken::Hit(made) => {
                self.ground.metrics.warm_hits.inc();
                self.settle(trajectory, spec, *made, true).await;
                self.refill();
                return;
            }
            Taken::Miss => self.ground.metrics.warm_misses.inc(),
            Taken::NotKept => {}
        }
        let cancel = self.stopping.child_token();
        self.sandboxes.insert(trajectory.clone(), Entry::Opening { cancel: cancel.clone() });
        self.count();
        let (ground, events_tx) = (Arc::clone(&self.ground), self.events_tx.clone());
        self.ground.tracker.spawn(async move {
            let made = ground.make(Some(&trajectory), &spec, &cancel).await.map(Box::new);
            // The node's end removes what it does not take.
            let _ = events_tx.send(Event::Opened { trajectory, made }).await;
        });
    }

    pub(super) async fn opened(&mut self, trajectory: String, made: Result<Box<Made>, Fault>) {
        let closed = match self.sandboxes.remove(&trajectory) {
            Some(Entry::Opening { cancel }) => cancel.is_cancelled(),
            _ => true,
        };
        match made {
            Ok(made) if closed => {
                self.sandboxes.insert(trajectory.clone(), Entry::Closing);
                self.remove_and_tell(made.sandbox, trajectory);
            }
            Ok(made) => {
                let spec = made.sandbox.spec.clone();
                self.settle(trajectory, spec, *made, false).await;
            }
            Err(_) if closed => self.removed(trajectory).await,
            Err(fault) => self.say_failed(trajectory, &fault).await,
        }
        self.count();
    }

    /// Gives a sandbox to its trajectory, for good: on disk first.
    async fn settle(&mut self, trajectory: String, spec: SandboxSpec, made: Made, warm: bool) {
        let Made { mut sandbox, times } = made;
        // A warm one took no time of this trajectory's.
        let times = if warm { ResetTimes::default() } else { times };
        let open = OpenSandbox { trajectory_id: trajectory.clone(), spec: Some(spec.clone()) };
        if let Err(fault) = self.ground.places.record(&sandbox.name, &open) {
            self.remove_in_background(sandbox);
            return self.say_failed(trajectory, &fault).await;
        }
        sandbox.spec = spec;
        self.hold(&trajectory, sandbox, times, warm);
        self.say_ready(trajectory, times, warm).await;
    }

    /// Puts a sandbox that is up among those of the node.
    pub(super) fn hold(
        &mut self,
        trajectory: &str,
        sandbox: Sandbox,
        times: ResetTimes,
        warm: bool,
    ) {
        self.trajectories.insert(Arc::clone(&sandbox.name), trajectory.to_owned());
        let last_active = Instant::now();
        let ready = Ready { sandbox, warm, times, running: 0, last_active, idle_at: None };
        self.sandboxes.insert(trajectory.to_owned(), Entry::Ready(Box::new(ready)));
        self.touch(trajectory);
        self.count();
    }

    /// The sandbox was used just now: its idle time starts anew. The order of
    /// idle sandboxes is only brought up to date when its old time has come.
    pub(super) fn touch(&mut self, trajectory: &str) {
        let Some(Entry::Ready(ready)) = self.sandboxes.get_mut(trajectory) else { return };
        ready.last_active = Instant::now();
        if ready.idle_at.is_none()
            && let Some(at) = idle_ttl(ready).and_then(|ttl| ready.last_active.checked_add(ttl))
        {
            ready.idle_at = Some(at);
            self.idle.insert((at, trajectory.to_owned()));
        }
    }

    pub(super) async fn close_idle(&mut self) {
        let now = Instant::now();
        while let Some((at, trajectory)) = self.idle.first().cloned() {
            if at > now {
                return;
            }
            self.idle.pop_first();
            let Some(Entry::Ready(ready)) = self.sandboxes.get_mut(&trajectory) else { continue };
            ready.idle_at = None;
            let Some(ttl) = idle_ttl(ready) else { continue };
            let used = if ready.running > 0 { now } else { ready.last_active };
            let over = used + ttl;
            if over > now {
                ready.idle_at = Some(over);
                self.idle.insert((over, trajectory));
                continue;
            }
            let fault = fault::timeout(
                "SandboxIdle",
                format!("nothing ran in the sandbox for {ttl:?}: raise idleTtl, or open a new one"),
            );
            self.lose(&trajectory, &fault).await;
        }
    }

    pub(super) async fn close(&mut self, trajectory: &str) {
        match self.sandboxes.get(trajectory) {
            Some(Entry::Opening { cancel }) => cancel.cancel(),
            Some(Entry::Closing) => {}
            Some(Entry::Ready(_)) => {
                let fault = fault::cancelled("its sandbox was closed");
                if let Some(sandbox) = self.take_out(trajectory, &fault).await {
                    self.sandboxes.insert(trajectory.to_owned(), Entry::Closing);
                    self.remove_and_tell(sandbox, trajectory.to_owned());
                }
            }
            None => self.removed(trajectory.to_owned()).await,
        }
    }

    /// A sandbox is gone, or must go: all that ran in it ends in this fault.
    pub(super) async fn lose(&mut self, trajectory: &str, fault: &Fault) {
        if let Some(sandbox) = self.take_out(trajectory, fault).await {
            tracing::warn!(trajectory, sandbox = %sandbox.name, %fault, "a sandbox is lost");
            self.remove_in_background(sandbox);
            self.say_failed(trajectory.to_owned(), fault).await;
        }
    }

    /// Takes a sandbox that is up out of the state, its actions ended.
    pub(super) async fn take_out(&mut self, trajectory: &str, fault: &Fault) -> Option<Sandbox> {
        if !matches!(self.sandboxes.get(trajectory), Some(Entry::Ready(_))) {
            return None;
        }
        let Some(Entry::Ready(ready)) = self.sandboxes.remove(trajectory) else { return None };
        if let Some(at) = ready.idle_at {
            self.idle.remove(&(at, trajectory.to_owned()));
        }
        self.trajectories.remove(&ready.sandbox.name);
        self.end_all(&ready.sandbox.name, fault).await;
        self.count();
        Some(ready.sandbox)
    }

    pub(super) fn remove_in_background(&self, leaving: impl Into<Leaving>) {
        let (ground, leaving) = (Arc::clone(&self.ground), leaving.into());
        self.ground.tracker.spawn(async move { ground.remove(leaving).await });
    }

    fn remove_and_tell(&self, sandbox: Sandbox, trajectory: String) {
        let (ground, events_tx) = (Arc::clone(&self.ground), self.events_tx.clone());
        self.ground.tracker.spawn(async move {
            if ground.remove(sandbox.into()).await {
                // A node that has ended tells nobody.
                let _ = events_tx.send(Event::Removed { trajectory }).await;
            }
        });
    }

    pub(super) async fn removed(&mut self, trajectory: String) {
        if matches!(self.sandboxes.get(&trajectory), Some(Entry::Closing)) {
            self.sandboxes.remove(&trajectory);
        }
        self.count();
        self.emit(FromAgent::SandboxClosed(SandboxClosed { trajectory_id: trajectory })).await;
    }

    async fn say_ready(&mut self, trajectory_id: String, times: ResetTimes, warm: bool) {
        let ready = SandboxReady { trajectory_id, times: Some(times), warm };
        self.emit(FromAgent::SandboxReady(ready)).await;
    }

    pub(super) async fn say_failed(&mut self, trajectory_id: String, fault: &Fault) {
        let failed = SandboxFailed { trajectory_id, fault: Some(fault::to_proto(fault)) };
        if self.outbox().is_none() {
            if self.untold.len() < MAX_UNTOLD {
                self.untold.push(failed);
            }
            return;
        }
        self.emit(FromAgent::SandboxFailed(failed)).await;
    }

    pub(super) fn keep_warm(&mut self, warm: WarmSandboxes) {
        let spec = warm.spec.unwrap_or_default();
        if let Err(fault) = self.ground.config.policy.check(&spec) {
            tracing::warn!(template = spec.template, %fault, "no warm sandboxes of this template");
            return;
        }
        let (surplus, taken) = self.warm.set_target(&spec, warm.count as usize);
        if !taken {
            tracing::warn!(template = spec.template, "more than {MAX_POOLS} warm templates");
        }
        for made in surplus {
            self.remove_in_background(made.sandbox);
        }
        self.refill();
    }

    pub(super) fn refill(&mut self) {
        for spec in self.warm.wanted(Instant::now()) {
            let (ground, events_tx) = (Arc::clone(&self.ground), self.events_tx.clone());
            let cancel = self.stopping.child_token();
            self.ground.tracker.spawn(async move {
                let made = ground.make(None, &spec, &cancel).await.map(Box::new);
                // The node's end removes what it does not take.
                let _ = events_tx.send(Event::Warmed { spec: Box::new(spec), made }).await;
            });
        }
        self.count();
    }

    pub(super) fn warmed(&mut self, spec: &SandboxSpec, made: Result<Box<Made>, Fault>) {
        let made = made.inspect_err(|fault| {
            tracing::warn!(template = spec.template, %fault, "cannot make a warm sandbox");
        });
        if let Some(surplus) = self.warm.made(spec, made.ok(), Instant::now()) {
            self.remove_in_background(surplus.sandbox);
        }
        self.refill();
    }

    fn count(&self) {
        let states = |wanted: fn(&Entry) -> bool| {
            i64::try_from(self.sandboxes.values().filter(|entry| wanted(entry)).count())
        };
        let gauge = |state: &str, count: Result<i64, _>| {
            let count: Result<i64, std::num::TryFromIntError> = count;
            self.ground
                .metrics
                .sandboxes
                .with_label_values(&[state])
                .set(count.unwrap_or(i64::MAX));
        };
        gauge("resetting", states(|entry| matches!(entry, Entry::Opening { .. })));
        gauge("ready", states(|entry| matches!(entry, Entry::Ready(_))));
        gauge("warm", i64::try_from(self.warm.ready().count()));
    }
}

fn idle_ttl(ready: &Ready) -> Option<Duration> {
    let ttl: Option<Duration> = ready.sandbox.spec.idle_ttl.and_then(|ttl| ttl.try_into().ok());
    ttl.filter(|ttl| !ttl.is_zero())
}
