use super::*;
use crate::golden;
use crate::job::{fixtures, lws};
use kube::Resource as _;
use rollwright_crds::RolloutJob;

fn job() -> RolloutJob {
    let spec = "  model: {path: /models/qwen, volume: {claim: weights}}\n  engine: {type: SGLang, \
                image: 'lmsysorg/sglang:v0.5.4', port: 30000, env: {NCCL_DEBUG: WARN}, secretEnv: \
                {HF_TOKEN: {name: hub, key: token}}}\n  rollout: {groupSize: 8, batchGroups: 4}\n  \
                allocation: {fixed: {groups: [{pool: h800, degree: 4, workers: 1}]}}\n";
    fixtures::job(spec)
}

fn with<T>(job: &RolloutJob, act: impl FnOnce(&Template<'_>) -> T) -> T {
    let owner = job.controller_owner_ref(&()).unwrap();
    let labels = job.metadata.labels.clone().unwrap_or_default();
    let pool = Pool { class: "h800".parse().unwrap(), gpus_per_node: 8, promised: 0 };
    act(&Template {
        namespace: "research",
        job: "math",
        owner: &owner,
        labels: &labels,
        model: &job.spec.model,
        engine: &job.spec.engine,
        pools: &[("h800".parse().unwrap(), pool)].into(),
    })
}

fn placement(degree: u32, nodes: &[&str]) -> Placement {
    Placement {
        kind: Kind { pool: "h800".parse().unwrap(), role: Role::Mixed, degree },
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    }
}

#[test]
fn a_worker_on_one_node_is_a_pod() {
    let pod = with(&job(), |template| template.pod("math-worker-a", &placement(4, &["gpu-1"])));
    golden::check("job", "worker", &pod);
}

#[test]
fn a_worker_over_two_nodes_is_a_set() {
    let nodes = placement(8, &["gpu-1", "gpu-2"]);
    let set = with(&job(), |template| lws::build(template, "math-worker-a", &nodes).unwrap());
    golden::check("job", "worker-set", &set);
}

#[test]
fn only_what_a_worker_is_made_from_makes_it_outdated() {
    let kind = placement(4, &["gpu-1"]).kind;
    let hash = |job: &RolloutJob| with(job, |template| template.hash(&kind));
    let old = job();
    let mut same = job();
    same.spec.priority = 7;
    same.spec.engine.slots = 3;
    same.metadata.labels.as_mut().unwrap().insert("team".into(), "y".into());
    assert_eq!(hash(&old), hash(&same));
    let mut image = job();
    image.spec.engine.image = "other".into();
    assert_ne!(hash(&old), hash(&image));
    let other = Kind { degree: 2, ..kind.clone() };
    assert_ne!(with(&old, |template| template.hash(&other)), hash(&old));
}

#[test]
fn names_are_new_each_time_and_names_of_pods() {
    let one = name("math", "uid", 1, 0);
    assert_ne!(one, name("math", "uid", 2, 0));
    assert_ne!(one, name("math", "uid", 1, 1));
    assert_eq!(one, name("math", "uid", 1, 0));
    let suffix = one.strip_prefix("math-worker-").unwrap();
    assert!(suffix.len() == 8 && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric()));
}

#[test]
fn the_users_environment_wins() {
    let mut job = job();
    job.spec.engine.env.insert("ROLLWRIGHT_ROLE".into(), "mine".into());
    let pod = with(&job, |template| template.pod("w", &placement(4, &["gpu-1"])));
    let env = pod.spec.unwrap().containers.remove(0).env.unwrap();
    let found: Vec<_> = env.iter().filter(|of| of.name == "ROLLWRIGHT_ROLE").collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].value.as_deref(), Some("mine"));
}
