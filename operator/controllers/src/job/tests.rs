//! Passes over one job against a fake API server.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::runtime::watcher::Event;
use serde_json::json;

use super::*;
use crate::fake_api::FakeApi;
use crate::identity::Issuer;
use crate::settings::{Settings, Storage};

const SET: &str = "/statefulsets/math-gateway";
const CLAIM: &str = "/persistentvolumeclaims/math-gateway";

fn job(more: &str) -> Arc<RolloutJob> {
    let spec = fixtures::spec("{fixed: {groups: [{pool: h20, degree: 2, workers: 2}]}}", more);
    Arc::new(fixtures::job(&spec))
}

/// An API server that holds the job, with its pool in the cache.
async fn api(job: &RolloutJob) -> FakeApi {
    let settings = Settings {
        namespace: "rollwright".into(),
        image: "rollwright/rollwright:v1".into(),
        image_pull_policy: "IfNotPresent".into(),
        reservation_image: None,
        reservation_priority_class: None,
        agent_requests: crate::agents::AgentRequests::default(),
        metrics_secret: "rollwright-metrics".into(),
        storage: Storage::DefaultClass,
    };
    let issuer =
        Issuer { url: "https://kubernetes.default.svc".into(), jwks: r#"{"keys":[]}"#.into() };
    let mut api = FakeApi::start(settings, Some(issuer)).await;
    api.hold(job);
    api.watches.pools.apply_watcher_event(&Event::Apply(fixtures::pool("h20", "h20", 8)));
    api
}

async fn look(job: &Arc<RolloutJob>, api: &FakeApi) {
    RolloutJobs::reconcile(Arc::clone(job), Arc::clone(&api.context)).await.unwrap();
}

/// The gateway's StatefulSet, made for the owner of this uid.
fn set(owner: &str) -> StatefulSet {
    let set = json!({"metadata": {"name": "math-gateway", "namespace": "research", "uid": "set",
        "generation": 1, "ownerReferences": [{"apiVersion": "rollwright.dev/v1alpha1",
        "kind": "RolloutJob", "name": "math", "uid": owner, "controller": true}]}});
    serde_json::from_value(set).unwrap()
}

/// The gateway's pod, which runs.
fn gateway_pod() -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "math-gateway-0",
        "namespace": "research", "labels": {"app.kubernetes.io/component": "gateway",
        "app.kubernetes.io/instance": "math"}, "ownerReferences": [{"apiVersion": "apps/v1",
        "kind": "StatefulSet", "name": "math-gateway", "uid": "set", "controller": true}]},
        // Nobody listens there.
        "status": {"phase": "Running", "podIP": "127.0.0.1"}}))
    .unwrap()
}

#[tokio::test]
async fn the_deployment_of_an_earlier_version_goes_before_the_gateway_comes() {
    let job = job("");
    let mut api = api(&job).await;
    let mut former =
        Deployment { metadata: set(&job.uid().unwrap()).metadata, ..Deployment::default() };
    api.watches.deployments.apply_watcher_event(&Event::Apply(former.clone()));
    look(&job, &api).await;
    assert_eq!(api.deleted("/deployments/math-gateway"), 1);
    assert!(api.patched(SET).is_empty());
    // Its pods end.
    former.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    api.watches.deployments.apply_watcher_event(&Event::Apply(former.clone()));
    look(&job, &api).await;
    assert!(api.patched(SET).is_empty());
    api.watches.deployments.apply_watcher_event(&Event::Delete(former));
    look(&job, &api).await;
    assert_eq!((api.patched(SET).len(), api.deleted("/deployments/math-gateway")), (1, 1));
}

#[tokio::test]
async fn somebody_elses_deployment_of_that_name_is_none_of_ours() {
    let job = job("");
    let mut api = api(&job).await;
    let other = Deployment { metadata: set("another").metadata, ..Deployment::default() };
    api.watches.deployments.apply_watcher_event(&Event::Apply(other));
    look(&job, &api).await;
    assert_eq!((api.patched(SET).len(), api.deleted("/deployments/math-gateway")), (1, 0));
}

#[tokio::test]
async fn a_claim_that_was_deleted_is_made_again_unless_a_pod_has_it() {
    let job = job("");
    let mut api = api(&job).await;
    look(&job, &api).await;
    look(&job, &api).await;
    assert_eq!(api.patched(CLAIM).len(), 2, "no pod runs: it may be what that waits for");
    let pod = gateway_pod();
    api.watches.stateful_sets.apply_watcher_event(&Event::Apply(set(&job.uid().unwrap())));
    api.watches.pods.apply_watcher_event(&Event::Apply(pod.clone()));
    api.context.stores.index.pod(&pod, false);
    look(&job, &api).await;
    assert_eq!(api.patched(CLAIM).len(), 2);
}

#[tokio::test]
async fn the_gateway_of_a_blocked_job_keeps_knowing_its_callers() {
    let job = job("  actionQueue: {name: gone}\n");
    let mut api = api(&job).await;
    look(&job, &api).await;
    assert!(
        api.patched("/math-gateway-identity").is_empty(),
        "one that never was is not half made"
    );
    api.watches.stateful_sets.apply_watcher_event(&Event::Apply(set(&job.uid().unwrap())));
    look(&job, &api).await;
    let keys = api.patched("/math-gateway-identity");
    assert_eq!(keys[0]["data"]["jwks.json"], r#"{"keys":[]}"#);
    assert_eq!(api.patched("/math-gateway-keys").len(), 1);
    assert!(api.patched(SET).is_empty(), "what runs goes on as it was");
    let told = api.patched("/math/status");
    assert!(told[0].to_string().contains(rollwright_crds::conditions::reasons::QUEUE_NOT_FOUND));
}

#[tokio::test]
async fn a_refused_request_is_told_of() {
    let job = job("");
    let api = api(&job).await;
    api.refuse(SET, 422);
    let failed = RolloutJobs::reconcile(Arc::clone(&job), Arc::clone(&api.context)).await;
    assert_eq!(failed.unwrap_err().category(), "ApiRefused");
    let told = api.patched("/math/status").pop().unwrap();
    let ready = &told["status"]["conditions"][0];
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("ApiRefused")));
    api.refuse(SET, 500);
    let told = api.patched("/math/status").len();
    RolloutJobs::reconcile(Arc::clone(&job), Arc::clone(&api.context)).await.unwrap_err();
    assert_eq!(api.patched("/math/status").len(), told, "it may do next time");
}

/// Nodes with room, so that workers are made.
fn with_a_node(api: &mut FakeApi) {
    let stores = &api.context.stores;
    let node: k8s_openapi::api::core::v1::Node = serde_json::from_value(json!({
        "metadata": {"name": "n0", "labels": {"gpu": "h20"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}]}}))
    .unwrap();
    let pool = fixtures::pool("h20", "h20", 8);
    stores.index.follow(&Change { what: What::Pool(&pool), gone: false }, stores);
    stores.index.follow(&Change { what: What::Node(&node), gone: false }, stores);
    api.watches.nodes.apply_watcher_event(&Event::Apply(node));
}

#[tokio::test]
async fn workers_that_a_quota_refuses_are_told_of_until_they_are_made() {
    let job = job("");
    let mut api = api(&job).await;
    with_a_node(&mut api);
    api.refuse("/pods", 403);
    let failed = RolloutJobs::reconcile(Arc::clone(&job), Arc::clone(&api.context)).await;
    assert!(matches!(failed, Err(JobError::Workers(_))), "{failed:?}");
    let said = |api: &FakeApi| {
        let told = api.patched("/math/status").pop().unwrap();
        let all = told["status"]["conditions"].as_array().unwrap().clone();
        let found = all.iter().find(|of| of["type"] == "Progressing").unwrap();
        (found["reason"].clone(), found["message"].clone())
    };
    assert_ne!(said(&api).0, json!("ApiRefused"), "it is said before it is tried");
    // What was refused is not booked: the next try is of the same GPUs.
    assert_eq!(api.context.stores.index.books(Instant::now()).booked().count(), 0);
    RolloutJobs::reconcile(Arc::clone(&job), Arc::clone(&api.context)).await.unwrap_err();
    let message = "the API server refuses a worker's pod: the fake API server refuses";
    assert_eq!(said(&api), (json!("ApiRefused"), json!(message)));
    api.refuse("/nothing", 403);
    look(&job, &api).await;
    let booked = api.context.stores.index.books(Instant::now()).booked().count();
    assert_eq!(booked, 2, "they are made, and not shown yet");
    // As long as they are not shown the job is left alone.
    let told = api.patched("/math/status").len();
    look(&job, &api).await;
    assert_eq!(api.patched("/math/status").len(), told);
}

#[tokio::test]
async fn a_new_key_is_handed_to_the_gateway_that_runs() {
    const POD: &str = "/pods/math-gateway-0";
    let job = job("");
    let mut api = api(&job).await;
    look(&job, &api).await;
    assert!(api.patched(POD).is_empty(), "there is none yet");
    let pod = gateway_pod();
    api.watches.stateful_sets.apply_watcher_event(&Event::Apply(set(&job.uid().unwrap())));
    api.watches.pods.apply_watcher_event(&Event::Apply(pod.clone()));
    api.context.stores.index.pod(&pod, false);
    look(&job, &api).await;
    assert!(api.patched(POD).is_empty(), "it read the same at its start");
    let mut changed = k8s_openapi::api::core::v1::Secret::default();
    changed.metadata.name = Some(gateway::api_key_name("math"));
    changed.metadata.namespace = Some("research".into());
    changed.data =
        Some([(gateway::API_KEY.to_owned(), k8s_openapi::ByteString(b"new".to_vec()))].into());
    api.context.stores.secrets.wrote(changed);
    look(&job, &api).await;
    assert_eq!(api.patched("/math-gateway-keys").len(), 2);
    assert_eq!(api.patched(POD).len(), 1);
}
