//! The whole jobs among the samples: each of them stands for itself.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::PathBuf;

use rollwright_crds::{Manifest, parse};

/// The manifests of a directory below `manifests/samples`; their references resolve.
fn sample(name: &str) -> Vec<Manifest> {
    let samples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples");
    parse::directory(&samples.join(name)).unwrap()
}

#[test]
fn whole_jobs_have_everything_that_they_name() {
    for (name, services) in [("coding-agent", 1), ("math-judge", 2), ("mixed-mopd", 11)] {
        let manifests = sample(name);
        let count = |kind| manifests.iter().filter(|manifest| manifest.kind() == kind).count();
        assert_eq!((count("RolloutJob"), count("ActionQueue")), (1, 1), "{name}");
        assert_eq!(count("RewardService"), services, "{name}");
        let used = manifests.iter().find_map(|manifest| match manifest {
            Manifest::RolloutJob(job) => Some(job.spec.reward_services.len()),
            _ => None,
        });
        assert_eq!(used, Some(services), "{name}: a service that the job does not use");
    }
}

#[test]
fn whole_jobs_can_be_applied_side_by_side() {
    let all: Vec<Manifest> =
        ["coding-agent", "math-judge", "mixed-mopd", ""].into_iter().flat_map(sample).collect();
    assert_eq!(rollwright_crds::rules::references(&all), []);
}
