//! A worker that somebody wishes, checked.

use rollwright_core::fault::Fault;
use rollwright_core::router::{Role, WorkerSpec};

use crate::api::types::{WishedWorker, WorkerRole};
use crate::config::{GatewayConfig, Secret, WorkerConfig};
use crate::engine::control::Control;

/// A worker that can be.
#[derive(Clone)]
pub(crate) struct Wish {
    pub(super) config: WorkerConfig,
    pub(super) control: Control,
    pub(super) drain: bool,
}

impl Wish {
    /// From the words of `/rollout/v1/workers`.
    pub(super) fn new(worker: &WishedWorker, config: &GatewayConfig) -> Result<Self, Fault> {
        let spec = WorkerSpec {
            class: worker.class.clone(),
            role: worker.role.into(),
            slots: worker.slots,
            version: None,
        };
        let own = WorkerConfig {
            worker: worker.name.clone(),
            url: worker.url.clone(),
            spec,
            bootstrap_port: worker.bootstrap_port,
        };
        Self::of(own, worker.drain, config)
    }

    /// A fault says what of the worker cannot be.
    pub(super) fn of(
        worker: WorkerConfig,
        drain: bool,
        config: &GatewayConfig,
    ) -> Result<Self, Fault> {
        config.endpoint(&worker, 0)?;
        let key = config.engine_key.as_ref().map(Secret::expose);
        let control = Control::new(&worker.url, config.dialect.clone(), key, config.control)?;
        Ok(Self { config: worker, control, drain })
    }
}

impl From<WorkerRole> for Role {
    fn from(role: WorkerRole) -> Self {
        match role {
            WorkerRole::Mixed => Self::Mixed,
            WorkerRole::Prefill => Self::Prefill,
            WorkerRole::Decode => Self::Decode,
        }
    }
}
