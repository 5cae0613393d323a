use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::pool::is_reservation as reserves_for;

/// A pod of `gpus` GPUs, with more of its metadata.
fn pod(name: &str, gpus: u32, node: &str, phase: &str, metadata: &str) -> Pod {
    let text = format!(
        "metadata: {{name: {name}, namespace: research{metadata}}}\nspec:\n  nodeName: {node}\n  \
         containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: '{gpus}'}}}}}}]\nstatus: \
         {{phase: {phase}}}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

fn labelled(component: &str, job: &str) -> String {
    format!(
        ", labels: {{app.kubernetes.io/component: {component}, app.kubernetes.io/managed-by: \
         rollwright, app.kubernetes.io/instance: {job}, rollwright.dev/pool: h20}}"
    )
}

fn worker_of(job: &str, name: &str, node: &str) -> Pod {
    pod(name, 2, node, "Running", &labelled("worker", job))
}

fn gpus_on(pods: &Pods, node: &str) -> u32 {
    pods.on(node).map(|(_, held)| held.requests.gpus).sum()
}

fn job(name: &str) -> Key {
    ("research".to_owned(), name.to_owned())
}

#[test]
fn pods_hold_what_they_run_on_and_what_they_are_pinned_to() {
    let mut pods = Pods::default();
    let all = [
        pod("a", 2, "n0", "Running", ""),
        pod("b", 1, "n0", "Succeeded", ""),
        pod("c", 3, "null", "Pending", ", annotations: {rollwright.dev/nodes: n1}"),
        pod("d", 1, "elsewhere", "Running", ""),
        pod("e", 0, "n0", "Running", ""),
        pod("f", 1, "null", "Pending", ", annotations: {rollwright.dev/nodes: 'n0,n1'}"),
    ];
    for pod in &all {
        pods.note(pod);
    }
    assert_eq!([gpus_on(&pods, "n0"), gpus_on(&pods, "n1")], [2, 3]);
    assert!(pods.on("n1").all(|(_, held)| !held.bound));
    pods.note(&pod("a", 2, "n0", "Failed", ""));
    assert_eq!([gpus_on(&pods, "n0"), gpus_on(&pods, "n1")], [0, 3]);
    pods.forget(&key(&all[2]));
    assert_eq!([gpus_on(&pods, "n0"), gpus_on(&pods, "n1")], [0, 0]);
}

#[test]
fn a_job_has_its_pods_from_the_first_event_to_the_last() {
    let mut pods = Pods::default();
    let first = worker_of("math", "math-worker-a", "n0");
    pods.note(&first);
    pods.note(&worker_of("math", "math-worker-b", "n1"));
    pods.note(&worker_of("code", "code-worker-a", "n0"));
    assert_eq!(pods.of_job(&job("math")), ["math-worker-a", "math-worker-b"]);
    assert_eq!(pods.gpus_of(&job("math"), "h20"), 4);
    assert_eq!(pods.gpus_of(&job("math"), "h800"), 0);
    // Another label: it is of another job now.
    pods.note(&worker_of("code", "math-worker-b", "n1"));
    assert_eq!(pods.of_job(&job("math")), ["math-worker-a"]);
    pods.forget(&key(&first));
    assert!(pods.of_job(&job("math")).is_empty());
    assert_eq!([gpus_on(&pods, "n0"), gpus_on(&pods, "n1")], [2, 2]);
}

proptest! {
    /// However pods came and went, it is as if all were read at once, and that is what walks over
    /// all of them find.
    #[test]
    fn what_is_followed_is_what_would_be_read(
        events in proptest::collection::vec(
            (any::<bool>(), 0..6_u8, 0..3_u8, 0..3_u8, 0..4_u8, 0..3_u32), 0..60)
    ) {
        let mut there: BTreeMap<Key, Pod> = BTreeMap::new();
        let mut followed = Pods::default();
        for (gone, which, node, phase, component, gpus) in events {
            let nodes = ["n0", "n1", "null"];
            let phases = ["Pending", "Running", "Succeeded"];
            let metadata = ["worker", "gateway", "reservation"].get(usize::from(component));
            let metadata = metadata.map_or(String::new(), |of| {
                labelled(of, if gpus == 1 { "math" } else { "code" })
            });
            let name = format!("w{which}");
            let phase = phases[usize::from(phase)];
            let made = pod(&name, gpus, nodes[usize::from(node)], phase, &metadata);
            if gone {
                followed.forget(&key(&made));
                there.remove(&key(&made));
            } else {
                followed.note(&made);
                there.insert(key(&made), made);
            }
        }
        let mut read = Pods::default();
        for pod in there.values() {
            read.note(pod);
        }
        prop_assert_eq!(&followed, &read);

        let walk = |which: &dyn Fn(&Pod) -> bool| -> BTreeSet<&Key> {
            there.iter().filter(|(_, pod)| which(pod)).map(|(key, _)| key).collect()
        };
        for node in ["n0", "n1"] {
            let runs = |pod: &Pod| {
                bound_to(pod).is_some_and(|of| of == node) && !has_ended(pod)
            };
            prop_assert_eq!(followed.on(node).map(|(key, _)| key).collect::<BTreeSet<_>>(), walk(&runs));
            let gpus: u32 = there.values().filter(|pod| runs(pod)).map(|pod| Requests::of(pod).gpus).sum();
            prop_assert_eq!(gpus_on(&followed, node), gpus);
        }
        let reserves = walk(&|pod| reserves_for(pod, "research"));
        prop_assert_eq!(followed.reservations().collect::<BTreeSet<_>>(), reserves);
        let holders: BTreeSet<Key> = there
            .values()
            .filter(|pod| is_worker(pod) && !has_ended(pod))
            .filter_map(job_of)
            .collect();
        prop_assert_eq!(followed.holders("h20").cloned().collect::<BTreeSet<_>>(), holders);
    }
}
