use super::*;
use crate::golden;
use crate::job::fixtures;
use kube::Resource as _;
use rollwright_crds::{Manifest, RolloutJob, parse};

fn job() -> RolloutJob {
    fixtures::job(&fixtures::spec(
        "{fixed: {groups: [{pool: h800, degree: 2, workers: 4}, {pool: h20, degree: 1, workers: 8}]}}",
        "  hardwareAffinity: {default: [h800, h20]}\n  actionQueue: {name: tools, namespace: \
         shared}\n  rewardServices: [{name: judge}]\n",
    ))
}

fn settings(storage: Storage) -> Settings {
    Settings {
        namespace: "rollwright".into(),
        image: "rollwright/rollwright:v1".into(),
        image_pull_policy: "IfNotPresent".into(),
        reservation_image: None,
        reservation_priority_class: Some("reservations".to_owned()),
        agent_requests: crate::agents::AgentRequests::default(),
        metrics_secret: "rollwright-metrics".to_owned(),
        storage,
    }
}

fn built(job: &RolloutJob, storage: Storage, metrics: bool) -> Objects {
    with(job, storage, metrics, |facts| build(facts).unwrap())
}

fn with<T>(
    job: &RolloutJob,
    storage: Storage,
    metrics: bool,
    built: impl FnOnce(&Facts<'_>) -> T,
) -> T {
    let owner = job.controller_owner_ref(&()).unwrap();
    let judge = fixtures::reward(
        "judge",
        "{serverless: {url: 'https://judge.example.com/score', authSecret: {name: judge, key: \
         token}}}",
    );
    built(&Facts {
        namespace: "research",
        job: "math",
        owner: &owner,
        spec: &job.spec,
        pools: &[fixtures::pool("h20", "h20", 8), fixtures::pool("h800", "h800", 8)],
        rewards: &[judge],
        queues: &[],
        queue_pools: &[],
        issuer: &Issuer { url: "https://kubernetes.default.svc".into(), jwks: "{}".into() },
        api_key: b"secret\n",
        metrics_token: metrics.then_some(b"scrape"),
        settings: &settings(storage),
    })
}

#[test]
fn what_is_built() {
    let objects = built(&job(), Storage::Class("fast".into()), true);
    golden::check("job", "gateway-claim", &objects.claim.unwrap());
    golden::check("job", "gateway-config", &objects.config);
    let identity = with(&job(), Storage::Ephemeral, true, identity);
    golden::check("job", "gateway-identity", &identity.config);
    golden::check("job", "gateway-secrets", &[identity.keys, identity.metrics.unwrap()]);
    golden::check("job", "gateway-service", &objects.service);
    golden::check("job", "gateway-fence", &objects.fence);
    golden::check("job", "gateway-stateful-set", &objects.stateful_set);
}

#[test]
fn without_metrics_and_storage() {
    let objects = built(&job(), Storage::Ephemeral, false);
    assert!(objects.claim.is_none());
    assert_eq!(with(&job(), Storage::Ephemeral, false, identity).metrics, None);
    let args = args(&objects.stateful_set);
    assert!(!args.iter().any(|arg| arg.contains("metrics")), "{args:?}");
}

fn args(set: &StatefulSet) -> Vec<String> {
    let pod = set.spec.clone().unwrap().template.spec.unwrap();
    pod.containers[0].args.clone().unwrap()
}

fn hash(objects: &Objects) -> String {
    let template = objects.stateful_set.spec.clone().unwrap().template;
    template.metadata.unwrap().annotations.unwrap()[labels::CONFIG_HASH].clone()
}

#[test]
fn the_manifests_are_such_that_the_gateway_takes_them() {
    let objects = built(&job(), Storage::Ephemeral, false);
    let text = &objects.config.data.unwrap()[manifests::FILE];
    let found = parse::documents("config", text).unwrap();
    let kinds: Vec<&str> = found.iter().map(Manifest::kind).collect();
    assert_eq!(kinds, ["RolloutJob", "RewardService", "ResourcePool"]);
    assert!(rollwright_crds::rules::references(&found).is_empty());
}

#[test]
fn workers_priority_and_suspension_restart_no_gateway() {
    let before = hash(&built(&job(), Storage::Ephemeral, false));
    let mut more = job();
    let fixed = more.spec.allocation.fixed.as_mut().unwrap();
    fixed.groups.remove(1);
    fixed.groups[0].workers = 40;
    fixed.groups[0].degree = 8;
    more.spec.allocation.min_serving_percent = 80;
    more.spec.priority = 5;
    more.spec.suspend = true;
    more.spec.engine.image = "another".into();
    assert_eq!(before, hash(&built(&more, Storage::Ephemeral, false)));
    let mut batch = job();
    batch.spec.rollout.batch_groups = 5;
    assert_ne!(before, hash(&built(&batch, Storage::Ephemeral, false)));
}

#[test]
fn affinities_are_found_from_all_pools() {
    let mut auto = job();
    auto.spec.hardware_affinity.clear();
    auto.spec.auto_affinity = true;
    let text = &built(&auto, Storage::Ephemeral, false).config.data.unwrap()[manifests::FILE];
    let found = parse::documents("config", text).unwrap();
    let pools: Vec<&str> =
        found.iter().filter(|of| of.kind() == "ResourcePool").map(Manifest::name).collect();
    assert_eq!(pools, ["h20", "h800"]);
}

#[test]
fn the_key_stands_after_the_jobs_name() {
    let identity = with(&job(), Storage::Ephemeral, false, identity);
    assert_eq!(identity.keys.data.unwrap()["api-keys"].0, b"math:secret\n");
}

#[test]
fn an_empty_api_key_is_none() {
    use crate::job::apply::key_of;
    let secret = |key: &[u8]| {
        let mut secret = k8s_openapi::api::core::v1::Secret::default();
        let key = k8s_openapi::ByteString(key.to_vec());
        secret.data = Some([(API_KEY.to_owned(), key)].into());
        secret
    };
    assert_eq!(key_of(&secret(b"k")).as_deref(), Some(&b"k"[..]));
    assert_eq!(key_of(&secret(b"")), None);
    assert_eq!(key_of(&k8s_openapi::api::core::v1::Secret::default()), None);
}
