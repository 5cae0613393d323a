//! Asks a queue what it holds.

use std::time::Duration;

use rollwright_proto::v1::StatsRequest;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use tonic::metadata::{AsciiMetadataValue, errors::InvalidMetadataValue};
use tonic::transport::Endpoint;

use crate::call::outside;
use crate::observed::{NodeSnapshot, QueueSnapshot};
use crate::token::TokenError;

/// Longest wait for its answer.
const LONGEST: Duration = Duration::from_secs(5);

/// A queue does not say what it holds.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatsError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("the token is not text: {0}")]
    NotText(#[from] InvalidMetadataValue),
    #[error("cannot reach it: {0}")]
    Unreachable(#[from] tonic::transport::Error),
    #[error("it answered: {0}")]
    Refused(Box<tonic::Status>),
}

/// What the queue at `host:port` holds; `token` is for this queue alone.
pub(super) async fn ask(endpoint: &str, token: &str) -> Result<QueueSnapshot, StatsError> {
    outside(async {
        let token: AsciiMetadataValue = format!("Bearer {token}").parse()?;
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
        let endpoint = endpoint.connect_timeout(LONGEST).timeout(LONGEST);
        let mut client = ActionServiceClient::new(endpoint.connect().await?);
        let mut request = tonic::Request::new(StatsRequest {});
        request.metadata_mut().insert("authorization", token);
        let answer =
            client.stats(request).await.map_err(|status| StatsError::Refused(Box::new(status)))?;
        Ok(snapshot(answer.into_inner()))
    })
    .await
}

fn snapshot(stats: rollwright_proto::v1::StatsResponse) -> QueueSnapshot {
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let nodes = stats.nodes.into_iter().map(|node| NodeSnapshot {
        node: node.node,
        connected: node.connected,
        cores: node.exclusive_cores.saturating_add(node.shared_cores),
        memory: node.memory_reserved_bytes,
    });
    let quotas = stats.quotas.into_iter();
    QueueSnapshot {
        waiting: count(stats.waiting),
        running: count(stats.running),
        trajectories: count(stats.trajectories),
        nodes: nodes.collect(),
        quotas: quotas.map(|quota| (quota.name, quota.running, quota.waiting)).collect(),
        gpu_pools: Vec::new(),
    }
}
