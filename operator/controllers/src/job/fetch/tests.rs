use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::*;
use crate::job::fixtures;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A worker of a job, with this node and these GPUs.
fn worker_of(job: &str, called: &str) -> Pod {
    let text = format!(
        "metadata: {{name: {called}, namespace: research, labels: {{app.kubernetes.io/component: \
         worker, app.kubernetes.io/instance: {job}, rollwright.dev/pool: h20}}}}\nspec: {{nodeName: \
         n0, containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: '2'}}}}}}]}}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

/// Metadata with these labels and the uid of a controlling owner.
fn meta(labels: &str, owner: &str) -> ObjectMeta {
    let text = format!(
        "name: w\nlabels: {{app.kubernetes.io/component: {labels}}}\nownerReferences: [{{apiVersion: \
         v1, kind: K, name: o, uid: {owner}, controller: true}}]\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

#[test]
fn a_pod_is_a_worker_by_its_owner_and_not_by_its_labels() {
    let set: DynamicObject = serde_yaml::from_str(
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: large}\n",
    )
    .unwrap();
    let ours = |meta: &ObjectMeta| is_worker(meta, "job", std::slice::from_ref(&set));
    assert!(ours(&meta("worker", "job")));
    assert!(!ours(&meta("worker", "another")), "a job of the same name before this one, or a copy");
    assert!(!ours(&meta("gateway", "job")));
    let mut copy = meta("worker", "job");
    copy.owner_references = None;
    assert!(!ours(&copy), "`kubectl debug --copy-to`");
    let of_set = |name: &str| {
        let more = format!("worker, leaderworkerset.sigs.k8s.io/name: {name}");
        meta(&more, "a StatefulSet's")
    };
    assert!(ours(&of_set("large")));
    assert!(!ours(&of_set("somebody-elses")));
}

/// A job with `wanted` workers of degree 2 of which `ready` serve.
fn job(called: &str, priority: i32, created: &str, wanted: u32, ready: u32) -> Arc<RolloutJob> {
    let mut job = fixtures::job(&fixtures::spec(
        "{fixed: {groups: [{pool: h20, degree: 2, workers: 4}]}}",
        &format!("  priority: {priority}\n"),
    ));
    job.metadata.name = Some(called.to_owned());
    job.metadata.creation_timestamp = serde_yaml::from_str(created).unwrap();
    job.status = serde_yaml::from_str(&format!(
        "{{workers: [{{pool: h20, degree: 2, wanted: {wanted}, ready: {ready}}}]}}"
    ))
    .unwrap();
    Arc::new(job)
}

#[test]
fn jobs_before_this_one_come_first() {
    let promised = |own: &RolloutJob, jobs: &[Arc<RolloutJob>], pods: &[Pod]| {
        let index = Index::default();
        for pod in pods {
            index.pod(pod, false);
        }
        let pool = Pool { class: name("h20"), gpus_per_node: 8, promised: 0 };
        let mut pools = BTreeMap::from([(name("h20"), pool)]);
        let waiting = jobs.iter().filter(|job| waits(job)).cloned().collect::<Vec<_>>();
        promise(&mut pools, own, &waiting, &index);
        pools[&name("h20")].promised
    };
    let own = job("own", 0, "2026-01-02T00:00:00Z", 4, 0);
    let urgent = job("urgent", 5, "2026-01-03T00:00:00Z", 4, 1);
    let older = job("older", 0, "2026-01-01T00:00:00Z", 1, 0);
    let younger = job("younger", 0, "2026-01-04T00:00:00Z", 9, 0);
    let done = job("done", 9, "2026-01-01T00:00:00Z", 3, 3);
    let all = [&own, &urgent, &older, &younger, &done].map(Arc::clone);
    assert_eq!(promised(&own, &all, &[]), 8 + 2);
    let pods = [worker_of("urgent", "a"), worker_of("urgent", "b"), worker_of("older", "c")];
    assert_eq!(promised(&own, &all, &pods), 4);
    assert_eq!(promised(&urgent, &all, &[]), 0);
    let mut suspended = RolloutJob::clone(&urgent);
    suspended.spec.suspend = true;
    assert_eq!(promised(&own, &[Arc::new(suspended)], &[]), 0);
}

#[test]
fn a_gateway_is_where_its_pod_runs() {
    let at = |status: &str| {
        let pod: Pod = serde_yaml::from_str(&format!("metadata: {{}}\nstatus: {status}")).unwrap();
        address(&pod)
    };
    assert_eq!(at("{phase: Running, podIP: 10.0.0.7}").as_deref(), Some("10.0.0.7:9470"));
    assert_eq!(at("{phase: Running, podIP: 'fd00::7'}").as_deref(), Some("[fd00::7]:9470"));
    assert_eq!(at("{phase: Pending, podIP: 10.0.0.7}"), None);
}

#[test]
fn the_key_of_an_earlier_job_of_the_same_name_is_not_taken() {
    let mut job = RolloutJob::clone(&job("math", 0, "2026-01-01T00:00:00Z", 1, 0));
    job.metadata.uid = Some("new".to_owned());
    let owned = |kind: &str, uid: &str| ObjectMeta {
        owner_references: Some(vec![OwnerReference {
            kind: kind.to_owned(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        }]),
        ..ObjectMeta::default()
    };
    assert!(is_of_another(&owned("RolloutJob", "old"), &job));
    assert!(!is_of_another(&owned("RolloutJob", "new"), &job));
    assert!(!is_of_another(&owned("Other", "old"), &job), "a user's own");
    assert!(!is_of_another(&ObjectMeta::default(), &job), "a user's own");
}
