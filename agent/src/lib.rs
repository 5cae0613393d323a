//! The node agent: Docker sandboxes, cgroups, actions.
//!
//! [`run`] is the whole agent for one queue, [`links::run`] for whichever queue the
//! controllers assign. Its parts: [`node`] owns the sandboxes and
//! actions and speaks the queue's messages; [`link`] carries these; [`reset`]
//! makes sandboxes; [`runner`] runs actions in them through [`session`] and
//! [`cgroup`], or through Docker.

pub mod cgroup;
pub mod cli;
pub mod config;
pub mod docker;
pub mod fault;
pub mod gpu;
pub mod http;
pub mod images;
pub mod link;
pub mod links;
pub mod metrics;
pub mod network;
pub mod node;
pub mod policy;
pub mod reset;
pub mod runner;
pub mod sandbox;
pub mod session;
pub mod topology;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use config::AgentConfig;
pub use link::Endpoint;

/// Why an agent ended otherwise than it was told to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The node cannot start.
    #[error(transparent)]
    Node(#[from] node::NodeError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Http(#[from] http::HttpError),
    /// The node's assignment cannot be kept.
    #[error(transparent)]
    Assignment(#[from] links::AssignmentError),
    /// Metrics cannot be made.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Runs an agent until `shutdown`; then its sandboxes stay or go as configured.
pub async fn run(
    config: AgentConfig,
    endpoint: Endpoint,
    shutdown: CancellationToken,
) -> Result<(), AgentError> {
    let metrics = Arc::new(metrics::Metrics::new()?);
    let http = config.http.clone();
    let node = node::start(config, Arc::clone(&metrics)).await?;
    let serving = match http {
        Some(http) => {
            let engine = node.engine().clone();
            Some(http::serve(http, Arc::clone(&metrics), engine, shutdown.clone()).await?)
        }
        None => None,
    };
    link::run(endpoint, node.clone(), metrics, shutdown).await;
    node.stop().await;
    if let Some(serving) = serving {
        // A scraper that holds its connection open does not hold the agent up.
        serving.abort();
    }
    Ok(())
}
