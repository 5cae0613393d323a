use super::*;
use crate::job::fixtures;

const LARGE: &str = "{fixed: {groups: [{pool: h20, degree: 8, workers: 2}]}}";

fn named(pools: &[ResourcePool]) -> Named {
    let pools = pools
        .iter()
        .map(|pool| (pool.metadata.name.clone().unwrap().parse().unwrap(), pool.clone()));
    Named { pools: pools.collect(), ..Named::default() }
}

fn reasons_of(job: &RolloutJob, named: &Named) -> Vec<&'static str> {
    problems(job, named).iter().map(|problem| problem.reason).collect()
}

#[test]
fn what_fits_has_no_problem() {
    let job = fixtures::job(&fixtures::spec(LARGE, ""));
    assert_eq!(problems(&job, &named(&[fixtures::pool("h20", "h20", 8)])), []);
}

#[test]
fn a_degree_beyond_a_node_needs_sets() {
    let job = fixtures::job(&fixtures::spec(LARGE, ""));
    let mut named = named(&[fixtures::pool("h20", "h20", 4)]);
    let found = problems(&job, &named);
    assert_eq!(found.len(), 1);
    assert!(found[0].message.contains("install LeaderWorkerSet"), "{}", found[0].message);
    named.groups = true;
    assert_eq!(problems(&job, &named), []);
}

#[test]
fn pools_must_be_there_and_fit() {
    let job = fixtures::job(&fixtures::spec(LARGE, ""));
    assert_eq!(reasons_of(&job, &Named::default()), [reasons::POOL_NOT_FOUND]);
    let mut closed = fixtures::pool("h20", "h20", 8);
    closed.spec.allowed_namespaces = vec!["other".parse().unwrap()];
    assert_eq!(reasons_of(&job, &named(&[closed])), [reasons::NAMESPACE_NOT_ALLOWED]);
    let mut rewards = fixtures::pool("h20", "h20", 8);
    rewards.spec.gpu.as_mut().unwrap().hosts = vec![GpuRole::Reward];
    assert_eq!(reasons_of(&job, &named(&[rewards])), [reasons::POOL_TYPE_MISMATCH]);
    let mut taken = fixtures::pool("h20", "h20", 8);
    taken.status = Some(rollwright_crds::pool::ResourcePoolStatus {
        bound_to: Some(rollwright_crds::pool::PoolOwner {
            kind: "ActionQueue".into(),
            namespace: "a".into(),
            name: "q".into(),
        }),
        ..Default::default()
    });
    assert_eq!(reasons_of(&job, &named(&[taken])), [reasons::OWNED_BY_ANOTHER]);
}

#[test]
fn names_become_parts_of_names() {
    let mut job = fixtures::job(&fixtures::spec(LARGE, ""));
    let named = named(&[fixtures::pool("h20", "h20", 8)]);
    for wrong in ["a.b", "1a", "a-", &"a".repeat(LONGEST_NAME + 1)] {
        job.metadata.name = Some((*wrong).to_owned());
        assert_eq!(reasons_of(&job, &named), [reasons::INVALID_SPEC], "{wrong}");
    }
    job.metadata.name = Some("a".repeat(LONGEST_NAME));
    assert_eq!(problems(&job, &named), []);
    let longest = format!("{}-gateway-0123456789", "a".repeat(LONGEST_NAME));
    assert!(
        longest.len() <= 63 && format!("{}-worker-abcdefgh", "a".repeat(LONGEST_NAME)).len() <= 63
    );
}

#[test]
fn queues_and_rewards_must_be_there() {
    let more = "  actionQueue: {name: tools}\n  rewardServices: [{name: judge}, {name: model}]\n";
    let job = fixtures::job(&fixtures::spec(LARGE, more));
    let mut named = named(&[fixtures::pool("h20", "h20", 8)]);
    let gpu = fixtures::reward(
        "model",
        "{gpu: {queue: q, pool: p, model: {path: m}, engine: {type: vLLM, image: i}, ask: Pooling, \
         degrees: [1], footprints: [{degree: 1, device: 9Gi}]}}",
    );
    named.rewards.insert("model".parse().unwrap(), gpu);
    assert_eq!(
        reasons_of(&job, &named),
        [
            reasons::QUEUE_NOT_FOUND,
            reasons::SERVICE_NOT_FOUND,
            // A gateway calls one queue, and that of the model is not there either.
            reasons::UNSUPPORTED,
            reasons::QUEUE_NOT_FOUND
        ]
    );
}

#[test]
fn what_the_gateway_refuses_is_said_before_it_does() {
    let named = named(&[fixtures::pool("h20", "h20", 8)]);
    let said = |rollout: &str| {
        let text = fixtures::spec(LARGE, "")
            .replace("batchGroups: 4", &format!("batchGroups: 4, {rollout}"));
        let found = problems(&fixtures::job(&text), &named);
        assert!(found.iter().all(|of| of.reason == reasons::UNSUPPORTED && of.stops == Stops::All));
        found.into_iter().map(|of| of.message).collect::<Vec<_>>()
    };
    let instead = "is not available in this version: use";
    for (rollout, field, use_) in [
        ("scheduling: {policy: LongestFirst}", "rollout.scheduling.policy `LongestFirst`", "Fcfs"),
        ("placement: {policy: Makespan}", "rollout.placement.policy `Makespan`", "LeastLoaded"),
        ("shaping: {type: Darts, maxOversample: 9}", "rollout.shaping.type `Darts`", "None"),
        ("shaping: {type: DynamicK, maxOversample: 9}", "rollout.shaping.type `DynamicK`", "None"),
        ("lengthCap: {percentile: 99}", "rollout.lengthCap `percentile`", "tokens"),
    ] {
        assert_eq!(said(rollout), [format!("spec.{field} {instead} {use_}")]);
    }
    assert_eq!(said("lengthCap: {tokens: 9}"), [""; 0]);
}

#[test]
fn what_is_invalid_is_told_from_what_is_not_built() {
    let named = named(&[fixtures::pool("h20", "h20", 8)]);
    let mut job = fixtures::job(&fixtures::spec(LARGE, ""));
    job.spec.rollout.group_size = 0;
    assert_eq!(reasons_of(&job, &named), [reasons::INVALID_SPEC]);
    let two = "{adaptive: {pools: [h20], gpus: 1, degrees: [1]}}";
    let apart = "  disaggregation: {prefillPool: h20, decodePool: h20, ratio: '1:1'}\n";
    let job = fixtures::job(&fixtures::spec(two, apart));
    assert_eq!(reasons_of(&job, &named), [reasons::INVALID_SPEC]);
}

#[test]
fn the_samples_ask_for_nothing_in_vain() {
    let samples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/samples");
    let mut dirs = vec![samples.clone()];
    dirs.extend(std::fs::read_dir(&samples).unwrap().map(|entry| entry.unwrap().path()));
    let mut jobs = 0;
    for dir in dirs.iter().filter(|path| path.is_dir()) {
        for manifest in rollwright_crds::parse::directory(dir).unwrap() {
            let rollwright_crds::Manifest::RolloutJob(job) = manifest else { continue };
            jobs += 1;
            assert_eq!(job.spec.unavailable(), [], "{}", job.metadata.name.unwrap());
        }
    }
    assert!(jobs >= 5, "{jobs}");
}
