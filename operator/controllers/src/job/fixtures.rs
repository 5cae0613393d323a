//! Custom resources that tests begin with.

use rollwright_crds::{ResourcePool, RewardService, RolloutJob};

/// A job of this spec, called `math` in `research`.
pub(crate) fn job(spec: &str) -> RolloutJob {
    let text = format!(
        "apiVersion: rollwright.dev/v1alpha1\nkind: RolloutJob\nmetadata:\n  name: math\n  \
         namespace: research\n  uid: 00000000-0000-0000-0000-000000000001\n  generation: 3\n  \
         labels: {{kueue.x-k8s.io/queue-name: research, team: x}}\nspec:\n{spec}"
    );
    serde_yaml::from_str(&text).unwrap()
}

/// The rest of a spec, where only these lines matter.
pub(crate) fn spec(allocation: &str, more: &str) -> String {
    format!(
        "  model: {{path: Qwen/Qwen3-4B, maxTokens: 32768}}\n  engine: {{type: vLLM, image: \
         'vllm/vllm-openai:v0.18.1'}}\n  rollout: {{groupSize: 8, batchGroups: 4}}\n  \
         allocation: {allocation}\n{more}"
    )
}

/// A GPU pool.
pub(crate) fn pool(name: &str, class: &str, gpus_per_node: u32) -> ResourcePool {
    let text = format!(
        "apiVersion: rollwright.dev/v1alpha1\nkind: ResourcePool\nmetadata: {{name: {name}}}\n\
         spec:\n  gpu:\n    class: {class}\n    nodeSelector: {{gpu: {class}}}\n    gpusPerNode: \
         {gpus_per_node}\n    profile: {{tflops: 989, hbm: 80Gi, hbmTbps: 3.35}}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

/// A `RewardService` in `research`.
pub(super) fn reward(name: &str, spec: &str) -> RewardService {
    let text = format!(
        "apiVersion: rollwright.dev/v1alpha1\nkind: RewardService\nmetadata: {{name: {name}, \
         namespace: research, resourceVersion: '7'}}\nspec: {spec}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}
