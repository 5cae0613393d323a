//! Step five: what the pool has and who holds it. Pure.

use rollwright_crds::ByteSize;
use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::pool::{FreeChunks, PoolAmounts, PoolOwner, QuotaUse, ResourcePoolStatus};
use rollwright_crds::{ResourcePool, ResourcePoolSpec};

use super::build::Reservations;
use super::chunks::{self, SIZES};
use super::claims::QUEUE;
use super::dedication;
use super::fetch::{NodeUse, Seen};
use super::validate::{Invalid, Sort, Validated};
use crate::conditions::Wish;
use crate::observed::GpuPoolSnapshot;

/// Names listed in a message, at most.
const LISTED: usize = 5;

/// Everything but the conditions.
pub(super) fn figures(
    pool: &ResourcePool,
    validated: &Validated<'_>,
    seen: &Seen,
    reservations: &Reservations,
) -> ResourcePoolStatus {
    let mut status = ResourcePoolStatus {
        observed_generation: pool.metadata.generation,
        bound_to: seen.ownership.owner.clone(),
        nodes: count(seen.nodes.len()),
        ..ResourcePoolStatus::default()
    };
    match validated.sort {
        Sort::Cpu(_) => cpu(&mut status, seen, reservations),
        Sort::Gpu(gpu) if is_queues(seen) => {
            status.capacity.gpus =
                seen.nodes.iter().map(|node| node.size.gpus.min(gpu.gpus_per_node)).sum();
            if let Some(snapshot) = of_gpus(validated, seen) {
                shared(&mut status, snapshot);
            }
        }
        Sort::Gpu(gpu) => counted(&mut status, &seen.nodes, gpu.gpus_per_node),
        Sort::Quota => status.quotas = quotas(&pool.spec, seen),
    }
    status
}

fn cpu(status: &mut ResourcePoolStatus, seen: &Seen, reservations: &Reservations) {
    let offers = reservations.offers.values();
    let cores = offers.clone().map(|offer| offer.cores).sum();
    let memory: u64 = offers.map(|offer| offer.memory).sum();
    status.capacity = PoolAmounts { cores, memory: ByteSize::try_from(memory).ok(), gpus: 0 };
    let on_ours = |name: &str| seen.nodes.iter().any(|node| node.name == name);
    let snapshots = seen.snapshot.iter().flat_map(|snapshot| &snapshot.nodes);
    let used = snapshots.filter(|node| on_ours(&node.node));
    let (cores, memory) = used.fold((0, 0), |sum, node| (sum.0 + node.cores, sum.1 + node.memory));
    status.in_use = PoolAmounts { cores, memory: ByteSize::try_from(memory).ok(), gpus: 0 };
}

/// Whether a queue has the pool.
fn is_queues(seen: &Seen) -> bool {
    seen.ownership.owner.as_ref().is_some_and(|owner| owner.kind == QUEUE)
}

/// What the queue says of its pool of GPUs.
fn of_gpus<'a>(validated: &Validated<'_>, seen: &'a Seen) -> Option<&'a GpuPoolSnapshot> {
    seen.snapshot.as_ref().and_then(|snapshot| snapshot.gpu_pool(validated.name))
}

/// GPUs that reward services share: as their queue has them.
fn shared(status: &mut ResourcePoolStatus, snapshot: &GpuPoolSnapshot) {
    let chunks = SIZES.iter().zip(snapshot.free_chunks);
    let free: u32 = chunks.clone().map(|(gpus, count)| gpus * count).sum();
    status.in_use.gpus = snapshot.gpus.saturating_sub(snapshot.lost).saturating_sub(free);
    status.free_chunks = chunks
        .filter(|(_, count)| *count > 0)
        .map(|(gpus, count)| FreeChunks { gpus: *gpus, count })
        .collect();
    status.fragmentation = (free > 0).then(|| f64::from(snapshot.fragmentation) / 1000.0);
    status.residents.clone_from(&snapshot.residents);
}

/// GPUs that pods ask for.
fn counted(status: &mut ResourcePoolStatus, nodes: &[NodeUse], per_node: u32) {
    let usable = |node: &NodeUse| node.size.gpus.min(per_node);
    let free: Vec<[u32; 4]> =
        nodes.iter().map(|node| chunks::free(usable(node), node.used.gpus)).collect();
    status.capacity.gpus = nodes.iter().map(usable).sum();
    status.in_use.gpus = nodes.iter().map(|node| node.used.gpus.min(usable(node))).sum();
    status.fragmentation = chunks::fragmentation(free.iter().copied());
    status.free_chunks = SIZES
        .iter()
        .enumerate()
        .map(|(level, gpus)| FreeChunks {
            gpus: *gpus,
            count: free.iter().map(|chunks| chunks[level]).sum(),
        })
        .filter(|chunks| chunks.count > 0)
        .collect();
}

fn quotas(spec: &ResourcePoolSpec, seen: &Seen) -> Vec<QuotaUse> {
    let limits = spec.quota.iter().flat_map(|quota| &quota.limits);
    let in_use = |name: &str| {
        let snapshot = seen.snapshot.as_ref()?;
        snapshot.quotas.iter().find(|quota| quota.0 == name).map(|quota| (quota.1, quota.2))
    };
    let line = |name: &str| {
        let (running, waiting) = in_use(name).unwrap_or_default();
        QuotaUse { name: name.to_owned(), running, waiting }
    };
    limits.map(|limit| line(&limit.name)).collect()
}

/// The conditions of a pool whose spec is refused.
pub(super) fn refused(invalid: &Invalid) -> Vec<Wish> {
    vec![Wish::is_false(types::READY, reasons::INVALID_SPEC, invalid.to_string())]
}

/// The conditions of one that is not.
pub(super) fn conditions(
    validated: &Validated<'_>,
    seen: &Seen,
    reservations: &Reservations,
) -> Vec<Wish> {
    let mut wished = vec![ready(validated, seen, reservations), bound(seen), claimed_twice(seen)];
    if !matches!(validated.sort, Sort::Quota) {
        wished.push(overlaps(seen));
    }
    if let Sort::Cpu(_) = validated.sort {
        wished.push(dedicated(&seen.nodes));
    }
    wished
}

fn ready(validated: &Validated<'_>, seen: &Seen, reservations: &Reservations) -> Wish {
    let no = |reason, message: String| Wish::is_false(types::READY, reason, message);
    if matches!(validated.sort, Sort::Quota) {
        return Wish::is_true(types::READY, reasons::AS_SPECIFIED, "");
    }
    if seen.nodes.is_empty() {
        let message = "no ready node has the labels of nodeSelector and serves this pool";
        return no(reasons::NO_NODES, message.to_owned());
    }
    if let Sort::Gpu(_) = validated.sort {
        let without = seen.nodes.iter().filter(|node| node.size.gpus == 0);
        let without: Vec<&str> = without.map(|node| node.name.as_str()).collect();
        if without.len() == seen.nodes.len() {
            let message = format!("no GPUs are reported by {}", listed(&without));
            return no(reasons::NO_CAPACITY, message);
        }
        if !is_queues(seen) {
            return Wish::is_true(types::READY, reasons::AS_SPECIFIED, "");
        }
    }
    if !reservations.full.is_empty() {
        let full: Vec<&str> = reservations.full.iter().map(String::as_str).collect();
        let lack = match validated.sort {
            Sort::Gpu(_) => "other pods have GPUs, or more memory than hostMemory leaves, on",
            _ => "other pods and what the pool keeps back leave less than a core or 64Mi on",
        };
        let message = format!("{lack} {}", listed(&full));
        return no(reasons::NO_CAPACITY, message);
    }
    let changing = reservations.make.len() + reservations.delete.len();
    let running = seen.reservations.iter().filter(|pod| is_running(pod)).count();
    if seen.ownership.owner.is_some() && (changing > 0 || running < seen.nodes.len()) {
        let message = format!("{running} of {} reservation pods run", seen.nodes.len());
        return no(reasons::WAITING_FOR_PODS, message);
    }
    if let Sort::Gpu(_) = validated.sort {
        return offered(validated, seen);
    }
    Wish::is_true(types::READY, reasons::AS_SPECIFIED, "")
}

/// Whether the agents of a queue's pool of GPUs offer them.
fn offered(validated: &Validated<'_>, seen: &Seen) -> Wish {
    let no = |reason, message: String| Wish::is_false(types::READY, reason, message);
    let all = seen.nodes.len();
    let Some(snapshot) = of_gpus(validated, seen) else {
        let message = "its queue does not say yet what its GPUs hold".to_owned();
        return no(reasons::WAITING_FOR_QUEUE, message);
    };
    if snapshot.nodes < count(all) {
        let message = format!(
            "the agents of {} of {all} nodes offer their GPUs; a node of another queue's cpu pool, \
             or of one with docker: Dind, offers none",
            snapshot.nodes
        );
        return no(reasons::AGENTS_DISCONNECTED, message);
    }
    if snapshot.lost > 0 {
        let message = format!("{} of {} GPUs fell off", snapshot.lost, snapshot.gpus);
        return no(reasons::NO_CAPACITY, message);
    }
    Wish::is_true(types::READY, reasons::AS_SPECIFIED, "")
}

/// Whether a reservation holds its node's cores.
pub(crate) fn is_running(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

fn bound(seen: &Seen) -> Wish {
    match &seen.ownership.owner {
        Some(owner) => {
            Wish::is_true(types::BOUND, reasons::AS_SPECIFIED, format!("to {}", shown(owner)))
        }
        None => Wish::is_false(
            types::BOUND,
            reasons::NOT_CLAIMED,
            "no ActionQueue or RolloutJob that may use this pool names it",
        ),
    }
}

fn claimed_twice(seen: &Seen) -> Wish {
    let kind = types::POOL_ALREADY_BOUND;
    let Some(owner) = seen.ownership.owner.as_ref().filter(|_| !seen.ownership.refused.is_empty())
    else {
        return Wish::is_false(kind, reasons::AS_SPECIFIED, "");
    };
    let refused: Vec<String> = seen.ownership.refused.iter().map(shown).collect();
    let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
    let message = format!(
        "bound to {}; also named by {}, which must take another pool",
        shown(owner),
        listed(&refused)
    );
    Wish::is_true(kind, reasons::OWNED_BY_ANOTHER, message)
}

fn overlaps(seen: &Seen) -> Wish {
    if seen.overlaps.is_empty() {
        return Wish::is_false(types::OVERLAPS, reasons::AS_SPECIFIED, "");
    }
    let pools: Vec<String> =
        seen.overlaps.iter().map(|(pool, nodes)| format!("{pool} ({nodes} nodes)")).collect();
    let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
    let message = format!(
        "nodes are also in {}; a node serves one pool: make the selectors exclude each other",
        listed(&pools)
    );
    Wish::is_true(types::OVERLAPS, reasons::SHARED_NODES, message)
}

fn dedicated(nodes: &[NodeUse]) -> Wish {
    let objections = nodes.iter().filter_map(|node| {
        let objection = dedication::objection(node.kubelet.as_deref(), node.others)?;
        Some((objection, node.name.as_str()))
    });
    let objections: Vec<(&'static str, &str)> = objections.collect();
    let Some((reason, _)) = objections.iter().min() else {
        return Wish::is_false(types::NODE_NOT_DEDICATED, reasons::AS_SPECIFIED, "");
    };
    let names: Vec<&str> = objections.iter().map(|(_, name)| *name).collect();
    let remedy = if *reason == reasons::CPU_MANAGER_NOT_STRICT {
        "set the kubelet's reservedSystemCPUs and the CPU manager option strict-cpu-reservation"
    } else {
        "taint the nodes for sandboxes alone, or set the kubelet's CPU manager to static and strict"
    };
    let message = format!("cores may be shared with other pods on {}; {remedy}", listed(&names));
    Wish::is_true(types::NODE_NOT_DEDICATED, reason, message)
}

fn shown(owner: &PoolOwner) -> String {
    format!("{} {}/{}", owner.kind, owner.namespace, owner.name)
}

/// The first few names, and how many more.
fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(LISTED)].join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}
