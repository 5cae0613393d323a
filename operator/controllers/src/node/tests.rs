use rollwright_crds::pool::{CpuPool, PoolOwner, ResourcePoolStatus};

use super::*;

fn pool(name: &str, created: i64, role: Option<&str>, bound: bool) -> Arc<ResourcePool> {
    let mut cpu = CpuPool::default();
    cpu.node_selector.extend(role.map(|role| ("role".to_owned(), role.to_owned())));
    let mut pool = ResourcePool::new(
        name,
        rollwright_crds::ResourcePoolSpec {
            cpu: Some(cpu),
            gpu: None,
            quota: None,
            allowed_namespaces: Vec::new(),
        },
    );
    let created = k8s_openapi::jiff::Timestamp::from_second(created).unwrap();
    pool.metadata.creation_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(created));
    let owner = PoolOwner {
        kind: "ActionQueue".to_owned(),
        namespace: "n".to_owned(),
        name: "q".to_owned(),
    };
    pool.status = Some(ResourcePoolStatus {
        bound_to: bound.then_some(owner),
        ..ResourcePoolStatus::default()
    });
    Arc::new(pool)
}

fn node(labels: &[(&str, &str)]) -> Node {
    let mut node = Node::default();
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    node.metadata.labels = Some(labels.collect());
    node
}

#[test]
fn a_node_serves_the_oldest_bound_pool_that_matches_and_stays() {
    let pools = [
        pool("unbound", 0, None, false),
        pool("young", 2, Some("sandbox"), true),
        pool("old", 1, Some("sandbox"), true),
        pool("other", 0, Some("web"), true),
    ];
    let fresh = node(&[("role", "sandbox")]);
    assert_eq!(wished(&fresh, &pools, |_| false), (Some("old"), Some("host")));
    let settled = node(&[("role", "sandbox"), (POOL, "young"), (AGENT, "host")]);
    assert_eq!(wished(&settled, &pools, |_| false), present(&settled));
    // Its pool is gone, or no longer matches.
    let stray = node(&[("role", "none"), (POOL, "young"), (AGENT, "host")]);
    assert_eq!(wished(&stray, &pools, |_| false), (None, None));
}

#[test]
fn a_node_of_a_pool_that_cannot_be_read_keeps_its_labels() {
    let other = [pool("other", 1, Some("sandbox"), true)];
    let settled = node(&[("role", "sandbox"), (POOL, "odd"), (AGENT, "dind")]);
    let odd = |pool: &str| pool == "odd";
    assert_eq!(wished(&settled, &other, odd), (Some("odd"), Some("dind")));
    assert_eq!(wished(&settled, &other, |_| false), (Some("other"), Some("host")));
    let fresh = node(&[("role", "sandbox")]);
    assert_eq!(wished(&fresh, &other, odd), (Some("other"), Some("host")));
}
