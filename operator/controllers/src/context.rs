//! What every reconciliation has at hand.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::sync::{Notify, watch};

use crate::apply::Memory;
use crate::backoff::Backoffs;
use crate::call::Calls;
use crate::events::Events;
use crate::identity::Issuer;
use crate::metrics::Metrics;
use crate::observed::Observed;
use crate::settings::Settings;
use crate::stores::Stores;
use crate::token::Tokens;

/// What every reconciliation has at hand. Shared, and the same for all controllers.
pub struct Context {
    /// The API server; requests go through [`Context::calls`].
    pub client: Client,
    /// What the built objects depend on.
    pub settings: Settings,
    /// The caches.
    pub stores: Stores,
    /// Every request to the API server.
    pub calls: Calls,
    /// Events on custom resources.
    pub events: Events,
    /// What was applied.
    pub memory: Arc<Memory>,
    /// Failures in a row of each object.
    pub backoffs: Arc<Backoffs>,
    /// What is remembered of jobs.
    pub jobs: Arc<crate::job::Remembered>,
    /// queues --a certificate of agents was written--> the links of agents.
    pub agents_changed: Arc<Notify>,
    /// What queues and kubelets said last.
    pub observed: Arc<Observed>,
    /// What the controllers count.
    pub metrics: Arc<Metrics>,
    /// identity task --keys and issuer of the API server--> reconciliations; none until known.
    pub issuer_rx: watch::Receiver<Option<Arc<Issuer>>>,
    /// Our own tokens for queues and gateways.
    pub tokens: Arc<Tokens>,
    /// Whether kubelets may be asked for their configuration.
    pub read_kubelet: bool,
}

impl Context {
    /// Keys and issuer of the API server, if they are known.
    pub fn issuer(&self) -> Option<Arc<Issuer>> {
        self.issuer_rx.borrow().clone()
    }

    /// The time, for conditions and certificates.
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
