use std::sync::Arc;

use rollwright_crds::{ActionQueue, ResourcePool, RewardService};
use serde_json::json;

use super::fetch::{SecretSeen, Seen};
use super::*;
use crate::observed::{GpuPoolSnapshot, QueueSnapshot, ServiceSnapshot};

fn service(spec: &serde_json::Value) -> RewardService {
    serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "RewardService",
        "metadata": {"name": "judge", "namespace": "research"}, "spec": spec,
    }))
    .unwrap()
}

fn queue(ready: bool) -> ActionQueue {
    let status = if ready { "True" } else { "False" };
    serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "ActionQueue",
        "metadata": {"name": "tools", "namespace": "research"},
        "spec": {
            "pools": ["cpu"],
            "templates": [{"name": "tests", "image": "i", "memory": "64Mi"}],
            "profiles": [{"name": "default"}],
        },
        "status": {"conditions": [{
            "type": "Ready", "status": status, "reason": "AsSpecified", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    }))
    .unwrap()
}

/// Reasons of `Ready` and `Resolved`.
fn outcome(spec: &serde_json::Value, seen: &Seen) -> [(bool, &'static str); 2] {
    let wished = status(&validate::validate(&service(spec), seen));
    let one = |kind| {
        let wish = wished.iter().find(|wish| wish.kind() == kind).unwrap();
        (wish.holds(), wish.reason())
    };
    [one(types::READY), one(types::RESOLVED)]
}

#[test]
fn a_secret_is_needed_with_its_key() {
    let spec = json!({"serverless": {
        "url": "https://judge.example.com", "authSecret": {"name": "judge", "key": "token"},
    }});
    let seen = |secret| Seen { secret, ..Seen::default() };
    let missing = (false, reasons::SECRET_NOT_FOUND);
    assert_eq!(outcome(&spec, &seen(SecretSeen::Missing)), [missing, missing]);
    assert_eq!(outcome(&spec, &seen(SecretSeen::WithoutKey)), [missing, missing]);
    let good = (true, reasons::AS_SPECIFIED);
    assert_eq!(outcome(&spec, &seen(SecretSeen::Usable)), [good, good]);
    let open = json!({"serverless": {"url": "https://judge.example.com"}});
    assert_eq!(outcome(&open, &Seen::default()), [good, good]);
}

#[test]
fn a_sandbox_needs_its_queue_template_and_profile() {
    let spec = |template: &str, profile: &str| {
        json!({"sandbox": {
            "queue": "tools", "template": template, "profile": profile,
            "command": {"shell": "pytest"},
        }})
    };
    let with = |ready| Seen { queue: Some(Arc::new(queue(ready))), ..Seen::default() };
    let good = (true, reasons::AS_SPECIFIED);
    assert_eq!(outcome(&spec("tests", "default"), &with(true)), [good, good]);
    let waits = (false, reasons::WAITING_FOR_QUEUE);
    assert_eq!(outcome(&spec("tests", "default"), &with(false)), [waits, good]);
    for (spec, seen, reason) in [
        (spec("tests", "default"), Seen::default(), reasons::QUEUE_NOT_FOUND),
        (spec("none", "default"), with(true), reasons::TEMPLATE_NOT_FOUND),
        (spec("tests", "none"), with(true), reasons::PROFILE_NOT_FOUND),
    ] {
        assert_eq!(outcome(&spec, &seen), [(false, reason), (false, reason)]);
    }
}

/// A service of degrees 1 and 2.
fn model() -> serde_json::Value {
    json!({"gpu": {
        "queue": "tools", "pool": "judges", "model": {"path": "m"},
        "engine": {"type": "vLLM", "image": "i"}, "ask": "Pooling", "degrees": [1, 2],
        "footprints": [
            {"degree": 1, "device": "40Gi", "residue": "1Gi", "host": "50Gi"},
            {"degree": 2, "device": "24Gi"},
        ],
    }})
}

fn pool(more: &serde_json::Value) -> Arc<ResourcePool> {
    let mut gpu = json!({"class": "h20", "gpusPerNode": 8,
        "profile": {"tflops": 148, "hbm": "96Gi", "hbmTbps": 4}});
    gpu.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let pool = serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "ResourcePool",
        "metadata": {"name": "judges"}, "spec": {"gpu": gpu},
    }));
    Arc::new(pool.unwrap())
}

fn scheduling(pools: &[&str]) -> Arc<ActionQueue> {
    let mut queue = queue(true);
    queue.spec.pools = serde_json::from_value(json!(pools)).unwrap();
    Arc::new(queue)
}

/// What a queue says of the service.
fn says(nodes: u32, services: &[(&str, ServiceSnapshot)]) -> Arc<QueueSnapshot> {
    let services = services.iter().map(|(name, of)| ((*name).to_owned(), of.clone())).collect();
    let pool = GpuPoolSnapshot { pool: "judges".to_owned(), nodes, services, ..Default::default() };
    Arc::new(QueueSnapshot { gpu_pools: vec![pool], ..QueueSnapshot::default() })
}

#[test]
fn a_model_is_ready_when_its_queue_has_it() {
    let base = Seen {
        queue: Some(scheduling(&["cpu", "judges"])),
        pool: Some(pool(&json!({}))),
        ..Seen::default()
    };
    let good = (true, reasons::AS_SPECIFIED);
    let told =
        ServiceSnapshot { waiting: 3, running: 2, residents: 1, restores: 9, ..Default::default() };
    let failing = ServiceSnapshot { trouble: "WakeTimedOut: 60 s".to_owned(), ..told.clone() };
    let other = || told.clone();
    for (snapshot, reason) in [
        (None, reasons::WAITING_FOR_QUEUE),
        (Some(Arc::default()), reasons::WAITING_FOR_QUEUE),
        // Of another namespace.
        (Some(says(1, &[("swe.judge", other())])), reasons::WAITING_FOR_QUEUE),
        (Some(says(0, &[("research.judge", other())])), reasons::AGENTS_DISCONNECTED),
        (Some(says(1, &[("research.judge", failing)])), reasons::ENGINE_FAILING),
    ] {
        let seen = Seen { snapshot, ..base.clone() };
        assert_eq!(outcome(&model(), &seen), [(false, reason), good]);
    }
    let seen = Seen { snapshot: Some(says(1, &[("research.judge", told)])), ..base };
    assert_eq!(outcome(&model(), &seen), [good, good]);
    let status = figures(&service(&model()), &seen);
    let counts = (status.waiting, status.running, status.resident, status.restores);
    assert_eq!((counts, status.backend.as_deref()), ((3, 2, 1, 9), Some("gpu")));
}

/// And then its queue does not get it: it would end all others' with its own.
#[test]
fn a_model_that_cannot_be_scheduled_says_why() {
    let queue = || Some(scheduling(&["cpu", "judges"]));
    let mut wrong = model();
    wrong["gpu"]["footprints"].as_array_mut().unwrap().pop();
    for (spec, queue, pool, reason) in [
        (model(), None, Some(pool(&json!({}))), reasons::QUEUE_NOT_FOUND),
        (model(), queue(), None, reasons::POOL_NOT_FOUND),
        (model(), Some(scheduling(&["cpu"])), Some(pool(&json!({}))), reasons::POOL_NOT_OF_QUEUE),
        (
            model(),
            queue(),
            Some(pool(&json!({"hosts": ["Generation"]}))),
            reasons::POOL_TYPE_MISMATCH,
        ),
        (model(), queue(), Some(pool(&json!({"gpusPerNode": 1}))), reasons::DEGREE_TOO_LARGE),
        (model(), queue(), Some(pool(&json!({"hostMemory": "49Gi"}))), reasons::MEMORY_TOO_SMALL),
        (
            model(),
            queue(),
            Some(pool(&json!({"profile": {"tflops": 1, "hbm": "39Gi", "hbmTbps": 1}}))),
            reasons::MEMORY_TOO_SMALL,
        ),
        (wrong, queue(), Some(pool(&json!({}))), reasons::INVALID_SPEC),
    ] {
        assert!(!fits(&service(&spec), queue.as_deref(), pool.as_deref()), "{reason}");
        let seen = Seen { queue, pool, ..Seen::default() };
        assert_eq!(outcome(&spec, &seen), [(false, reason), (false, reason)]);
    }
    assert!(fits(&service(&model()), queue().as_deref(), Some(&*pool(&json!({})))));
}

#[test]
fn a_spec_that_the_api_server_would_refuse_is_a_condition() {
    let invalid = (false, reasons::INVALID_SPEC);
    assert_eq!(outcome(&json!({}), &Seen::default()), [invalid, invalid]);
}
