//! The node's word that it is about to end. Sandboxes and engines outlive the agent, but the
//! calls of reward services that it makes do not: they end first.

use rollwright_proto::v1::Leaving;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use tokio::sync::oneshot;

use super::actor::Actor;

impl Actor {
    /// Tells the queue. Without GPUs or a stream there is nothing to wait for.
    pub(super) async fn leave(&mut self, clear: bool, done_tx: oneshot::Sender<()>) {
        if self.desk.is_none() {
            return;
        }
        let with_engines = clear || self.ground.config.remove_on_exit;
        self.emit(FromAgent::Leaving(Leaving { with_engines })).await;
        self.leaving = self.outbox().is_some().then_some(done_tx);
    }
}
