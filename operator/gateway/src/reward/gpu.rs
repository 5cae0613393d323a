//! A reward model on GPUs, by its address. Restoring it to a chunk before a call and
//! evicting it afterwards is the action queue's part; as long as the queue schedules no
//! GPUs, the service must be running at this address.

use std::time::Duration;

use rollwright_core::fault::Fault;

use super::judge::Judge;
use super::subject::Subject;
use crate::outbound::Proxy;

/// Posts the [`Subject`] and reads `{"reward": NUMBER}`, as
/// [`super::ServerlessScorer`] does, without a secret and without a proxy: it is a service
/// of this cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GpuScorer {
    judge: Judge,
}

impl GpuScorer {
    /// A service at `url`; `timeout` is for one call as a whole.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, Fault> {
        Ok(Self { judge: Judge::new(url, timeout, Proxy::Never)? })
    }

    /// The reward, or a fault of infrastructure.
    pub async fn score(&self, subject: &Subject) -> Result<f64, Fault> {
        self.judge.ask(subject, None).await
    }
}
