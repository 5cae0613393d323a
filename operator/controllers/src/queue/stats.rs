//! Asks a queue what it holds.

use std::time::Duration;

use rollwright_crds::pool::Resident;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_proto::v1::{GpuPoolStats, StatsRequest, StatsResponse};
use tonic::metadata::{AsciiMetadataValue, errors::InvalidMetadataValue};
use tonic::transport::Endpoint;

use crate::call::outside;
use crate::observed::{GpuPoolSnapshot, NodeSnapshot, QueueSnapshot, ServiceSnapshot};
use crate::token::TokenError;

/// How a queue calls an engine that is on its GPUs.
const RESIDENT: &str = "Resident";
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

fn snapshot(stats: StatsResponse) -> QueueSnapshot {
    let nodes = stats.nodes.into_iter().map(|node| NodeSnapshot {
        node: node.node,
        connected: node.connected,
        has_cores: node.cores > 0,
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
        gpu_pools: stats.gpu_pools.into_iter().map(gpu_pool).collect(),
    }
}

fn gpu_pool(stats: GpuPoolStats) -> GpuPoolSnapshot {
    let engines = stats.engines.into_iter();
    let residents = engines.filter(|engine| engine.residency == RESIDENT).map(|engine| Resident {
        service: engine.service,
        node: engine.node,
        first_gpu: engine.first_gpu,
        degree: engine.degree,
    });
    let mut residents: Vec<Resident> = residents.collect();
    residents
        .sort_by(|a, b| (&a.node, a.first_gpu, a.degree).cmp(&(&b.node, b.first_gpu, b.degree)));
    let services = stats.services.into_iter().map(|of| {
        let service = ServiceSnapshot {
            waiting: count(of.waiting),
            running: count(of.running),
            residents: of.residents,
            restores: of.restores,
            trouble: of.trouble,
        };
        (of.service, service)
    });
    let mut free_chunks = [0; 4];
    for (free, told) in free_chunks.iter_mut().zip(stats.free_chunks) {
        *free = told;
    }
    GpuPoolSnapshot {
        pool: stats.pool,
        nodes: stats.nodes,
        gpus: stats.gpus,
        lost: stats.lost_gpus,
        free_chunks,
        // Of 0 to 1; what is no number is nothing.
        fragmentation: (stats.fragmentation.clamp(0.0, 1.0) * 1000.0).round() as u32,
        residents,
        services: services.collect(),
    }
}

fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
