//! What agents are told: one entry a node, one client identity a queue. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rollwright_crds::ResourcePool;
use rollwright_crds::pool::{CpuPool, DockerMode, PoolOwner};
use serde::{Deserialize, Serialize};

use crate::labels::{self, Component, POOL};
use crate::pool::{Kubelet, Offer, Size, held};

/// Name of the Secret that agents mount.
pub(super) const SECRET: &str = "rollwright-agent-links";

/// Files of an identity: in its own Secret, and how they end in that of the agents.
const FILES: [(&str, &str); 3] = [("tls.crt", "crt"), ("tls.key", "key"), ("ca.crt", "ca.crt")];

/// What the agent of one node is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) pool: String,
    /// Where it dials.
    pub(super) queue: String,
    /// Whose files it shows: `namespace.queue`.
    pub(super) tls: String,
    /// The cgroup of the node's reservation, below which sandboxes belong.
    pub(super) cgroup_parent: Option<String>,
    /// Cores that actions never get, as a list.
    pub(super) reserved_cores: String,
    /// Memory that sandboxes never get.
    pub(super) reserved_memory_bytes: u64,
}

/// A node that serves a pool of a queue.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) node: Arc<Node>,
    pub(super) pool: Arc<ResourcePool>,
    /// The queue that the pool is bound to.
    pub(super) owner: PoolOwner,
    /// The reservation, if it runs.
    pub(super) reservation: Option<Arc<Pod>>,
    pub(super) kubelet: Option<Arc<Kubelet>>,
}

/// The entry of a node; none while its reservation is on its way and it never had one: until
/// then its cores are not ours.
fn entry(served: &Served, before: Option<&Entry>) -> Option<Entry> {
    let Served { node, pool, owner, reservation, kubelet } = served;
    let cpu = pool.spec.cpu.as_ref()?;
    let name = pool.metadata.name.clone()?;
    let PoolOwner { namespace, name: queue, .. } = owner;
    let size = Size::of(node);
    let in_docker = cpu.docker == DockerMode::Dind;
    let uid = reservation.as_ref().and_then(|pod| pod.metadata.uid.as_deref());
    // A sidecar's Docker is in the agent's own cgroup.
    let cgroup_parent = uid.filter(|_| !in_docker).map(|uid| match kubelet {
        Some(kubelet) => kubelet.cgroup_of(uid),
        None => Kubelet::default().cgroup_of(uid),
    });
    let (cores, memory) = kept_back(size, cpu, reservation.as_deref().map(held));
    let entry = Entry {
        pool: name,
        queue: format!("https://{queue}-queue.{namespace}.svc:9461"),
        tls: format!("{namespace}.{queue}"),
        cgroup_parent,
        reserved_cores: (0..cores).map(|core| core.to_string()).collect::<Vec<_>>().join(","),
        reserved_memory_bytes: memory,
    };
    let had = before.is_some_and(|before| before.pool == entry.pool && before.tls == entry.tls);
    (in_docker || reservation.is_some() || had).then_some(entry)
}

/// Cores and memory of the machine that are not the sandboxes'.
fn kept_back(size: Size, cpu: &CpuPool, held: Option<Offer>) -> (u32, u64) {
    if let Some(held) = held {
        let cores = size.machine_cores.saturating_sub(held.cores);
        return (cores, size.machine_memory.saturating_sub(held.memory));
    }
    let memory = cpu.reserved_memory.map_or(0, rollwright_crds::ByteSize::bytes);
    (cpu.reserved_cores.min(size.machine_cores), memory)
}

/// The Secret. `identities` are the Secrets of the agents' certificates by `namespace.queue`; a
/// queue that has none yet is not dialled.
pub(super) fn secret(
    namespace: &str,
    served: &[Served],
    identities: &BTreeMap<String, Arc<Secret>>,
    before: Option<&Secret>,
) -> Result<Secret, serde_json::Error> {
    let mut data = BTreeMap::new();
    let mut dialled = BTreeSet::new();
    for of in served {
        let Some(node) = of.node.metadata.name.as_deref() else { continue };
        let key = format!("{node}.json");
        let known = before
            .and_then(|secret| secret.data.as_ref()?.get(&key))
            .and_then(|entry| serde_json::from_slice(&entry.0).ok());
        let Some(entry) = entry(of, known.as_ref()) else { continue };
        if identities.contains_key(&entry.tls) {
            dialled.insert(entry.tls.clone());
            data.insert(key, ByteString(serde_json::to_vec(&entry)?));
        }
    }
    for (queue, identity) in identities.iter().filter(|(queue, _)| dialled.contains(*queue)) {
        for (file, ending) in FILES {
            if let Some(content) = identity.data.as_ref().and_then(|data| data.get(file)) {
                data.insert(format!("{queue}.{ending}"), content.clone());
            }
        }
    }
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels::of(Component::Agent, "links")),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    })
}

/// A queue's client identity as agents were told of it.
pub(super) fn identity_in(secret: &Secret, queue: &str) -> Option<Secret> {
    let told = secret.data.as_ref()?;
    let data = FILES.map(|(file, ending)| {
        Some((file.to_owned(), told.get(&format!("{queue}.{ending}"))?.clone()))
    });
    let data: Option<BTreeMap<_, _>> = data.into_iter().collect();
    Some(Secret { data: Some(data?), ..Secret::default() })
}

/// The pool that a node is labelled with.
pub(super) fn pool_label(node: &Node) -> Option<&str> {
    node.metadata.labels.as_ref()?.get(POOL).map(String::as_str)
}
