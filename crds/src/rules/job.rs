//! Rules of RolloutJob.

use super::{Check, Violation};
use crate::job::{
    Adaptive, Allocation, Disaggregation, Fixed, LengthCap, Predictor, PredictorType, Rollout,
    RolloutJobSpec, Shaping, ShapingType,
};

impl RolloutJobSpec {
    /// What is wrong beyond the types.
    pub fn validate(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut spec = Check::new("spec", &mut found);
        self.model.check(&mut spec.field("model"));
        self.engine.check(&mut spec.field("engine"));
        self.allocation.check(&mut spec.field("allocation"));
        if let Some(disaggregation) = &self.disaggregation {
            disaggregation.check(&mut spec.field("disaggregation"));
        }
        spec.require(
            !self.auto_affinity || self.hardware_affinity.is_empty(),
            "set hardwareAffinity or autoAffinity, not both",
        );
        spec.count("hardwareAffinity", self.hardware_affinity.len(), 0..=64);
        spec.field("hardwareAffinity").require(
            self.hardware_affinity.values().all(|classes| (1..=16).contains(&classes.len())),
            "each task of hardwareAffinity lists 1 to 16 GPU classes, for example [h800, h20]",
        );
        self.rollout.check(&mut spec.field("rollout"));
        spec.count("rewardServices", self.reward_services.len(), 0..=32);
        spec.unique("rewardServices", "name", self.reward_services.iter().map(|of| &of.name));
        for (index, reward) in self.reward_services.iter().enumerate() {
            let mut at = spec.item("rewardServices", index);
            at.count("tasks", reward.tasks.len(), 0..=64);
            at.unique("tasks", "", &reward.tasks);
            for (index, task) in reward.tasks.iter().enumerate() {
                at.item("tasks", index).require(
                    (1..=128).contains(&task.chars().count()),
                    "a task has 1 to 128 characters",
                );
            }
        }
        spec.field("priority").require(
            (-1_000_000..=1_000_000).contains(&self.priority),
            "priority must be between -1000000 and 1000000",
        );
        found
    }
}

impl Allocation {
    fn check(&self, check: &mut Check<'_>) {
        check.require(
            self.fixed.is_some() != self.adaptive.is_some(),
            "set exactly one of fixed and adaptive",
        );
        check.within("minServingPercent", self.min_serving_percent, 0..=100);
        if let Some(fixed) = &self.fixed {
            fixed.check(&mut check.field("fixed"));
        }
        if let Some(adaptive) = &self.adaptive {
            adaptive.check(&mut check.field("adaptive"));
        }
    }
}

impl Fixed {
    fn check(&self, check: &mut Check<'_>) {
        check.count("groups", self.groups.len(), 1..=64);
        let keys =
            self.groups.iter().map(|group| format!("{} of degree {}", group.pool, group.degree));
        check.unique("groups", "", keys);
        for (index, group) in self.groups.iter().enumerate() {
            let mut at = check.item("groups", index);
            at.field("degree")
                .require(matches!(group.degree, 1 | 2 | 4 | 8), "degree must be 1, 2, 4 or 8");
            at.within("workers", group.workers, 1..=10_000);
        }
    }
}

impl Adaptive {
    fn check(&self, check: &mut Check<'_>) {
        check.count("pools", self.pools.len(), 1..=16);
        check.unique("pools", "", &self.pools);
        check.within("gpus", self.gpus, 1..=100_000);
        check.degrees(&self.degrees);
        check.maybe_within("maxWorkers", self.max_workers, 1..=100_000);
        check.within("replanEverySteps", self.replan_every_steps, 1..=1_000_000);
    }
}

impl Disaggregation {
    fn check(&self, check: &mut Check<'_>) {
        let count = |text: &str| {
            (1..=4).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_digit())
                && !text.starts_with('0')
        };
        let parts = self.ratio.split_once(':');
        check.field("ratio").require(
            parts.is_some_and(|(prefill, decode)| count(prefill) && count(decode)),
            "ratio is prefill to decode workers, for example \"1:3\"",
        );
    }
}

impl Rollout {
    fn check(&self, check: &mut Check<'_>) {
        check.within("groupSize", self.group_size, 1..=4096);
        check.within("batchGroups", self.batch_groups, 1..=1_000_000);
        check.within("stalenessBound", self.staleness_bound, 0..=1000);
        check.within("evaluationWorkers", self.evaluation_workers, 0..=10_000);
        let margin = self.scheduling.preemption_margin;
        check
            .field("scheduling")
            .field("preemptionMargin")
            .require(margin.is_finite() && margin >= 0.0, "preemptionMargin must not be negative");
        self.predictor.check(&mut check.field("predictor"));
        let mut redundancy = check.field("redundancy");
        redundancy.within("environments", self.redundancy.environments, 0..=4096);
        redundancy.within("groups", self.redundancy.groups, 0..=1_000_000);
        self.shaping.check(&mut check.field("shaping"));
        if let Some(cap) = &self.length_cap {
            cap.check(&mut check.field("lengthCap"));
        }
    }
}

impl Predictor {
    fn check(&self, check: &mut Check<'_>) {
        check.require(
            self.url.is_some() == (self.kind == PredictorType::External),
            "url is needed with type External and has no meaning with another type",
        );
        if let Some(url) = &self.url {
            check.url(url, "http://predictor:8080/length");
        }
    }
}

impl Shaping {
    fn check(&self, check: &mut Check<'_>) {
        check.require(
            self.max_oversample.is_some() == (self.kind != ShapingType::None),
            "maxOversample is needed with type Darts or DynamicK and has no meaning with None",
        );
        check.maybe_within("maxOversample", self.max_oversample, 1..=4096);
    }
}

impl LengthCap {
    fn check(&self, check: &mut Check<'_>) {
        check.require(
            self.tokens.is_some() != self.percentile.is_some(),
            "set exactly one of tokens and percentile",
        );
        check.maybe_within("tokens", self.tokens, 1..=100_000_000);
        check.maybe_within("softPenaltyTokens", self.soft_penalty_tokens, 1..=100_000_000);
        if let Some(percentile) = self.percentile {
            check.field("percentile").require(
                percentile > 0.0 && percentile <= 100.0,
                "percentile is above 0 and at most 100, for example 99",
            );
        }
    }
}
