//! Settings that the definitions have and this version does not do: the one list for who refuses
//! them and who says so beforehand.

use crate::engine::EngineType;
use crate::job::{PlacementPolicy, RolloutJobSpec, SchedulingPolicy, ShapingType};

/// A setting that is asked for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.{field} `{value}` is not available in this version: use {instead}")]
pub struct Unavailable {
    /// The field below `spec`.
    pub field: &'static str,
    /// What it says.
    pub value: &'static str,
    /// What it may say.
    pub instead: &'static str,
}

impl RolloutJobSpec {
    /// What it asks for in vain.
    pub fn unavailable(&self) -> Vec<Unavailable> {
        let rollout = &self.rollout;
        let mut found = Vec::new();
        let mut refuse = |field, value, instead| found.push(Unavailable { field, value, instead });
        if self.disaggregation.is_some() && self.engine.kind == EngineType::OpenAI {
            let instead = "vLLM or SGLang, or leave spec.disaggregation out: no other engine hands \
                           its KV over";
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
}
