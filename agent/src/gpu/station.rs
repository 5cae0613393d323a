//! The GPUs of a node and what drives the engines on them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::backend::{Backend, Device};
use super::driver;
use super::spec::{Found, Incident, Inventory};

/// How long one engine may take to show its state.
const SHOWS_IN: Duration = Duration::from_secs(10);

/// What the agent's node is given.
pub struct Station {
    /// Moves engines.
    pub backend: Arc<dyn Backend>,
    /// Says what they hold.
    pub device: Arc<dyn Device>,
    /// What there is for them.
    pub inventory: Inventory,
    /// What happens without an order.
    pub incidents: mpsc::Receiver<Incident>,
    /// What looks after engines; it ends with the station.
    pub care: JoinSet<()>,
}

impl std::fmt::Debug for Station {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Station").field("inventory", &self.inventory).finish_non_exhaustive()
    }
}

impl Station {
    /// Engines that live from an earlier process of the agent, each with a proof where it can
    /// be had in time. One that sleeps proves it without a request.
    pub async fn found(&self) -> Vec<Found> {
        let found = self.backend.found().await;
        let proven = found.into_iter().map(|found| async move {
            let proof = driver::prove(&*self.backend, &*self.device, found.engine);
            let proof = tokio::time::timeout(SHOWS_IN, proof).await;
            Found { proof: proof.ok().and_then(Result::ok), ..found }
        });
        futures::future::join_all(proven).await
    }
}
