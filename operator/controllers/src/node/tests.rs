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

/// Pool and agent of a node without GPUs.
fn labels<'a>(pool: impl Into<Option<&'a str>>, agent: impl Into<Option<&'a str>>) -> Labels<'a> {
    Labels { pool: pool.into(), gpu_pool: None, agent: agent.into() }
}

/// A pool of GPUs that a queue owns.
fn gpus(name: &str, queue: &str) -> Arc<ResourcePool> {
    let pool = serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "ResourcePool",
        "metadata": {"name": name},
        "spec": {"gpu": {"nodeSelector": {"gpu": "h20"}, "class": "h20", "gpusPerNode": 8,
            "profile": {"tflops": 148, "hbm": "96Gi", "hbmTbps": 4}}},
        "status": {"boundTo": {"kind": "ActionQueue", "namespace": "n", "name": queue}},
    }));
    Arc::new(pool.unwrap())
}

#[test]
fn the_agent_of_a_node_with_gpus_has_its_sandboxes_too() {
    let of = |labels: &[(&str, &str)], pools: &[Arc<ResourcePool>]| {
        let node = node(labels);
        let Labels { pool, gpu_pool, agent } = wished(&node, pools, |_| false);
        [pool, gpu_pool, agent].map(|label| label.unwrap_or("-").to_owned())
    };
    let both = [("role", "sandbox"), ("gpu", "h20")];
    let cpu = pool("cpu", 0, Some("sandbox"), true);
    assert_eq!(of(&[("gpu", "h20")], &[gpus("judges", "q")]), ["-", "judges", "gpu"]);
    assert_eq!(of(&both, &[Arc::clone(&cpu), gpus("judges", "q")]), ["cpu", "judges", "gpu"]);
    // An agent works for one queue.
    assert_eq!(of(&both, &[Arc::clone(&cpu), gpus("judges", "other")]), ["cpu", "-", "host"]);
    let mut dind = ResourcePool::clone(&cpu);
    dind.spec.cpu.as_mut().unwrap().docker = DockerMode::Dind;
    assert_eq!(of(&both, &[Arc::new(dind), gpus("judges", "q")]), ["cpu", "-", "dind"]);
    // Workers of a job ask for their GPUs themselves.
    let mut jobs = ResourcePool::clone(&gpus("h20", "q"));
    jobs.status.as_mut().unwrap().bound_to.as_mut().unwrap().kind = "RolloutJob".to_owned();
    assert_eq!(of(&both, &[Arc::new(jobs)]), ["-", "-", "-"]);
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
    assert_eq!(wished(&fresh, &pools, |_| false), labels("old", "host"));
    let settled = node(&[("role", "sandbox"), (POOL, "young"), (AGENT, "host")]);
    assert_eq!(wished(&settled, &pools, |_| false), present(&settled));
    // Its pool is gone, or no longer matches.
    let stray = node(&[("role", "none"), (POOL, "young"), (AGENT, "host")]);
    assert_eq!(wished(&stray, &pools, |_| false), labels(None, None));
}

#[test]
fn a_node_of_a_pool_that_cannot_be_read_keeps_its_labels() {
    let other = [pool("other", 1, Some("sandbox"), true)];
    let settled = node(&[("role", "sandbox"), (POOL, "odd"), (AGENT, "dind")]);
    let odd = |pool: &str| pool == "odd";
    assert_eq!(wished(&settled, &other, odd), labels("odd", "dind"));
    assert_eq!(wished(&settled, &other, |_| false), labels("other", "host"));
    let fresh = node(&[("role", "sandbox")]);
    assert_eq!(wished(&fresh, &other, odd), labels("other", "host"));
}
