use super::*;
use crate::job::fleet::{Node, Trust};

/// A pod of `gpus` GPUs, with more of its metadata.
fn pod(name: &str, gpus: u32, node: &str, phase: &str, metadata: &str) -> Pod {
    let text = format!(
        "metadata: {{name: {name}, namespace: research{metadata}}}\nspec:\n  nodeName: {node}\n  \
         containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: '{gpus}'}}}}}}]\nstatus: \
         {{phase: {phase}}}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

fn worker_of(job: &str, name: &str, node: &str) -> Pod {
    let labels = format!(
        ", labels: {{app.kubernetes.io/component: worker, app.kubernetes.io/instance: {job}, \
         rollwright.dev/pool: h20}}"
    );
    pod(name, 2, node, "Running", &labels)
}

fn tell(index: &Index, pod: &Pod, gone: bool) {
    index.follow(&Change { what: What::Pod(pod), gone }, Vec::new);
}

fn taken(index: &Index, ours: &[&str]) -> [u32; 2] {
    let node =
        || Node { pool: "h20".parse().unwrap(), gpus: 8, taken: 1, open: true, trust: Trust::Good };
    let mut nodes: Nodes = [("n0".to_owned(), node()), ("n1".to_owned(), node())].into();
    index.read().take(&mut nodes, |pod| pod.0 == "research" && ours.contains(&pod.1.as_str()));
    [nodes["n0"].taken - 1, nodes["n1"].taken - 1]
}

#[test]
fn others_hold_what_they_run_and_what_they_are_pinned_to() {
    let index = Index::default();
    let pods = [
        pod("a", 2, "n0", "Running", ""),
        pod("b", 1, "n0", "Succeeded", ""),
        pod("c", 3, "null", "Pending", ", annotations: {rollwright.dev/nodes: n1}"),
        pod("d", 1, "elsewhere", "Running", ""),
        pod("e", 0, "n0", "Running", ""),
        pod("f", 1, "null", "Pending", ", annotations: {rollwright.dev/nodes: 'n0,n1'}"),
    ];
    for pod in &pods {
        tell(&index, pod, false);
    }
    assert_eq!(taken(&index, &[]), [2, 3]);
    assert_eq!(taken(&index, &["a"]), [0, 3], "our own do not count");
    tell(&index, &pod("a", 2, "n0", "Failed", ""), false);
    assert_eq!(taken(&index, &[]), [0, 3]);
    assert!(index.read().shows("research", pods[2].metadata.name.as_deref().unwrap()));
    tell(&index, &pods[2], true);
    assert!(!index.read().shows("research", pods[2].metadata.name.as_deref().unwrap()));
    assert_eq!(taken(&index, &[]), [0, 0]);
}

#[test]
fn a_job_has_its_pods_from_the_first_event_to_the_last() {
    let index = Index::default();
    let first = worker_of("math", "math-worker-a", "n0");
    tell(&index, &first, false);
    tell(&index, &worker_of("math", "math-worker-b", "n1"), false);
    tell(&index, &worker_of("code", "code-worker-a", "n0"), false);
    assert_eq!(index.pods_of("research", "math"), ["math-worker-a", "math-worker-b"]);
    assert_eq!(index.gpus_of("research", "math", "h20"), 4);
    assert_eq!(index.gpus_of("research", "math", "h800"), 0);
    assert_eq!(taken(&index, &["math-worker-a", "math-worker-b"]), [2, 0]);
    // Another label: it is of another job now.
    tell(&index, &worker_of("code", "math-worker-b", "n1"), false);
    assert_eq!(index.pods_of("research", "math"), ["math-worker-a"]);
    tell(&index, &first, true);
    assert!(index.pods_of("research", "math").is_empty());
    assert_eq!(taken(&index, &[]), [2, 2]);
}

#[test]
fn a_watch_that_began_anew_tells_all_of_it() {
    let index = Index::default();
    tell(&index, &worker_of("math", "missed", "n0"), false);
    let all = vec![Arc::new(worker_of("math", "new", "n1"))];
    index.follow(&Change { what: What::Everything, gone: false }, || all);
    assert_eq!(index.pods_of("research", "math"), ["new"]);
    assert_eq!(taken(&index, &[]), [0, 2]);
    let Inner { pods, jobs, nodes } = &*index.open();
    assert_eq!((pods.len(), jobs.len(), nodes.len()), (1, 1, 1));
}
