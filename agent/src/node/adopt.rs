//! After a restart: sandboxes and actions of the last process are taken over,
//! and what is no use any more goes.

use std::time::Instant;

use rollwright_core::fault::Fault;
use rollwright_proto::v1::{LiveAction, ResetTimes, SandboxFailed};

use super::actor::{Action, Actor, Entry};
use crate::docker::{Found, labels};
use crate::fault;
use crate::reset::Leaving;
use crate::sandbox::Sandbox;

impl Actor {
    /// Runs before anything else.
    pub(super) async fn adopt(&mut self) -> Result<(), Fault> {
        let found = self.ground.engine.sandboxes(&self.ground.owner).await?;
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        for open in self.ground.places.collect(&names) {
            let fault =
                fault::infrastructure("SandboxLost", "the sandbox was removed while no agent ran");
            self.tell_later(open.trajectory_id, &fault);
        }
        for container in &found {
            self.adopt_one(container).await;
        }
        self.ground.networks.collect().await
    }

    async fn adopt_one(&mut self, container: &Found) {
        // One without a record was in reset or warm: nobody waits for it.
        let record = self.ground.places.recorded(&container.name);
        let Some(mut open) = record.filter(|open| !open.trajectory_id.is_empty()) else {
            self.remove_in_background(Leaving::named(&container.name));
            return;
        };
        if open.spec.is_none() {
            open.spec = labels::spec_of(&container.labels);
        }
        match self.ground.adopt(&container.name, &open).await {
            Ok((sandbox, live)) => {
                tracing::info!(
                    trajectory = open.trajectory_id,
                    actions = live.len(),
                    "took over a sandbox"
                );
                self.take_over(&open.trajectory_id, sandbox, live);
            }
            Err(fault) => {
                tracing::warn!(trajectory = open.trajectory_id, %fault, "a sandbox is lost");
                self.remove_in_background(Leaving::named(&container.name));
                self.tell_later(open.trajectory_id, &fault);
            }
        }
    }

    fn tell_later(&mut self, trajectory_id: String, fault: &Fault) {
        self.untold.push(SandboxFailed { trajectory_id, fault: Some(fault::to_proto(fault)) });
    }

    fn take_over(&mut self, trajectory: &str, sandbox: Sandbox, live: Vec<LiveAction>) {
        let name = std::sync::Arc::clone(&sandbox.name);
        self.hold(trajectory, sandbox, ResetTimes::default(), false);
        if let Some(Entry::Ready(ready)) = self.sandboxes.get_mut(trajectory) {
            ready.running = live.len();
        }
        for mut live in live {
            self.ground.metrics.actions_running.inc();
            // Its end, where it has ended, is reported by the helper once more.
            live.ended = false;
            let action = Action {
                sandbox: std::sync::Arc::clone(&name),
                ordered: Instant::now(),
                started: false,
                outputs: Vec::new(),
                end: None,
                live,
            };
            self.actions.insert(action.live.action_id.clone(), action);
        }
    }
}
