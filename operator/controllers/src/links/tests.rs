use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Container, Node, NodeStatus, Pod, PodSpec, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rollwright_crds::pool::{CpuPool, DockerMode, PoolOwner};
use rollwright_crds::{ResourcePool, ResourcePoolSpec};

use super::build::{self, Entry, Links, MOST, Served, Told};

fn quantities(all: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    all.iter().map(|(key, value)| ((*key).to_owned(), Quantity((*value).to_owned()))).collect()
}

fn served(reservation: bool) -> Served {
    let mut node = Node::default();
    node.metadata.name = Some("cpu-1".to_owned());
    node.status = Some(NodeStatus {
        capacity: Some(quantities(&[("cpu", "8"), ("memory", "16Gi")])),
        allocatable: Some(quantities(&[("cpu", "7900m"), ("memory", "15Gi")])),
        ..NodeStatus::default()
    });
    let spec = ResourcePoolSpec {
        cpu: Some(CpuPool::default()),
        gpu: None,
        quota: None,
        allowed_namespaces: Vec::new(),
    };
    let mut container = Container::default();
    container.resources.get_or_insert_default().requests =
        Some(quantities(&[("cpu", "6"), ("memory", "14Gi")]));
    let mut pod = Pod {
        spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
        ..Pod::default()
    };
    pod.metadata.uid = Some("0-1".to_owned());
    Served {
        node: Arc::new(node),
        pool: Arc::new(ResourcePool::new("cpu", spec)),
        owner: PoolOwner {
            kind: "ActionQueue".to_owned(),
            namespace: "research".to_owned(),
            name: "tools".to_owned(),
        },
        reservation: reservation.then(|| Arc::new(pod)),
        gpus: None,
    }
}

fn identity(queue: &str) -> Option<Arc<Secret>> {
    let data = ["tls.crt", "tls.key", "ca.crt"];
    let data = data.map(|key| (key.to_owned(), ByteString(key.as_bytes().to_vec())));
    let secret = Secret { data: Some(data.into()), ..Secret::default() };
    (queue == "research.tools").then(|| Arc::new(secret))
}

/// The Secret for the one node.
fn secret(
    served: Served,
    identity: impl Fn(&str) -> Option<Arc<Secret>>,
    before: Option<&Secret>,
) -> Secret {
    build::links("release", &[Told::Served(served)], identity, before, MOST).unwrap().secret
}

fn of_uid(uid: &str) -> Served {
    let mut served = served(true);
    let mut pod = Pod::clone(&served.reservation.take().unwrap());
    pod.metadata.uid = Some(uid.to_owned());
    Served { reservation: Some(Arc::new(pod)), ..served }
}

fn reservation_of(secret: &Secret) -> Option<String> {
    build::entry_before(Some(secret), "cpu-1")?.reservation
}

fn keys(secret: &Secret) -> Vec<&str> {
    secret.data.iter().flatten().map(|(key, _)| key.as_str()).collect()
}

#[test]
fn an_agent_learns_its_queue_when_its_reservation_runs_and_keeps_it() {
    let none = secret(served(false), identity, None);
    assert_eq!(keys(&none), [""; 0], "no entry, and no key that nobody needs");

    let some = secret(served(true), identity, None);
    assert_eq!(
        keys(&some),
        ["cpu-1.json", "research.tools.ca.crt", "research.tools.crt", "research.tools.key"]
    );
    let entry: Entry =
        serde_json::from_slice(&some.data.as_ref().unwrap()["cpu-1.json"].0).unwrap();
    let expected = Entry {
        pool: "cpu".to_owned(),
        queue: "https://tools-queue.research.svc:9461".to_owned(),
        tls: "research.tools".to_owned(),
        reservation: Some("0-1".to_owned()),
        reserved_cores: "0,1".to_owned(),
        reserved_memory_bytes: 2 << 30,
        gpu: None,
    };
    assert_eq!(entry, expected);

    let later = secret(served(false), identity, Some(&some));
    assert_eq!(later, some, "all stays until the new pod runs");
}

#[test]
fn the_certificates_of_all_who_are_told_are_looked_for() {
    let before = secret(served(true), identity, None);
    let as_before = Told::AsBefore("cpu-1".to_owned());
    let mut other = served(true);
    other.owner.name = "others".to_owned();
    let queues = build::queues(&[as_before, Told::Served(other)], Some(&before));
    assert_eq!(queues.into_iter().collect::<Vec<_>>(), ["research.others", "research.tools"]);
}

#[test]
fn a_queue_without_an_identity_is_not_dialled() {
    let secret = secret(served(true), |_| None, None);
    assert_eq!(keys(&secret), [""; 0]);
}

#[test]
fn another_reservation_is_told_when_it_runs() {
    let before = secret(of_uid("0-1"), identity, None);
    assert_eq!(reservation_of(&before).as_deref(), Some("0-1"));
    assert_eq!(secret(served(false), identity, Some(&before)), before);
    let after = secret(of_uid("0-2"), identity, Some(&before));
    assert_eq!(reservation_of(&after).as_deref(), Some("0-2"));
    // Docker in a sidecar has no part in it.
    let mut inside = served(true);
    let mut pool = ResourcePool::clone(&inside.pool);
    pool.spec.cpu.as_mut().unwrap().docker = DockerMode::Dind;
    inside.pool = Arc::new(pool);
    assert_eq!(reservation_of(&secret(inside, identity, Some(&before))), None);
}

/// A pool of GPUs, and the pod that holds them.
fn judges(reservation: bool) -> (Arc<ResourcePool>, Option<Arc<Pod>>) {
    let pool = serde_json::from_value(serde_json::json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "ResourcePool",
        "metadata": {"name": "judges"},
        "spec": {"gpu": {"class": "h20", "gpusPerNode": 4,
            "profile": {"tflops": 148, "hbm": "96Gi", "hbmTbps": 4}}},
    }));
    let mut pod = Pod::default();
    pod.metadata.uid = Some("0-9".to_owned());
    let mut container = Container::default();
    container.resources.get_or_insert_default().requests =
        Some(quantities(&[("cpu", "10m"), ("memory", "200Gi"), ("nvidia.com/gpu", "8")]));
    pod.spec = Some(PodSpec { containers: vec![container], ..PodSpec::default() });
    (Arc::new(pool.unwrap()), reservation.then(|| Arc::new(pod)))
}

#[test]
fn an_agent_learns_its_gpus_when_they_are_held() {
    let entry = |secret: &Secret| build::entry_before(Some(secret), "cpu-1");
    let expected = build::Devices {
        pool: "judges".to_owned(),
        gpus: 4,
        host_memory_bytes: 200 << 30,
        reservation: "0-9".to_owned(),
    };
    // Beside sandboxes.
    let beside = |held| Served { gpus: Some(judges(held)), ..served(true) };
    let none = secret(beside(false), identity, None);
    assert_eq!(entry(&none).unwrap().gpu, None);
    let some = secret(beside(true), identity, Some(&none));
    let told = entry(&some).unwrap();
    assert_eq!((told.pool.as_str(), told.gpu.as_ref()), ("cpu", Some(&expected)));
    assert_eq!(secret(beside(false), identity, Some(&some)), some, "until the new pod runs");
    let gone = secret(served(true), identity, Some(&some));
    assert_eq!(entry(&gone).unwrap().gpu, None);
    // Alone.
    let alone = |held| {
        let (pool, reservation) = judges(held);
        Served { pool, reservation, ..served(true) }
    };
    assert_eq!(keys(&secret(alone(false), identity, None)), [""; 0]);
    let some = secret(alone(true), identity, None);
    let told = entry(&some).unwrap();
    assert_eq!((told.pool.as_str(), told.reservation.as_deref()), ("judges", Some("0-9")));
    assert_eq!((told.gpu.as_ref(), told.reserved_memory_bytes), (Some(&expected), 0));
    assert_eq!(secret(alone(false), identity, Some(&some)), some);
}

#[test]
fn an_identity_that_is_missing_for_a_while_changes_nothing() {
    let before = secret(served(true), identity, None);
    assert_eq!(secret(served(true), |_| None, Some(&before)), before);
    // Of another queue nothing was known.
    let mut moved = served(true);
    moved.owner.name = "others".to_owned();
    assert_eq!(keys(&secret(moved, |_| None, Some(&before))), [""; 0]);
}

#[test]
fn a_pool_that_cannot_be_read_keeps_its_entries() {
    let before = secret(served(true), identity, None);
    let told = [Told::AsBefore("cpu-1".to_owned())];
    let after = build::links("release", &told, identity, Some(&before), MOST).unwrap().secret;
    assert_eq!(after, before);
    let gone = build::links("release", &[], identity, Some(&before), MOST).unwrap().secret;
    assert_eq!(keys(&gone), [""; 0]);
}

/// A node that is new does not push out one whose agent is at work.
#[test]
fn where_the_secret_is_full_new_nodes_are_left_out_and_counted() {
    let named = |name: &str| {
        let mut served = served(true);
        let mut node = Node::clone(&served.node);
        node.metadata.name = Some(name.to_owned());
        served.node = Arc::new(node);
        Told::Served(served)
    };
    let of = |told: &[Told], before: Option<&Secret>, most| {
        build::links("release", told, identity, before, most).unwrap()
    };
    let Links { secret: old, left_out } = of(&[named("n2")], None, MOST);
    assert!(left_out.is_empty());
    let size = |secret: &Secret| secret.data.iter().flatten().map(|(_, of)| of.0.len()).sum();
    let told = [named("n1"), named("n2"), named("n3")];
    let most: usize = size(&old);
    let full = of(&told, Some(&old), most);
    assert_eq!(full.secret, old);
    assert_eq!(full.left_out, [("research.tools".to_owned(), 2)].into());
    let wider = of(&told, Some(&old), 3 * most);
    assert!(wider.left_out.is_empty() && size(&wider.secret) <= 3 * most);
    let none = of(&told, None, most - 1);
    assert_eq!((keys(&none.secret).len(), none.left_out["research.tools"]), (0, 3));
}
