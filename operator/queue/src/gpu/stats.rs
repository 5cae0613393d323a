//! What a caller may know of the pools.

use rollwright_auth::Caller;
use rollwright_core::gpu::{Degree, EngineView, Residency, ServiceIndex};
use rollwright_core::ids::JobId;
use rollwright_proto::v1 as pb;

use super::actor::Gpu;
use super::pool::Pool;

impl Gpu {
    /// Everything, for ourselves and for those who may operate the queue; for others their
    /// own services.
    pub(super) fn stats(&self, caller: Option<&Caller>) -> Vec<pb::GpuPoolStats> {
        let all = caller.is_none_or(Caller::may_operate);
        let visible = |pool: &Pool, service: ServiceIndex| {
            // A service is in a namespace as a job is.
            let id = JobId::new(pool.label(service));
            all || id.is_ok_and(|id| caller.is_some_and(|caller| caller.may_use(&id)))
        };
        let pools = self.pools.iter().map(|pool| {
            let services = (0..pool.services.len()).map(ServiceIndex);
            let services: Vec<pb::RewardServiceStats> = services
                .filter(|service| visible(pool, *service))
                .map(|service| service_stats(pool, service))
                .collect();
            let engines = pool.core.engines().filter(|view| visible(pool, view.kind.service));
            let engines = engines.map(|view| pb::EngineStats {
                engine: view.engine.0,
                service: pool.label(view.kind.service).to_owned(),
                node: view.node.to_string(),
                first_gpu: view.chunk.start(),
                degree: view.kind.degree.gpus(),
                residency: residency(pool, &view).to_owned(),
                running: view.running as u32,
            });
            let mut stats = pb::GpuPoolStats {
                pool: pool.name.clone(),
                engines: engines.collect(),
                services,
                ..pb::GpuPoolStats::default()
            };
            if all {
                let linked = pool.nodes.values().filter(|node| node.linked);
                stats.nodes = linked.clone().count() as u32;
                stats.gpus = linked.clone().map(|node| node.gpus).sum();
                stats.lost_gpus = linked.clone().map(|node| node.lost.len() as u32).sum();
                stats.fake = linked.clone().any(|node| node.fake);
                let free = pool.core.free().counts();
                stats.free_chunks = Degree::ALL.iter().map(|d| free[d.level()]).collect();
                stats.fragmentation = pool.core.fragmentation();
            }
            stats
        });
        let some = |stats: &pb::GpuPoolStats| all || !stats.services.is_empty();
        pools.filter(some).collect()
    }
}

fn service_stats(pool: &Pool, service: ServiceIndex) -> pb::RewardServiceStats {
    let tally = pool.tallies[service.0];
    let trouble = pool.core.trouble(service);
    pb::RewardServiceStats {
        service: pool.label(service).to_owned(),
        waiting: pool.core.waiting(service) as u64,
        running: tally.running,
        residents: pool.residents(service) as u32,
        restores: tally.restores,
        evictions: tally.evictions,
        calls: tally.calls,
        hits: tally.hits,
        failures: pool.core.failures(service),
        trouble: trouble
            .map(|fault| format!("{}: {}", fault.reason, fault.message))
            .unwrap_or_default(),
    }
}

/// Where an engine is, as far as that is known.
fn residency(pool: &Pool, view: &EngineView) -> &'static str {
    if !pool.is_linked(&view.node) {
        return "Unknown";
    }
    match view.residency {
        Residency::Absent => "Absent",
        Residency::Restoring => "Restoring",
        Residency::Resident => "Resident",
        Residency::Evicting => "Evicting",
        Residency::Failed => "Failed",
    }
}
