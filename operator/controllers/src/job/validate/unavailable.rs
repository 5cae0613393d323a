//! Settings that the definition has and this version of the gateway refuses: it would end at its
//! start. The same list as `unavailable` in the gateway's `manifest.rs`.

use rollwright_crds::RolloutJobSpec;
use rollwright_crds::engine::EngineType;
use rollwright_crds::job::{PlacementPolicy, SchedulingPolicy, ShapingType};

/// What a spec asks for in vain: a sentence each, with what to use instead.
pub(super) fn sentences(spec: &RolloutJobSpec) -> Vec<String> {
    let rollout = &spec.rollout;
    let mut found = Vec::new();
    let mut refuse = |field, value, instead| {
        found.push(format!(
            "spec.{field} `{value}` is not available in this version: use {instead}"
        ));
    };
    if spec.disaggregation.is_some() && spec.engine.kind == EngineType::OpenAI {
        let instead = "vLLM or SGLang, or leave spec.disaggregation out";
        refuse("engine.type", "OpenAI", instead);
    }
    if rollout.scheduling.policy == SchedulingPolicy::LongestFirst {
        refuse("rollout.scheduling.policy", "LongestFirst", "Fcfs");
    }
    if rollout.placement.policy == PlacementPolicy::Makespan {
        refuse("rollout.placement.policy", "Makespan", "LeastLoaded");
    }
    match rollout.shaping.kind {
        ShapingType::None => {}
        ShapingType::Darts => refuse("rollout.shaping.type", "Darts", "None"),
        ShapingType::DynamicK => refuse("rollout.shaping.type", "DynamicK", "None"),
    }
    if rollout.length_cap.as_ref().is_some_and(|cap| cap.percentile.is_some()) {
        refuse("rollout.lengthCap", "percentile", "tokens");
    }
    found
}
