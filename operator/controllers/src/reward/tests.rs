use std::sync::Arc;

use rollwright_crds::{ActionQueue, RewardService};
use serde_json::json;

use super::fetch::{SecretSeen, Seen};
use super::*;

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

#[test]
fn a_spec_that_the_api_server_would_refuse_is_a_condition() {
    let invalid = (false, reasons::INVALID_SPEC);
    assert_eq!(outcome(&json!({}), &Seen::default()), [invalid, invalid]);
}
