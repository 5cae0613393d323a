use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::Event;
use rollwright_crds::{ActionQueue, ResourcePool, RewardService};
use serde_json::{Value, json};

use super::certificates::Certificates;
use super::fetch::Seen;
use super::validate::validate;
use super::*;
use crate::fake_api::FakeApi;
use crate::golden;
use crate::identity::Issuer;
use crate::observed::{NodeSnapshot, QueueSnapshot};
use crate::resources::{Applied, Prepared};
use crate::settings::{Settings, Storage};

fn queue(name: &str, spec: &Value) -> ActionQueue {
    serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "ActionQueue",
        "metadata": {"name": name, "namespace": "research", "uid": "0-1", "generation": 2,
            "labels": {"team": "x"}, "resourceVersion": "7"},
        "spec": spec,
    }))
    .unwrap()
}

fn tools() -> ActionQueue {
    queue(
        "tools",
        &json!({
            "pools": ["cpu", "api"],
            "policy": {"type": "FixedDop", "dop": 1},
            "profiles": [{"name": "default", "quota": {"judge": 1}}],
        }),
    )
}

fn pool(name: &str, spec: &Value, bound_to: Option<&str>) -> (String, Arc<ResourcePool>) {
    let mut pool = json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "ResourcePool",
        "metadata": {"name": name, "resourceVersion": "9"}, "spec": spec,
    });
    if let Some(queue) = bound_to {
        pool["status"] = json!({"boundTo":
            {"kind": "ActionQueue", "namespace": "research", "name": queue}});
    }
    (name.to_owned(), Arc::new(serde_json::from_value(pool).unwrap()))
}

fn pools() -> BTreeMap<String, Arc<ResourcePool>> {
    let quota = json!({"quota": {"limits": [{"name": "judge", "concurrency": 4}]}});
    let cpu = json!({"cpu": {"nodeSelector": {"role": "sandbox"}, "reservedCores": 1}});
    [pool("cpu", &cpu, Some("tools")), pool("api", &quota, Some("tools"))].into()
}

fn issuer() -> Issuer {
    Issuer { url: "https://kubernetes.default.svc".to_owned(), jwks: r#"{"keys":[]}"#.to_owned() }
}

fn seen(pools: BTreeMap<String, Arc<ResourcePool>>) -> Seen {
    Seen {
        pools,
        issuer: Some(Arc::new(issuer())),
        metrics_token: Some(b"token".to_vec()),
        ..Seen::default()
    }
}

fn settings(storage: Storage) -> Settings {
    Settings {
        namespace: "rollwright".to_owned(),
        image: "rollwright:1".to_owned(),
        image_pull_policy: "IfNotPresent".to_owned(),
        reservation_image: None,
        reservation_priority_class: Some("reservations".to_owned()),
        agent_requests: crate::agents::AgentRequests::default(),
        metrics_secret: "rollwright-metrics".to_owned(),
        storage,
    }
}

fn built(seen: &Seen, storage: Storage) -> build::QueueResources<Prepared> {
    let queue = tools();
    let validated = validate(&queue, seen).unwrap();
    let certificates = Certificates::current(
        "research",
        "tools",
        seen,
        Timestamp::from_second(1_800_000_000).unwrap(),
    )
    .unwrap();
    build::build(&validated, &certificates, &settings(storage)).unwrap()
}

#[test]
fn what_is_built() {
    let built = built(&seen(pools()), Storage::Class("fast".to_owned()));
    golden::check("queue", "config", &built.config);
    golden::check("queue", "service", &built.service);
    golden::check("queue", "network-policy", &built.network_policy);
    golden::check("queue", "stateful-set", &built.stateful_set);
    golden::check("queue", "metrics", &built.metrics);
    let keys = |secret: &k8s_openapi::api::core::v1::Secret| {
        secret.data.iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    let identity = &built.identity;
    golden::check("queue", "keys", identity.keys.as_ref().unwrap());
    assert_eq!(keys(&identity.authority), ["state.json", "tls.crt", "tls.key"]);
    assert_eq!(keys(&identity.server), ["ca.crt", "tls.crt", "tls.key"]);
    assert_eq!(keys(&identity.agents), ["ca.crt", "tls.crt", "tls.key"]);
}

/// A model on GPUs.
fn judge(name: &str, queue: &str) -> (String, Arc<RewardService>) {
    let service = serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "RewardService",
        "metadata": {"name": name, "namespace": "research", "resourceVersion": "9"},
        "spec": {"gpu": {
            "queue": queue, "pool": "judges", "model": {"path": "m"},
            "engine": {"type": "vLLM", "image": "i"}, "ask": "Pooling", "degrees": [1],
            "footprints": [{"degree": 1, "device": "40Gi"}],
        }},
    }));
    (name.to_owned(), Arc::new(service.unwrap()))
}

/// One that would end the queue is left out, and the others go on.
#[tokio::test]
async fn a_queue_gets_the_models_that_fit() {
    let mut api = FakeApi::start(settings(Storage::Ephemeral), Some(issuer())).await;
    let gpu = json!({"gpu": {"class": "h20", "gpusPerNode": 8,
        "profile": {"tflops": 148, "hbm": "96Gi", "hbmTbps": 4}}});
    let (_, pool) = pool("judges", &gpu, Some("tools"));
    let queue = queue("tools", &json!({"pools": ["judges"]}));
    api.watches.pools.apply_watcher_event(&Event::Apply(ResourcePool::clone(&pool)));
    api.watches.queues.apply_watcher_event(&Event::Apply(queue.clone()));
    let mut large = RewardService::clone(&judge("large", "tools").1);
    large.spec.gpu.as_mut().unwrap().footprints[0].device = "97Gi".parse().unwrap();
    let services = [
        RewardService::clone(&judge("judge", "tools").1),
        RewardService::clone(&judge("elsewhere", "other").1),
        large,
    ];
    for service in services {
        api.watches.rewards.apply_watcher_event(&Event::Apply(service));
    }
    let seen = fetch::seen(&queue, &api.context).await.unwrap();
    assert_eq!(seen.rewards.into_keys().collect::<Vec<_>>(), ["judge"]);
}

#[test]
fn the_manifests_are_what_the_queue_reads() {
    let with_judge = Seen { rewards: [judge("judge", "tools")].into(), ..seen(pools()) };
    let built = built(&with_judge, Storage::Ephemeral);
    let manifests = &built.config.data.as_ref().unwrap()["manifests.yaml"];
    let read = rollwright_crds::parse::documents("manifests.yaml", manifests).unwrap();
    let kinds: Vec<&str> = read.iter().map(rollwright_crds::Manifest::kind).collect();
    assert_eq!(kinds, ["ActionQueue", "ResourcePool", "ResourcePool", "RewardService"]);
    let volumes = &built.stateful_set.spec.as_ref().unwrap().volume_claim_templates;
    assert!(volumes.is_none(), "an emptyDir needs no claim");
}

/// Claims of a StatefulSet cannot be changed: other settings of the release are for new queues.
#[test]
fn the_claims_that_are_there_are_applied_again() {
    let before = built(&seen(pools()), Storage::Class("fast".to_owned())).stateful_set;
    let claims = before.spec.as_ref().unwrap().volume_claim_templates.clone().unwrap();
    let with = |claims: &[_]| Seen { claims: Some(claims.to_vec()), ..seen(pools()) };
    for other in [Storage::Class("slow".to_owned()), Storage::DefaultClass, Storage::Ephemeral] {
        assert_eq!(built(&with(&claims), other).stateful_set, before);
    }
    let ephemeral = built(&seen(pools()), Storage::Ephemeral).stateful_set;
    assert_eq!(built(&with(&[]), Storage::DefaultClass).stateful_set, ephemeral);
}

#[test]
fn certificates_that_are_there_are_kept_until_they_are_due() {
    let seen_first = seen(pools());
    let first = built(&seen_first, Storage::Ephemeral);
    let with = |built: &build::QueueResources<Prepared>| Seen {
        authority: Some(Arc::new(built.identity.authority.clone())),
        server: Some(Arc::new(built.identity.server.clone())),
        agents: Some(Arc::new(built.identity.agents.clone())),
        ..seen(pools())
    };
    let at = |days: i64| Timestamp::from_second(1_800_000_000 + days * 24 * 3600).unwrap();
    let current =
        |days| Certificates::current("research", "tools", &with(&first), at(days)).unwrap();
    let kept = current(19);
    assert!(!kept.renewed);
    assert_eq!(kept.authority.write(), *first.identity.authority.data.as_ref().unwrap());
    let renewed = current(21);
    assert!(renewed.renewed);
    assert_eq!(renewed.authority.write(), *first.identity.authority.data.as_ref().unwrap());
    assert_eq!(kept.due(), renewed.due() - 21 * 24 * 3600);

    let mut damaged = with(&first);
    let mut authority = first.identity.authority.clone();
    authority.data.as_mut().unwrap().remove("tls.key");
    damaged.authority = Some(Arc::new(authority));
    let current = Certificates::current("research", "tools", &damaged, at(1)).unwrap();
    assert!(current.renewed);
}

/// The reason why a queue cannot be built.
fn obstacle(queue: &ActionQueue, seen: &Seen) -> &'static str {
    validate(queue, seen).unwrap_err().reason
}

#[test]
fn what_a_queue_names_must_be_there_and_its_own() {
    let good = pools();
    let without = |name: &str| {
        let mut pools = good.clone();
        pools.remove(name);
        pools
    };
    let with = |(name, pool): (String, Arc<ResourcePool>)| {
        let mut pools = good.clone();
        pools.insert(name, pool);
        seen(pools)
    };
    let cpu = json!({"cpu": {}});
    let queue = tools();
    assert!(validate(&queue, &seen(good.clone())).is_ok());
    assert_eq!(obstacle(&queue, &seen(without("cpu"))), reasons::POOL_NOT_FOUND);
    assert_eq!(obstacle(&queue, &with(pool("cpu", &cpu, None))), reasons::WAITING_FOR_POOL);
    let others = with(pool("cpu", &cpu, Some("other")));
    assert_eq!(obstacle(&queue, &others), reasons::OWNED_BY_ANOTHER);
    let closed = json!({"cpu": {}, "allowedNamespaces": ["elsewhere"]});
    let closed = with(pool("cpu", &closed, Some("tools")));
    assert_eq!(obstacle(&queue, &closed), reasons::NAMESPACE_NOT_ALLOWED);
    let no_limit = with(pool("api", &cpu, Some("tools")));
    assert_eq!(obstacle(&queue, &no_limit), reasons::QUOTA_AMBIGUOUS);
    let keyless = Seen { issuer: None, ..seen(good.clone()) };
    assert_eq!(obstacle(&queue, &keyless), reasons::WAITING_FOR_KEYS);
    let open = Seen { metrics_token: None, ..seen(good) };
    assert_eq!(obstacle(&queue, &open), reasons::SECRET_NOT_FOUND);
}

#[test]
fn a_name_that_no_service_can_have_is_refused() {
    let spec = json!({"pools": ["cpu"]});
    for name in ["1st", "a.b", &"a".repeat(47)] {
        assert_eq!(obstacle(&queue(name, &spec), &seen(pools())), reasons::INVALID_SPEC, "{name}");
    }
}

#[test]
fn a_policy_that_the_queue_would_refuse_is_not_built() {
    let policy = json!({"type": "Static", "cores": 1, "ordering": "TrajectoryAware"});
    let said = "spec.policy.ordering `TrajectoryAware` is there only with type Elastic: use Fcfs";
    let queue = queue("tools", &json!({"pools": ["cpu", "api"], "policy": policy}));
    let obstacle = validate(&queue, &seen(pools())).unwrap_err();
    assert_eq!((obstacle.reason, &*obstacle.message), (reasons::UNSUPPORTED, said));
}

/// `Ready` and `AgentsConnected`: status and reason.
fn conditions_of(seen: &Seen, nodes: u32) -> Vec<(bool, &'static str)> {
    let prepared = built(seen, Storage::Ephemeral);
    let applied = build::QueueResources {
        identity: prepared.identity,
        metrics: prepared.metrics,
        config: prepared.config,
        service: prepared.service,
        network_policy: prepared.network_policy,
        stateful_set: prepared.stateful_set,
        state: Applied { written: 0 },
    };
    let wished = status::conditions(&applied, seen, nodes);
    let shown = [types::READY, types::AGENTS_CONNECTED];
    let of = |kind| wished.iter().find(|wish| wish.kind() == kind).unwrap();
    shown.map(|kind| (of(kind).holds(), of(kind).reason())).to_vec()
}

#[test]
fn a_queue_is_ready_when_it_is_up_and_has_an_agent() {
    let snapshot = |connected: u32| {
        let node =
            |connected, has_cores| NodeSnapshot { connected, has_cores, ..NodeSnapshot::default() };
        // A node of GPUs is linked all the time: it is none of those of cores.
        let nodes = [node(0 < connected, true), node(1 < connected, true), node(true, false)];
        Some(Arc::new(QueueSnapshot { nodes: nodes.into(), ..Default::default() }))
    };
    let with =
        |ready_pods, snapshot| Seen { ready_pods, rolled_out: true, snapshot, ..seen(pools()) };
    let waiting = (false, reasons::WAITING_FOR_PODS);
    let good = (true, reasons::AS_SPECIFIED);
    assert_eq!(conditions_of(&with(None, None), 2), [waiting, waiting]);
    assert_eq!(conditions_of(&with(Some(0), None), 2), [waiting, waiting]);
    let lonely = (false, reasons::AGENTS_DISCONNECTED);
    assert_eq!(conditions_of(&with(Some(1), snapshot(0)), 2), [lonely, lonely]);
    let some = (true, reasons::WAITING_FOR_PODS);
    assert_eq!(conditions_of(&with(Some(1), snapshot(1)), 2), [good, some]);
    assert_eq!(conditions_of(&with(Some(1), snapshot(2)), 2), [good, good]);
    let full = Seen { left_out: 2, ..with(Some(1), snapshot(2)) };
    assert_eq!(conditions_of(&full, 4), [good, (false, reasons::LINKS_FULL)]);
    // It cannot be asked: nothing is said against it.
    let silent = (false, reasons::UNREACHABLE);
    assert_eq!(conditions_of(&with(Some(1), None), 2), [good, silent]);
    assert_eq!(conditions_of(&with(Some(1), None), 0), [good, good]);
}

/// A queue that is up, and whose pool was deleted.
async fn blocked_queue() -> (FakeApi, Arc<ActionQueue>) {
    let mut api = FakeApi::start(settings(Storage::Ephemeral), Some(issuer())).await;
    let set = serde_json::from_value(json!({
        "metadata": {"name": "tools-queue", "namespace": "research", "generation": 1},
        "status": {"replicas": 1, "readyReplicas": 1},
    }));
    api.watches.stateful_sets.apply_watcher_event(&Event::Apply(set.unwrap()));
    let queue = Arc::new(tools());
    api.hold(&*queue);
    (api, queue)
}

#[tokio::test]
async fn a_queue_that_is_blocked_keeps_its_certificates_and_keys_current() {
    let (api, queue) = blocked_queue().await;
    let again = Queues::reconcile(Arc::clone(&queue), Arc::clone(&api.context)).await.unwrap();
    assert_ne!(again, Action::await_change(), "certificates are looked at again");
    let status = &api.patched("/tools/status")[0]["status"];
    assert_eq!(status["conditions"][0]["reason"], reasons::POOL_NOT_FOUND);
    for made in ["tools-queue-ca", "tools-queue-tls", "tools-queue-agent", "tools-queue-keys"] {
        assert_eq!(api.patched(&format!("/{made}")).len(), 1, "{made}");
    }
    assert_eq!(api.patched("/tools-queue-keys")[0]["data"]["jwks.json"], issuer().jwks);
    assert!(api.patched("/tools-queue").is_empty(), "what runs goes on as it was");
    // One that never was is not half made.
    let api = FakeApi::start(settings(Storage::Ephemeral), Some(issuer())).await;
    api.hold(&*queue);
    let again = Queues::reconcile(queue, Arc::clone(&api.context)).await.unwrap();
    assert_eq!(again, Action::await_change());
    assert!(api.patched("/tools-queue-tls").is_empty());
}

#[tokio::test]
async fn a_refused_request_is_told_of() {
    let (api, queue) = blocked_queue().await;
    api.refuse("/secrets/tools-queue-tls", 422);
    let failed = Queues::reconcile(Arc::clone(&queue), Arc::clone(&api.context)).await;
    assert_eq!(failed.unwrap_err().category(), "ApiRefused");
    let told = api.patched("/tools/status");
    assert_eq!(told.len(), 1, "a pass says one thing, so that the next has nothing to write");
    let ready = &told[0]["status"]["conditions"][0];
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("ApiRefused")));
    assert!(ready["message"].as_str().unwrap().contains("refuses"), "{ready}");
    // Of what may do next time nothing is told.
    let (api, queue) = blocked_queue().await;
    api.refuse("/secrets/tools-queue-tls", 500);
    let failed = Queues::reconcile(queue, Arc::clone(&api.context)).await;
    assert_eq!(failed.unwrap_err().category(), "ApiUnavailable");
    assert_eq!(api.patched("/tools/status"), [json!(null); 0]);
}
