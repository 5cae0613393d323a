//! The objects of the benchmark.

use serde_json::{Value, json};

use super::size::{CLASSES, Class, GPUS_PER_NODE, Group, Size};

/// On nodes: the class of their GPUs.
const CLASS: &str = "scale.example.com/class";
/// On pods and namespaces of the baseline.
pub(crate) const PLAIN: &str = "scale.example.com/plain";
/// Selects the fake nodes.
pub(crate) const FAKE: &str = "scale.example.com/fake=true";
/// What no node pulls.
pub(crate) const IMAGE: &str = "scale.example.com/nothing:runs";

/// Namespaces of the jobs, or of the baseline.
pub(crate) fn namespace(prefix: &str, number: u32) -> Value {
    let mut labels = json!({});
    labels[format!("scale.example.com/{prefix}")] = "true".into();
    let metadata = json!({"name": format!("{prefix}-{number}"), "labels": labels});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

/// A fake node; one with GPUs takes only pods that ask for them.
pub(crate) fn node(number: usize, class: Option<&Class>) -> Value {
    let mut amounts = json!({"cpu": "128", "memory": "1Ti", "pods": "110"});
    let mut labels = json!({"kubernetes.io/os": "linux", "scale.example.com/fake": "true"});
    let mut taints = json!([]);
    if let Some(class) = class {
        amounts["nvidia.com/gpu"] = GPUS_PER_NODE.to_string().into();
        labels[CLASS] = class.name.into();
        taints = json!([{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": format!("fake-{number:04}"),
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": labels,
        },
        "spec": {"taints": taints},
        "status": {"capacity": amounts, "allocatable": amounts},
    })
}

/// The pools of the classes that a size has.
pub(crate) fn pools(size: Size) -> Vec<Value> {
    let used = CLASSES.iter().filter(|class| size.gpus(class) > 0);
    used.map(|class| {
        json!({
            "apiVersion": "rollwright.dev/v1alpha1",
            "kind": "ResourcePool",
            "metadata": {"name": class.name},
            "spec": {"gpu": {
                "class": class.name,
                "nodeSelector": {CLASS: class.name},
                "profile": {"tflops": 990.0, "hbm": "80Gi", "hbmTbps": 3.35},
                "gpusPerNode": GPUS_PER_NODE,
                "hosts": ["Generation"],
            }},
        })
    })
    .collect()
}

/// What scores the jobs of a namespace: a service outside, which nobody calls here.
pub(crate) fn reward(namespace: &str) -> Value {
    json!({
        "apiVersion": "rollwright.dev/v1alpha1",
        "kind": "RewardService",
        "metadata": {"name": "judge", "namespace": namespace},
        "spec": {"serverless": {"url": "https://judge.example.com/score"}},
    })
}

/// A job with its workers as listed.
pub(crate) fn job(size: Size, number: u32, namespace: &str) -> Value {
    let groups: Vec<Value> = size
        .groups(number)
        .iter()
        .map(|of| json!({"pool": of.class.name, "degree": of.class.degree, "workers": of.workers}))
        .collect();
    json!({
        "apiVersion": "rollwright.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": format!("job-{number:03}"), "namespace": namespace},
        "spec": {
            "model": {"path": "Qwen/Qwen3-8B"},
            "engine": {"type": "vLLM", "image": IMAGE},
            "allocation": {"fixed": {"groups": groups}},
            "rollout": {"groupSize": 16, "batchGroups": 32},
            "rewardServices": [{"name": "judge"}],
        },
    })
}

/// The workers of one group as a plain Deployment, placed by the scheduler.
pub(crate) fn deployment(number: u32, group: &Group, namespace: &str) -> Value {
    let name = format!("job-{number:03}-{}", group.class.name);
    let gpus = json!({"nvidia.com/gpu": group.class.degree.to_string()});
    let probe = json!({"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5});
    let mut labels = json!({"app": name});
    labels[PLAIN] = "true".into();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": group.workers,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "nodeSelector": {CLASS: group.class.name},
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                    "containers": [{
                        "name": "engine",
                        "image": IMAGE,
                        "args": ["--model=Qwen/Qwen3-8B", "--port=8000"],
                        "ports": [{"name": "http", "containerPort": 8000}],
                        "readinessProbe": probe,
                        "startupProbe": probe,
                        "livenessProbe": probe,
                        "resources": {"limits": gpus, "requests": gpus},
                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    }],
                },
            },
        },
    })
}
