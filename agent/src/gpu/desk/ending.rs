//! The end of a desk, and of engines with it.

use rollwright_core::gpu::EngineId;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::gpu::backend::Backend;

/// How the desk is to end.
pub(super) struct Ending {
    pub(super) engines: Vec<EngineId>,
    /// Engines end as well.
    pub(super) clear: bool,
    pub(super) done: oneshot::Sender<()>,
}

impl Ending {
    /// Waits for the driver, which gets no more instructions: until it has dropped what it
    /// does, an engine could still be started. Then ends what is to be ended.
    pub(super) async fn carry_out(self, backend: &dyn Backend, driver: JoinHandle<()>) {
        if let Err(error) = driver.await {
            tracing::error!(%error, "the driver of engines failed");
        }
        if self.clear {
            let stops = self.engines.iter().map(|engine| backend.stop(*engine));
            for stopped in futures::future::join_all(stops).await {
                if let Err(trouble) = stopped {
                    tracing::warn!(%trouble, "an engine could not be ended");
                }
            }
        }
        // Whoever asked may have gone.
        let _ = self.done.send(());
    }
}
