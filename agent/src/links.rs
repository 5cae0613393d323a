//! Which queue this node works for, where the controllers decide it: they write an
//! assignment for each node into a directory that is mounted here. The agent looks at its
//! own once a second.
//!
//! Where queue, pool or reservation of an assignment change, and where it is withdrawn, the
//! node's sandboxes end: they hold cores that are another's now. Their queue sees the link
//! go, and ends what ran in them with an `infrastructure` fault. A file says whose the
//! sandboxes are, so that this holds over a restart of the agent as well.

mod assignment;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use assignment::Record;
pub use assignment::{AssignedGpus, Assignment, AssignmentError};
use watch::Watch;

use crate::cgroup::{Hierarchy, pod_cgroup};
use crate::config::AgentConfig;
use crate::docker::Engine;
use crate::metrics::Metrics;
use crate::{AgentError, http, link, node};

/// Runs an agent for whichever queue `dir` assigns the node to, until `shutdown`. Of
/// `config` the pools, the cgroup parent (that of the reservation), what is kept back and what
/// engines may have come from the assignment.
pub async fn run(
    config: AgentConfig,
    dir: PathBuf,
    shutdown: CancellationToken,
) -> Result<(), AgentError> {
    config.validate().map_err(node::NodeError::from)?;
    let metrics = Arc::new(Metrics::new()?);
    let engine = Engine::connect(&config.docker_socket).await.map_err(node::NodeError::from)?;
    let serving = match config.http.clone() {
        Some(http) => {
            Some(http::serve(http, Arc::clone(&metrics), engine.clone(), shutdown.clone()).await?)
        }
        None => None,
    };
    let watch = Watch::new(dir, &config.node);
    let worked = Links { config, metrics, engine, watch, shutdown }.work().await;
    if let Some(serving) = serving {
        // A scraper that holds its connection open does not hold the agent up.
        serving.abort();
    }
    worked
}

struct Links {
    config: AgentConfig,
    metrics: Arc<Metrics>,
    engine: Engine,
    watch: Watch,
    shutdown: CancellationToken,
}

impl Links {
    async fn work(mut self) -> Result<(), AgentError> {
        let record = Record::below(&self.config.state_dir);
        // Whose sandboxes may be here.
        let mut holding = record.read()?;
        loop {
            let assigned = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Ok(()),
                assigned = self.watch.next(holding.as_ref()) => assigned,
            };
            if let Some(held) = holding.take_if(|held| !held.keeps(assigned.as_ref())) {
                tracing::info!(
                    queue = held.tls,
                    "the node is this queue's no more: its sandboxes end"
                );
                self.node(&held, None).await?.clear().await;
                self.metrics.node_ended();
                record.remove()?;
            }
            let Some(assigned) = assigned else { continue };
            record.write(&assigned)?;
            if self.serve(&assigned).await? {
                return Ok(());
            }
            holding = Some(assigned);
        }
    }

    /// Works for a queue until the assignment is another one; true when it is to work no
    /// more at all.
    async fn serve(&mut self, assigned: &Assignment) -> Result<bool, AgentError> {
        let parent = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return Ok(true),
            () = self.watch.until_not(assigned) => return Ok(false),
            parent = cgroup_parent(&self.config, &self.engine, assigned) => parent?,
        };
        let endpoint = assigned.endpoint(self.watch.dir());
        let node = self.node(assigned, parent).await?;
        tracing::info!(queue = assigned.queue, pool = assigned.pool, "works for this queue");
        let metrics = Arc::clone(&self.metrics);
        let linked = link::run(endpoint, node.clone(), metrics, self.shutdown.clone());
        let withdrawn = async {
            self.watch.until_not(assigned).await;
            // What is another's from now on goes with its engines.
            node.leave(true).await;
        };
        let ended = tokio::select! {
            () = linked => true,
            () = withdrawn => false,
        };
        self.metrics.link_up.set(0);
        node.stop().await;
        self.metrics.node_ended();
        Ok(ended)
    }

    async fn node(
        &self,
        assigned: &Assignment,
        cgroup_parent: Option<String>,
    ) -> Result<node::NodeHandle, AgentError> {
        let gpu = assigned.gpu.as_ref();
        let (count, host) = gpu.map_or((0, 0), |gpu| (gpu.count, gpu.host_memory_bytes));
        let config = AgentConfig {
            gpus: self.config.gpus.clone().at_most(count, host),
            engine_memory: host,
            gpu_pool: gpu.map(|gpu| gpu.pool.clone()),
            pool: assigned.pool.clone(),
            cgroup_parent,
            reserved: assigned.reserved(),
            ..self.config.clone()
        };
        Ok(node::start(config, Arc::clone(&self.metrics)).await?)
    }
}

/// The cgroup of the reservation, as Docker is told of it. Waits until it is there: without it
/// sandboxes would run on cores that are not theirs.
async fn cgroup_parent(
    config: &AgentConfig,
    engine: &Engine,
    assigned: &Assignment,
) -> Result<Option<String>, AgentError> {
    let Some(uid) = &assigned.reservation else { return Ok(None) };
    let hierarchy = Hierarchy::detect(&config.cgroup_root).map_err(node::NodeError::from)?;
    let mut said = false;
    loop {
        if let Some(cgroup) = pod_cgroup(&hierarchy, uid) {
            let parent = engine.cgroup_parent(&cgroup).await.map_err(node::NodeError::from)?;
            return Ok(Some(parent));
        }
        if !said {
            said = true;
            tracing::warn!(uid, "the cgroup of the node's reservation is not there: it waits");
        }
        tokio::time::sleep(watch::EVERY).await;
    }
}
