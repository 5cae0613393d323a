//! Calls of reward services, with simulated agents that have GPUs.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod agent;
mod away;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod ids;
mod leaving;
mod look;
mod metrics;
mod restarts;
mod twins;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use common::Client;
use rollwright_core::gpu::{Degree, Footprint, Limits, Service};
use rollwright_proto::v1 as pb;
use rollwright_queue::fault::of_status;
use rollwright_queue::{GpuPool, GpuService, QueueConfig};

/// Bytes of an engine that is awake.
const DEVICE: u64 = 6;

fn config(dir: &Path, max_calls: usize) -> QueueConfig {
    let limits = Limits {
        launch: Duration::from_mins(1),
        wake: Duration::from_mins(1),
        evict: Duration::from_mins(1),
        stop: Duration::from_mins(1),
    };
    let footprint = Footprint { device: DEVICE, residue: 1, host: 1, expected: limits };
    let service = |name: &str| GpuService {
        core: Service {
            name: name.to_owned(),
            batch: 8,
            pinned: 0,
            degrees: BTreeMap::from([(Degree::new(1).unwrap(), footprint)]),
            limits,
            timeout: Duration::from_mins(5),
        },
        engine: pb::EngineSpec { image: "judge:1".to_owned(), ..pb::EngineSpec::default() },
        timeout: Duration::from_mins(5),
    };
    let services = vec![service("judge"), service("other")];
    let mut config = QueueConfig::new("test", dir.join("store"));
    config.gpu_pools = vec![GpuPool { name: "judges".to_owned(), services, max_calls }];
    config
}

fn request(id: &str, path: &str) -> pb::CallRequest {
    pb::CallRequest {
        action_id: id.to_owned(),
        service: "judge".to_owned(),
        path: path.to_owned(),
        body: "12345".into(),
        ..pb::CallRequest::default()
    }
}

async fn call(mut client: Client, request: pb::CallRequest) -> Result<pb::CallResponse, String> {
    let answer = client.call(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| {
        of_status(&status).map_or_else(|| "BrokenOff".to_owned(), |fault| fault.reason)
    })
}
