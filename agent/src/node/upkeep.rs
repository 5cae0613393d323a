//! Docker's events.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::models::EventMessage;
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::actor::{Actor, Event};
use crate::docker::labels::Owner;
use crate::docker::{Engine, Found};
use crate::fault;
use crate::reset::Leaving;

/// Pause between two looks for an engine that went away.
const ENGINE_PAUSE: Duration = Duration::from_secs(1);
/// Time between two looks at everything that is there.
const LIST_EVERY: Duration = Duration::from_mins(1);

/// Follows the engine's events for as long as the node works. An engine that
/// went away is waited for, and what it no longer runs is then found out.
pub(super) async fn watch(engine: Engine, owner: Owner, events_tx: mpsc::Sender<Event>) {
    loop {
        // The stream stands only some time after the list: it begins before it.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut deaths = engine.deaths(&owner, since).boxed();
        let mut looks = tokio::time::interval(LIST_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                death = deaths.next() => match death {
                    Some(Ok(death)) => name_of(death).map(|name| Event::Died { name }),
                    Some(Err(_)) | None => break,
                },
                _ = looks.tick() => {
                    let found = engine.sandboxes(&owner).await;
                    found.ok().map(|found| Event::Listed { found })
                }
            };
            if let Some(event) = event
                && events_tx.send(event).await.is_err()
            {
                return;
            }
        }
        tokio::time::sleep(ENGINE_PAUSE).await;
    }
}

fn name_of(death: EventMessage) -> Option<String> {
    death.actor?.attributes?.remove("name")
}

impl Actor {
    pub(super) async fn died(&mut self, name: &str) {
        if let Some(trajectory) = self.trajectories.get(name).cloned() {
            let fault = fault::infrastructure(
                "SandboxLost",
                "Docker says that the sandbox's container ended under its actions",
            );
            self.lose(&trajectory, &fault).await;
        } else if let Some(made) = self.warm.remove(|made| *made.sandbox.name == *name) {
            self.remove_in_background(made.sandbox);
            self.refill();
        }
    }

    /// What is not in the list does not run, and what is nobody's goes.
    pub(super) fn listed(&mut self, found: &[Found]) {
        for left in found.iter().filter(|found| !self.ground.names.contains(&found.name)) {
            tracing::warn!(sandbox = left.name, "removing a sandbox that nobody holds");
            self.remove_in_background(Leaving::named(&left.name));
        }
        let running: HashSet<&str> =
            found.iter().filter(|found| found.running).map(|found| found.name.as_str()).collect();
        let up = self.trajectories.keys().map(Arc::clone);
        let warm = self.warm.ready().map(|made| Arc::clone(&made.sandbox.name));
        let gone: Vec<Arc<str>> =
            up.chain(warm).filter(|name| !running.contains(name.as_ref())).collect();
        if gone.is_empty() {
            return;
        }
        let (engine, events_tx) = (self.ground.engine.clone(), self.events_tx.clone());
        tokio::spawn(async move {
            for name in gone {
                // The list may be older than the sandbox. A node that has ended asks nothing.
                if matches!(engine.running(&name).await, Ok(None)) {
                    let _ = events_tx.send(Event::Died { name: name.to_string() }).await;
                }
            }
        });
    }
}
