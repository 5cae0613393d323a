use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Container, Node, NodeStatus, Pod, PodSpec, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rollwright_crds::pool::{CpuPool, PoolOwner};
use rollwright_crds::{ResourcePool, ResourcePoolSpec};

use super::build::{self, Entry, Served};

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
        kubelet: None,
    }
}

fn identities() -> BTreeMap<String, Arc<Secret>> {
    let data = ["tls.crt", "tls.key", "ca.crt"];
    let data = data.map(|key| (key.to_owned(), ByteString(key.as_bytes().to_vec())));
    let secret = Secret { data: Some(data.into()), ..Secret::default() };
    [("research.tools".to_owned(), Arc::new(secret))].into()
}

fn keys(secret: &Secret) -> Vec<&str> {
    secret.data.iter().flatten().map(|(key, _)| key.as_str()).collect()
}

#[test]
fn an_agent_learns_its_queue_when_its_reservation_runs_and_keeps_it() {
    let none = build::secret("release", &[served(false)], &identities(), None).unwrap();
    assert_eq!(keys(&none), [""; 0], "no entry, and no key that nobody needs");

    let some = build::secret("release", &[served(true)], &identities(), None).unwrap();
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
        cgroup_parent: Some("/kubepods/pod0-1".to_owned()),
        reserved_cores: "0,1".to_owned(),
        reserved_memory_bytes: 2 << 30,
    };
    assert_eq!(entry, expected);

    let later = build::secret("release", &[served(false)], &identities(), Some(&some)).unwrap();
    assert!(keys(&later).contains(&"cpu-1.json"), "it keeps its queue when the pod is replaced");
}

#[test]
fn an_identity_that_may_not_be_read_stays_as_it_was_told() {
    let told = build::secret("release", &[served(true)], &identities(), None).unwrap();
    let kept = build::identity_in(&told, "research.tools").unwrap();
    assert_eq!(kept.data, identities()["research.tools"].data);
    assert_eq!(build::identity_in(&told, "research.other"), None);
}

#[test]
fn a_queue_without_an_identity_is_not_dialled() {
    let secret = build::secret("release", &[served(true)], &BTreeMap::new(), None).unwrap();
    assert_eq!(keys(&secret), [""; 0]);
}
