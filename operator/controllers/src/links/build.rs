//! What agents are told: one entry a node, one client identity a queue. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rollwright_crds::ResourcePool;
use rollwright_crds::pool::{CpuPool, DockerMode, PoolOwner};
use serde::{Deserialize, Serialize};

use crate::labels::{self, Component, GPU_POOL, POOL};
use crate::pool::{Offer, Size, held};

/// Name of the Secret that agents mount.
pub(super) const SECRET: &str = "rollwright-agent-links";

/// Bytes that it holds at most: the API server takes 1 MiB of content.
pub(super) const MOST: usize = 1_000_000;

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
    /// UID of the node's reservation, below whose cgroup sandboxes belong.
    pub(super) reservation: Option<String>,
    /// Cores that actions never get, as a list.
    pub(super) reserved_cores: String,
    /// Memory that sandboxes never get.
    pub(super) reserved_memory_bytes: u64,
    /// What of its GPUs reward services may have; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<Devices>,
}

/// What the agent is told of its node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Devices {
    pub(super) pool: String,
    /// So many of them, from the first on.
    pub(super) gpus: u32,
    /// Memory of the node that engines may hold.
    pub(super) host_memory_bytes: u64,
    /// UID of the pod that holds them, below whose cgroup engines belong.
    pub(super) reservation: String,
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
    /// Its GPU pool, if it has one beside, and that one's reservation.
    pub(super) gpus: Option<(Arc<ResourcePool>, Option<Arc<Pod>>)>,
}

/// A node whose agent is told of something.
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// It serves a pool.
    Served(Served),
    /// Its pool, which nobody can read, it goes on to serve as before.
    AsBefore(String),
}

/// The entry of a node; none while its reservation is on its way and it never had one: until
/// then its cores are not ours.
///
/// An agent that is told of another pool, queue or reservation clears its node. So while the
/// reservation does not run, a node that had an entry keeps it.
fn entry(served: &Served, before: Option<&Entry>) -> Option<Entry> {
    let gpu = gpus(served, before);
    let entry = if served.pool.spec.gpu.is_some() {
        of_gpus_alone(served, gpu.as_ref()?)
    } else {
        of_sandboxes(served, before)
    };
    entry.map(|entry| Entry { gpu, ..entry })
}

/// What is said of the node's GPUs; none until their reservation has run.
fn gpus(served: &Served, before: Option<&Entry>) -> Option<Devices> {
    let alone = served.pool.spec.gpu.is_some();
    let (pool, reservation) = match &served.gpus {
        Some((pool, reservation)) => (pool, reservation),
        None if alone => (&served.pool, &served.reservation),
        None => return None,
    };
    let (name, spec) = (pool.metadata.name.clone()?, pool.spec.gpu.as_ref()?);
    let uid = reservation.as_ref().and_then(|pod| Some((held(pod), pod.metadata.uid.clone()?)));
    let Some((Offer { memory, gpus, .. }, reservation)) = uid else {
        let before = before.filter(|before| before.tls == identity_of(&served.owner));
        return before.and_then(|before| before.gpu.clone()).filter(|gpu| gpu.pool == name);
    };
    let gpus = gpus.min(spec.gpus_per_node);
    Some(Devices { pool: name, gpus, host_memory_bytes: memory, reservation })
}

/// A node without sandboxes.
fn of_gpus_alone(served: &Served, gpu: &Devices) -> Option<Entry> {
    Some(Entry {
        pool: served.pool.metadata.name.clone()?,
        queue: address_of(&served.owner),
        tls: identity_of(&served.owner),
        reservation: Some(gpu.reservation.clone()),
        reserved_cores: String::new(),
        reserved_memory_bytes: 0,
        gpu: None,
    })
}

fn identity_of(PoolOwner { namespace, name, .. }: &PoolOwner) -> String {
    format!("{namespace}.{name}")
}

fn address_of(PoolOwner { namespace, name, .. }: &PoolOwner) -> String {
    format!("https://{name}-queue.{namespace}.svc:9461")
}

fn of_sandboxes(served: &Served, before: Option<&Entry>) -> Option<Entry> {
    let Served { node, pool, owner, reservation, .. } = served;
    let cpu = pool.spec.cpu.as_ref()?;
    let name = pool.metadata.name.clone()?;
    let size = Size::of(node);
    let in_docker = cpu.docker == DockerMode::Dind;
    let tls = identity_of(owner);
    let same = |before: &&Entry| {
        before.pool == name && before.tls == tls && before.reservation.is_none() == in_docker
    };
    let before = before.filter(same);
    let uid = reservation.as_ref().and_then(|pod| pod.metadata.uid.as_deref());
    let held_by = match uid {
        None if before.is_some() => return before.cloned(),
        // A sidecar's Docker is in the agent's own cgroup.
        _ if in_docker => None,
        Some(uid) => Some(uid.to_owned()),
        None => return None,
    };
    let (cores, memory) = kept_back(size, cpu, reservation.as_deref().map(held));
    Some(Entry {
        pool: name,
        queue: address_of(owner),
        tls,
        reservation: held_by,
        reserved_cores: (0..cores).map(|core| core.to_string()).collect::<Vec<_>>().join(","),
        reserved_memory_bytes: memory,
        gpu: None,
    })
}

/// The entry that a node had.
pub(super) fn entry_before(before: Option<&Secret>, node: &str) -> Option<Entry> {
    let data = before?.data.as_ref()?.get(&format!("{node}.json"))?;
    serde_json::from_slice(&data.0).ok()
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

/// The queues whose certificates they show: `namespace.queue`.
pub(super) fn queues(told: &[Told], before: Option<&Secret>) -> BTreeSet<String> {
    let queue = |told: &Told| match told {
        Told::Served(Served { owner, .. }) => Some(identity_of(owner)),
        Told::AsBefore(node) => entry_before(before, node).map(|entry| entry.tls),
    };
    told.iter().filter_map(queue).collect()
}

/// The Secret, and who has no place in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Links {
    pub(super) secret: Secret,
    /// By queue (`namespace.queue`): nodes that would be told of it, and are not.
    pub(super) left_out: BTreeMap<String, u32>,
}

/// Builds it. `identity` finds the Secret of the agents' certificate of a `namespace.queue`; a
/// queue that never had one is not dialled, and one that has none now keeps what it had. Where it
/// would hold more than `most` bytes, nodes that had an entry come first.
pub(super) fn links(
    namespace: &str,
    told: &[Told],
    identity: impl Fn(&str) -> Option<Arc<Secret>>,
    before: Option<&Secret>,
    most: usize,
) -> Result<Links, serde_json::Error> {
    let mut entries = Vec::new();
    for of in told {
        let (node, had) = match of {
            Told::Served(served) => {
                let Some(node) = served.node.metadata.name.as_deref() else { continue };
                (node, entry_before(before, node))
            }
            Told::AsBefore(node) => (node.as_str(), entry_before(before, node)),
        };
        let had_one = had.is_some();
        let entry = match of {
            Told::Served(served) => entry(served, had.as_ref()),
            Told::AsBefore(_) => had,
        };
        entries.extend(entry.map(|entry| (!had_one, node, entry)));
    }
    entries.sort_by(|left, right| (left.0, left.1).cmp(&(right.0, right.1)));
    let mut data = BTreeMap::new();
    let mut left_out: BTreeMap<String, u32> = BTreeMap::new();
    // Files by queue; empty where it has no identity and never had.
    let mut known: BTreeMap<String, Files> = BTreeMap::new();
    let mut size = 0;
    for (_, node, entry) in entries {
        let files = known.entry(entry.tls.clone()).or_insert_with(|| {
            identity(&entry.tls).map_or_else(
                || files_before(before, &entry.tls),
                |identity| files_of(&identity, &entry.tls),
            )
        });
        if files.is_empty() {
            continue;
        }
        let text = serde_json::to_vec(&entry)?;
        let first = files.keys().any(|file| !data.contains_key(file));
        let more: usize = if first { files.values().map(|file| file.0.len()).sum() } else { 0 };
        if size + text.len() + more > most {
            *left_out.entry(entry.tls).or_default() += 1;
            continue;
        }
        size += text.len() + more;
        data.insert(format!("{node}.json"), ByteString(text));
        if first {
            data.extend(files.clone());
        }
    }
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels::of(Component::Agent, "links")),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    };
    Ok(Links { secret, left_out })
}

/// Files of one queue, by name.
type Files = BTreeMap<String, ByteString>;

fn files_of(identity: &Secret, queue: &str) -> Files {
    let content = |file| identity.data.as_ref().and_then(|data| data.get(file)).cloned();
    let named = FILES.map(|(file, ending)| Some((format!("{queue}.{ending}"), content(file)?)));
    named.into_iter().flatten().collect()
}

fn files_before(before: Option<&Secret>, queue: &str) -> Files {
    let content = |file: &String| before?.data.as_ref()?.get(file).cloned();
    let named = FILES.map(|(_, ending)| format!("{queue}.{ending}"));
    named.into_iter().filter_map(|file| Some((file.clone(), content(&file)?))).collect()
}

/// The pools that a node is labelled with: of cores, and of GPUs.
pub(super) fn pool_labels(node: &Node) -> [Option<&str>; 2] {
    let label = |key| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    [label(POOL), label(GPU_POOL)]
}
