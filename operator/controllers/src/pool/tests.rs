use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::Event;
use rollwright_crds::ResourcePool;
use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::pool::{FreeChunks, Resident, ResourcePoolStatus};
use serde_json::{Value, json};

use super::build::Reservations;
use super::validate::validate;
use super::*;
use crate::agents::AgentRequest;
use crate::fake_api::FakeApi;
use crate::golden;
use crate::observed::{GpuPoolSnapshot, NodeSnapshot, Observed, QueueSnapshot};
use crate::settings::{Settings, Storage};
use crate::startup::Watches;
use crate::trim;

fn settings() -> Settings {
    Settings {
        namespace: "rollwright".to_owned(),
        image: "rollwright:1".to_owned(),
        image_pull_policy: "IfNotPresent".to_owned(),
        reservation_image: None,
        reservation_priority_class: Some("reservations".to_owned()),
        agent_requests: ["host:200m:1Gi", "dind:1:2Gi", "gpu:500m:1Gi"]
            .iter()
            .map(|text| text.parse::<AgentRequest>().unwrap())
            .collect(),
        metrics_secret: "rollwright-metrics".to_owned(),
        storage: Storage::Ephemeral,
    }
}

/// A cluster in memory: caches that a test fills.
struct World {
    watches: Watches,
    stores: Stores,
    observed: Observed,
}

impl World {
    fn new() -> Self {
        let (watches, stores) = Watches::open();
        Self { watches, stores, observed: Observed::default() }
    }

    fn node(&mut self, name: &str, labels: &Value, allocatable: &Value) {
        self.node_that_is(name, labels, allocatable, "True");
    }

    /// `ready` is the status of its condition.
    fn node_that_is(&mut self, name: &str, labels: &Value, allocatable: &Value, ready: &str) {
        let mut node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "status": {
                "capacity": allocatable, "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }))
        .unwrap();
        trim::node(&mut node);
        self.watches.nodes.apply_watcher_event(&Event::Apply(node));
    }

    fn pod(&mut self, pod: &Value) {
        let mut pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        trim::pod(&mut pod);
        self.stores.index.pod(&pod, false);
        self.watches.pods.apply_watcher_event(&Event::Apply(pod));
    }

    /// Somebody else's pod.
    fn stranger(&mut self, name: &str, node: &str, requests: &Value) {
        self.pod(&json!({
            "metadata": {"name": name, "namespace": "web"},
            "spec": {"nodeName": node,
                "containers": [{"name": "c", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"},
        }));
    }

    /// The agent of a node.
    fn agent(&mut self, node: &str, requests: &Value) {
        self.pod(&json!({
            "metadata": {"name": format!("agent-{node}"), "namespace": "rollwright",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet",
                    "name": "rollwright-agent-host", "uid": "ds", "controller": true}]},
            "spec": {"nodeName": node,
                "containers": [{"name": "agent", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"},
        }));
    }

    fn queue(&mut self, name: &str, pools: &Value) {
        let queue = serde_json::from_value(json!({
            "apiVersion": "rollwright.dev/v1alpha1", "kind": "ActionQueue",
            "metadata": {"name": name, "namespace": "research",
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"pools": pools},
        }))
        .unwrap();
        self.watches.queues.apply_watcher_event(&Event::Apply(queue));
    }

    fn pool(&mut self, name: &str, spec: &Value) -> ResourcePool {
        let pool: ResourcePool = serde_json::from_value(json!({
            "apiVersion": "rollwright.dev/v1alpha1", "kind": "ResourcePool",
            "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec,
        }))
        .unwrap();
        self.watches.pools.apply_watcher_event(&Event::Apply(pool.clone()));
        pool
    }

    /// One pass over a pool, without the API server.
    fn pass(&self, pool: &ResourcePool) -> (Reservations, ResourcePoolStatus, Vec<Wish>) {
        let validated = validate(pool).unwrap();
        let seen = fetch::gather(pool, &self.stores, &self.observed, "rollwright");
        let changes = build::reservations(pool, &validated, &seen, &settings());
        let figures = status::figures(pool, &validated, &seen, &changes);
        let wished = status::conditions(&validated, &seen, &changes);
        (changes, figures, wished)
    }
}

fn wish<'a>(wished: &'a [Wish], kind: &str) -> (bool, &'a str) {
    let wish = wished.iter().find(|wish| wish.kind() == kind).unwrap();
    (wish.holds(), wish.reason())
}

fn cpu_world() -> (World, ResourcePool) {
    let mut world = World::new();
    let size = json!({"cpu": "7900m", "memory": "15Gi"});
    world.node("a", &json!({"role": "sandbox"}), &size);
    world.node("b", &json!({"role": "web"}), &size);
    let spec = json!({"cpu": {"nodeSelector": {"role": "sandbox"}, "reservedCores": 1}});
    let pool = world.pool("cpu", &spec);
    (world, pool)
}

/// The pod as the API server would show it.
fn made(changes: &Reservations, phase: &str) -> Value {
    let mut pod = serde_json::to_value(&changes.make[0]).unwrap();
    pod["metadata"]["uid"] = json!("pod-uid");
    pod["spec"]["nodeName"] = json!("a");
    pod["status"] = json!({"phase": phase});
    pod
}

/// Anybody may set labels, and a pool of the same name may have been before.
#[test]
fn a_reservation_is_its_pools_by_uid() {
    let (mut world, pool) = cpu_world();
    world.queue("tools", &json!(["cpu"]));
    let (changes, ..) = world.pass(&pool);
    let good = made(&changes, "Running");
    let with = |at: &str, value: &str| {
        let mut pod = good.clone();
        *pod.pointer_mut(at).unwrap() = json!(value);
        pod
    };
    // Of somebody else: it is not ours to delete, and what it asks for counts.
    world.pod(&with("/metadata/namespace", "web"));
    let (changes, figures, _) = world.pass(&pool);
    assert_eq!((changes.make.len(), changes.delete.len()), (0, 0), "nothing is left of the node");
    assert_eq!(figures.capacity.cores, 0);
    // Of a pool of that name that is gone: its name is free when it is.
    let (mut world, pool) = cpu_world();
    world.queue("tools", &json!(["cpu"]));
    world.pod(&with("/metadata/ownerReferences/0/uid", "gone"));
    let (changes, ..) = world.pass(&pool);
    assert_eq!((changes.make.len(), changes.delete.len()), (0, 0));
    world.pod(&good);
    let (changes, _, wished) = world.pass(&pool);
    assert_eq!((changes.make.len(), changes.delete.len()), (0, 0));
    assert_eq!(wish(&wished, types::READY), (true, reasons::AS_SPECIFIED));
}

#[test]
fn a_queue_has_its_pool_until_it_has_let_go() {
    let (mut world, mut pool) = cpu_world();
    world.queue("tools", &json!(["cpu"]));
    let owner = world.pass(&pool).1.bound_to.unwrap();
    pool.status = Some(ResourcePoolStatus { bound_to: Some(owner.clone()), ..Default::default() });
    world.watches.pools.apply_watcher_event(&Event::Apply(pool.clone()));
    let annotated = |pools: &str| json!({"rollwright.dev/pools": pools});
    let set = |pools: &str| -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"name": "tools-queue",
            "namespace": "research", "annotations": annotated(pools),
            "ownerReferences": [{"apiVersion": "rollwright.dev/v1alpha1", "kind": "ActionQueue",
                "name": "tools", "uid": "0-1"}]}}))
        .unwrap()
    };
    let pod = |pools: &str, phase: &str| {
        json!({
            "metadata": {"name": "tools-queue-0", "namespace": "research",
                "annotations": annotated(pools), "labels": {
                "app.kubernetes.io/managed-by": "rollwright",
                "app.kubernetes.io/component": "queue", "app.kubernetes.io/instance": "tools"}},
            "spec": {"containers": []}, "status": {"phase": phase},
        })
    };
    world.watches.stateful_sets.apply_watcher_event(&Event::Apply(set("api,cpu")));
    world.pod(&pod("api,cpu", "Running"));
    world.queue("other", &json!(["cpu"]));
    world.queue("tools", &json!(["api"]));
    let holder = |world: &World| world.pass(&pool).1.bound_to.unwrap().name;
    assert_eq!(holder(&world), "tools", "its spec cannot be built: it goes on as it was");
    world.watches.stateful_sets.apply_watcher_event(&Event::Apply(set("api")));
    assert_eq!(holder(&world), "tools", "its pod has not ended yet");
    world.pod(&pod("api", "Running"));
    assert_eq!(holder(&world), "other");
    // It is deleted, and its pod ends later.
    world.pod(&pod("cpu", "Running"));
    world.watches.stateful_sets.apply_watcher_event(&Event::Delete(set("api")));
    assert_eq!(holder(&world), "tools");
    let affected = |what: What<'_>| {
        let all = Pools::affected(&Change { what, gone: true }, &world.stores).into_iter();
        all.map(|pool| pool.name).collect::<Vec<_>>()
    };
    assert_eq!(affected(What::Owned("StatefulSet", &set("api").metadata)), ["cpu"]);
    let last: Pod = serde_json::from_value(pod("cpu", "Running")).unwrap();
    assert_eq!(affected(What::Pod(&last)), ["cpu"]);
    world.pod(&pod("cpu", "Succeeded"));
    assert_eq!(holder(&world), "other");
}

/// What is decided follows from what the status said, which must still stand.
#[tokio::test]
async fn a_status_is_written_upon_the_one_that_was_read() {
    let mut api = FakeApi::start(settings(), None).await;
    let (_, mut pool) = cpu_world();
    pool.metadata.resource_version = Some("7".to_owned());
    api.watches.pools.apply_watcher_event(&Event::Apply(pool.clone()));
    api.hold(&pool);
    let pool = Arc::new(pool);
    Pools::reconcile(Arc::clone(&pool), Arc::clone(&api.context)).await.unwrap();
    assert_eq!(api.patched("/cpu/status")[0]["metadata"]["resourceVersion"], "7");
    api.refuse("/cpu/status", 409);
    let again = Pools::reconcile(Arc::clone(&pool), Arc::clone(&api.context)).await.unwrap();
    assert_eq!(again, Action::requeue(AGAIN));
}

#[test]
fn an_unclaimed_pool_reserves_nothing() {
    let (world, pool) = cpu_world();
    let (changes, figures, wished) = world.pass(&pool);
    assert!(changes.make.is_empty());
    assert_eq!((figures.nodes, figures.capacity.cores), (1, 7));
    assert_eq!(wish(&wished, types::BOUND), (false, reasons::NOT_CLAIMED));
    assert_eq!(wish(&wished, types::READY), (true, reasons::AS_SPECIFIED));
}

#[test]
fn a_claimed_pool_reserves_what_others_leave_and_keeps_it() {
    let (mut world, pool) = cpu_world();
    world.queue("tools", &json!(["cpu"]));
    world.stranger("s", "a", &json!({"cpu": "1200m", "memory": "1Gi"}));
    let (changes, _, wished) = world.pass(&pool);
    golden::check("pool", "reservation", &changes.make);
    assert_eq!(wish(&wished, types::READY), (false, reasons::WAITING_FOR_PODS));
    assert_eq!(wish(&wished, types::NODE_NOT_DEDICATED), (true, reasons::OTHER_PODS_ON_NODE));

    world.pod(&made(&changes, "Running"));
    // More strangers do not shrink what sandboxes already live in.
    world.stranger("t", "a", &json!({"cpu": "1"}));
    let (changes, figures, wished) = world.pass(&pool);
    assert_eq!((changes.make.len(), changes.delete.len()), (0, 0));
    assert_eq!((figures.capacity.cores, figures.nodes), (6, 1));
    assert_eq!(wish(&wished, types::READY), (true, reasons::AS_SPECIFIED));
}

#[test]
fn a_reservation_that_others_were_quicker_than_is_made_anew_for_what_they_left() {
    let (mut world, pool) = cpu_world();
    world.queue("tools", &json!(["cpu"]));
    let (changes, ..) = world.pass(&pool);
    let mut pod = made(&changes, "Pending");
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    world.pod(&pod);
    assert_eq!(world.pass(&pool).0.delete.len(), 0, "the scheduler may still place it");
    world.stranger("s", "a", &json!({"cpu": "1200m", "memory": "1Gi"}));
    let (later, ..) = world.pass(&pool);
    assert_eq!((later.delete.len(), later.make.len()), (1, 0), "it would wait for ever");
}

#[test]
fn a_reservation_goes_with_its_claim_its_node_its_settings_and_its_end() {
    let claimed = || {
        let (mut world, pool) = cpu_world();
        world.queue("tools", &json!(["cpu"]));
        let (changes, ..) = world.pass(&pool);
        (world, pool, changes)
    };
    // Ended by itself.
    let (mut world, pool, changes) = claimed();
    world.pod(&made(&changes, "Failed"));
    assert_eq!(world.pass(&pool).0.delete.len(), 1);
    // The pool keeps more back.
    let (mut world, _, changes) = claimed();
    world.pod(&made(&changes, "Running"));
    let spec = json!({"cpu": {"nodeSelector": {"role": "sandbox"}, "reservedCores": 2}});
    let pool = world.pool("cpu", &spec);
    let (later, ..) = world.pass(&pool);
    assert_eq!((later.delete.len(), later.make.len()), (1, 0), "made again when it is gone");
    // The node leaves.
    let (mut world, pool, changes) = claimed();
    world.pod(&made(&changes, "Running"));
    world.node("a", &json!({"role": "web"}), &json!({"cpu": "8", "memory": "15Gi"}));
    let (later, figures, wished) = world.pass(&pool);
    assert_eq!((later.delete.len(), figures.nodes), (1, 0));
    assert_eq!(wish(&wished, types::READY), (false, reasons::NO_NODES));
    // The claim goes.
    let (mut world, pool, changes) = claimed();
    world.pod(&made(&changes, "Running"));
    world.queue("tools", &json!(["another"]));
    assert_eq!(world.pass(&pool).0.delete.len(), 1);
}

#[test]
fn a_node_that_is_not_ready_keeps_its_reservation() {
    for ready in ["False", "Unknown"] {
        let (mut world, pool) = cpu_world();
        world.queue("tools", &json!(["cpu"]));
        let (changes, ..) = world.pass(&pool);
        world.pod(&made(&changes, "Running"));
        let size = json!({"cpu": "7900m", "memory": "15Gi"});
        world.node_that_is("a", &json!({"role": "sandbox"}), &size, ready);
        let (later, figures, _) = world.pass(&pool);
        assert_eq!((later.delete.len(), later.make.len(), figures.nodes), (0, 0, 0));
        // Nobody needs it.
        world.queue("tools", &json!(["another"]));
        assert_eq!(world.pass(&pool).0.delete.len(), 1);
        world.queue("tools", &json!(["cpu"]));
        // The node is gone.
        let gone = Node {
            metadata: kube::core::ObjectMeta { name: Some("a".to_owned()), ..Default::default() },
            ..Node::default()
        };
        world.watches.nodes.apply_watcher_event(&Event::Delete(gone));
        assert_eq!(world.pass(&pool).0.delete.len(), 1);
    }
}

#[test]
fn what_the_pool_keeps_back_is_there_for_the_other_pods() {
    let (mut world, pool) = cpu_world();
    // 7.9 cores: 1 kept back, of which 650m are asked for.
    world.stranger("s", "a", &json!({"cpu": "650m"}));
    assert_eq!(world.pass(&pool).1.capacity.cores, 7);
    // More than that is taken from the sandboxes.
    world.stranger("t", "a", &json!({"cpu": "1"}));
    assert_eq!(world.pass(&pool).1.capacity.cores, 6);
}

/// Else a reservation takes all that is free, and the agent puts out another pod for its room.
#[test]
fn a_reservation_leaves_room_for_the_agent_that_is_not_there_yet() {
    let memory = |world: &World, pool: &ResourcePool| {
        let (changes, ..) = world.pass(pool);
        held(&changes.make[0]).memory
    };
    for (docker, agents) in [("Host", 1_u64 << 30), ("Dind", 2 << 30)] {
        let (mut world, _) = cpu_world();
        let pool = world
            .pool("cpu", &json!({"cpu": {"nodeSelector": {"role": "sandbox"}, "docker": docker}}));
        world.queue("tools", &json!(["cpu"]));
        assert_eq!(memory(&world, &pool), (15 << 30) - agents);
        // It is there: what it asks for counts, and once.
        world.agent("a", &json!({"cpu": "100m", "memory": "3Gi"}));
        assert_eq!(memory(&world, &pool), 12 << 30);
        // Those of other nodes change nothing here.
        world.agent("b", &json!({"cpu": "100m", "memory": "3Gi"}));
        assert_eq!(memory(&world, &pool), 12 << 30);
    }
}

#[test]
fn a_full_node_is_said_so() {
    let (mut world, pool) = cpu_world();
    world.queue("tools", &json!(["cpu"]));
    world.stranger("s", "a", &json!({"cpu": "7"}));
    let (changes, _, wished) = world.pass(&pool);
    assert!(changes.make.is_empty());
    assert_eq!(wish(&wished, types::READY), (false, reasons::NO_CAPACITY));
}

#[test]
fn pools_that_share_nodes_both_say_so_and_the_node_serves_the_older() {
    let (mut world, pool) = cpu_world();
    world.queue("tools", &json!(["cpu", "all"]));
    let all = world.pool("all", &json!({"cpu": {}}));
    let bound = |mut pool: ResourcePool, world: &mut World| {
        pool.status = Some(ResourcePoolStatus {
            bound_to: world.pass(&pool).1.bound_to,
            ..ResourcePoolStatus::default()
        });
        world.watches.pools.apply_watcher_event(&Event::Apply(pool.clone()));
        pool
    };
    let pool = bound(pool, &mut world);
    let all = bound(all, &mut world);
    for pool in [&pool, &all] {
        let (_, _, wished) = world.pass(pool);
        assert_eq!(wish(&wished, types::OVERLAPS), (true, reasons::SHARED_NODES));
    }
    // Of the same age: the first by name.
    assert_eq!(world.pass(&all).1.nodes, 2);
    assert_eq!(world.pass(&pool).1.nodes, 0);
}

#[test]
fn gpus_are_counted_from_what_pods_ask_for() {
    let mut world = World::new();
    let size = json!({"cpu": "64", "memory": "500Gi", "nvidia.com/gpu": "8"});
    for node in ["g1", "g2"] {
        world.node(node, &json!({"gpu": "h800"}), &size);
    }
    world.stranger("w", "g1", &json!({"nvidia.com/gpu": "3"}));
    let pool = world.pool(
        "h800",
        &json!({"gpu": {"nodeSelector": {"gpu": "h800"}, "class": "h800", "gpusPerNode": 8,
            "profile": {"tflops": 989, "hbm": "80Gi", "hbmTbps": 3.35}}}),
    );
    let (_, figures, wished) = world.pass(&pool);
    assert_eq!((figures.capacity.gpus, figures.in_use.gpus), (16, 3));
    let chunks = [(1, 1), (4, 1), (8, 1)].map(|(gpus, count)| FreeChunks { gpus, count });
    assert_eq!(figures.free_chunks, chunks);
    assert_eq!(figures.fragmentation, Some(0.077));
    assert_eq!(wish(&wished, types::READY), (true, reasons::AS_SPECIFIED));
}

/// A node with eight GPUs and 500 Gi, and the pool of them.
fn gpu_world(more: &Value) -> (World, ResourcePool) {
    let mut world = World::new();
    let size = json!({"cpu": "64", "memory": "500Gi", "nvidia.com/gpu": "8"});
    world.node("g1", &json!({"gpu": "h20"}), &size);
    let mut spec = json!({"nodeSelector": {"gpu": "h20"}, "class": "h20", "gpusPerNode": 8,
        "profile": {"tflops": 148, "hbm": "96Gi", "hbmTbps": 4}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let pool = world.pool("judges", &json!({"gpu": spec}));
    world.queue("tools", &json!(["judges"]));
    (world, pool)
}

#[test]
fn a_queues_gpus_are_held_whole() {
    let (mut world, pool) = gpu_world(&json!({"hostMemory": "200Gi"}));
    let (changes, figures, wished) = world.pass(&pool);
    golden::check("pool", "reservation-of-gpus", &changes.make);
    assert_eq!((figures.capacity.gpus, figures.in_use.gpus), (8, 0));
    assert_eq!(wish(&wished, types::READY), (false, reasons::WAITING_FOR_PODS));
    let mut pod = made(&changes, "Running");
    pod["spec"]["nodeName"] = json!("g1");
    world.pod(&pod);
    let (changes, _, wished) = world.pass(&pool);
    assert_eq!((changes.make.len(), changes.delete.len()), (0, 0));
    assert_eq!(wish(&wished, types::READY), (false, reasons::WAITING_FOR_QUEUE));
    // The queue lets go of them.
    world.queue("tools", &json!(["another"]));
    assert_eq!(world.pass(&pool).0.delete.len(), 1);
}

#[test]
fn gpus_that_another_pod_has_are_not_shared() {
    let (mut world, pool) = gpu_world(&json!({}));
    let (changes, ..) = world.pass(&pool);
    assert_eq!(held(&changes.make[0]).memory, 499 << 30, "what others leave, less the agent");
    world.stranger("w", "g1", &json!({"nvidia.com/gpu": "1"}));
    let (changes, _, wished) = world.pass(&pool);
    assert!(changes.make.is_empty(), "nobody can tell which one it is");
    assert_eq!(wish(&wished, types::READY), (false, reasons::NO_CAPACITY));
    let (world, pool) = gpu_world(&json!({"hostMemory": "600Gi"}));
    assert_eq!(wish(&world.pass(&pool).2, types::READY), (false, reasons::NO_CAPACITY));
}

#[test]
fn what_the_queue_says_of_its_gpus_is_taken_over() {
    let (mut world, pool) = gpu_world(&json!({"hostMemory": "200Gi"}));
    let mut pod = made(&world.pass(&pool).0, "Running");
    pod["spec"]["nodeName"] = json!("g1");
    world.pod(&pod);
    let resident = Resident {
        service: "research.judge".to_owned(),
        node: "g1".to_owned(),
        first_gpu: 0,
        degree: 2,
    };
    let mut snapshot = GpuPoolSnapshot {
        pool: "judges".to_owned(),
        nodes: 1,
        gpus: 8,
        free_chunks: [0, 1, 1, 0],
        fragmentation: 333,
        residents: vec![resident.clone()],
        ..GpuPoolSnapshot::default()
    };
    let say = |world: &World, snapshot: &GpuPoolSnapshot| {
        let gpu_pools = vec![snapshot.clone()];
        let snapshot = QueueSnapshot { gpu_pools, ..QueueSnapshot::default() };
        world.observed.queues.put(("research".to_owned(), "tools".to_owned()), snapshot);
    };
    say(&world, &snapshot);
    let (_, figures, wished) = world.pass(&pool);
    assert_eq!((figures.capacity.gpus, figures.in_use.gpus), (8, 2));
    let chunks = [(2, 1), (4, 1)].map(|(gpus, count)| FreeChunks { gpus, count });
    assert_eq!((figures.free_chunks, figures.fragmentation), (chunks.to_vec(), Some(0.333)));
    assert_eq!(figures.residents, [resident]);
    assert_eq!(wish(&wished, types::READY), (true, reasons::AS_SPECIFIED));
    // A GPU fell off; the agent is away.
    snapshot.lost = 1;
    say(&world, &snapshot);
    assert_eq!(wish(&world.pass(&pool).2, types::READY), (false, reasons::NO_CAPACITY));
    snapshot.nodes = 0;
    say(&world, &snapshot);
    assert_eq!(wish(&world.pass(&pool).2, types::READY), (false, reasons::AGENTS_DISCONNECTED));
}

#[test]
fn what_the_queue_says_is_taken_over() {
    let (mut world, pool) = cpu_world();
    world.queue("tools", &json!(["cpu"]));
    let node = |node: &str| NodeSnapshot {
        node: node.to_owned(),
        connected: true,
        has_cores: true,
        cores: 3,
        memory: 1 << 30,
    };
    let snapshot =
        QueueSnapshot { nodes: vec![node("a"), node("elsewhere")], ..Default::default() };
    let key = ("research".to_owned(), "tools".to_owned());
    world.observed.queues.put(key, snapshot);
    let (_, figures, _) = world.pass(&pool);
    assert_eq!(figures.in_use.cores, 3);
    assert_eq!(figures.in_use.memory.map(|memory| memory.to_string()).as_deref(), Some("1Gi"));
}

#[test]
fn a_change_marks_the_pools_that_it_concerns() {
    let (mut world, pool) = cpu_world();
    world.pool("other", &json!({"cpu": {"nodeSelector": {"role": "web"}}}));
    let names = |what: What<'_>| {
        let mut names: Vec<String> = Pools::affected(&Change { what, gone: false }, &world.stores)
            .into_iter()
            .map(|pool| pool.name)
            .collect();
        names.sort();
        names.dedup();
        names
    };
    assert_eq!(names(What::Pool(&pool)), ["cpu"]);
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"}, "spec": {"nodeName": "b", "containers": []},
    }))
    .unwrap();
    assert_eq!(names(What::Pod(&pod)), ["other"]);
    pod.spec.as_mut().unwrap().node_name = None;
    assert_eq!(names(What::Pod(&pod)), [""; 0]);
    pod.metadata.owner_references = Some(owner::reference(&pool));
    assert_eq!(names(What::Pod(&pod)), ["cpu"]);
    assert_eq!(names(What::Everything), ["cpu", "other"]);
}

#[test]
fn a_job_has_its_pool_until_its_last_worker_is_gone() {
    let spec = json!({"gpu": {"nodeSelector": {"gpu": "h800"}, "class": "h800", "gpusPerNode": 8,
        "hosts": ["Generation", "Reward"],
        "profile": {"tflops": 989, "hbm": "80Gi", "hbmTbps": 3.35}}});
    let job = |more: &str| {
        let spec = crate::job::fixtures::spec(
            "{fixed: {groups: [{pool: h800, degree: 2, workers: 4}]}}",
            more,
        );
        crate::job::fixtures::job(&spec)
    };
    let mut world = World::new();
    let mut pool = world.pool("h800", &spec);
    let running = job("");
    world.watches.jobs.apply_watcher_event(&Event::Apply(running.clone()));
    let owner = world.pass(&pool).1.bound_to.unwrap();
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("RolloutJob", "math"));
    pool.status = Some(ResourcePoolStatus { bound_to: Some(owner.clone()), ..Default::default() });
    world.queue("tools", &json!(["h800"]));
    let worker = |phase: &str| {
        json!({
            "metadata": {"name": "w", "namespace": "research", "labels": {
                "app.kubernetes.io/managed-by": "rollwright",
                "app.kubernetes.io/component": "worker", "app.kubernetes.io/instance": "math",
                "rollwright.dev/pool": "h800"}},
            "spec": {"containers": []}, "status": {"phase": phase},
        })
    };
    let kind = |world: &World| world.pass(&pool).1.bound_to.map(|owner| owner.kind);
    world.pod(&worker("Running"));
    let suspended = job("  suspend: true\n");
    world.watches.jobs.apply_watcher_event(&Event::Apply(suspended));
    assert_eq!(kind(&world).as_deref(), Some("RolloutJob"), "suspended");
    world.watches.jobs.apply_watcher_event(&Event::Delete(running));
    assert_eq!(kind(&world).as_deref(), Some("RolloutJob"), "deleted");
    world.pod(&worker("Succeeded"));
    assert_eq!(kind(&world).as_deref(), Some("ActionQueue"), "its last worker has ended");
}
