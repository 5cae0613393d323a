//! Rules of ResourcePool.

use super::{Check, Violation};
use crate::pool::{GpuPool, NumaPolicy, QuotaPool, ResourcePoolSpec};

impl ResourcePoolSpec {
    /// What is wrong beyond the types.
    pub fn validate(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut spec = Check::new("spec", &mut found);
        let types = [self.cpu.is_some(), self.gpu.is_some(), self.quota.is_some()];
        spec.require(
            types.into_iter().filter(|set| *set).count() == 1,
            "set exactly one of cpu, gpu and quota",
        );
        spec.count("allowedNamespaces", self.allowed_namespaces.len(), 0..=256);
        spec.unique("allowedNamespaces", "", &self.allowed_namespaces);
        if let Some(cpu) = &self.cpu {
            let mut at = spec.field("cpu");
            at.count("nodeSelector", cpu.node_selector.len(), 0..=16);
            at.within("reservedCores", cpu.reserved_cores, 0..=4096);
            at.maybe_within("sharedCores", cpu.shared_cores, 1..=4096);
            at.field("numaPolicy").require(
                cpu.numa_policy == NumaPolicy::Prefer,
                "numaPolicy Require and Ignore are not built yet: write Prefer, or leave it out",
            );
        }
        if let Some(gpu) = &self.gpu {
            gpu.check(&mut spec.field("gpu"));
        }
        if let Some(quota) = &self.quota {
            quota.check(&mut spec.field("quota"));
        }
        found
    }
}

impl GpuPool {
    fn check(&self, check: &mut Check<'_>) {
        check.count("nodeSelector", self.node_selector.len(), 0..=16);
        check.count("hosts", self.hosts.len(), 1..=2);
        check.unique("hosts", "", self.hosts.iter().map(|role| format!("{role:?}")));
        check.field("gpusPerNode").require(
            matches!(self.gpus_per_node, 1 | 2 | 4 | 8),
            "gpusPerNode must be 1, 2, 4 or 8",
        );
        let mut profile = check.field("profile");
        let positive = |number: f64| number.is_finite() && number > 0.0;
        profile
            .field("tflops")
            .require(positive(self.profile.tflops), "tflops must be more than zero");
        profile
            .field("hbmTbps")
            .require(positive(self.profile.hbm_tbps), "hbmTbps must be more than zero");
        let cost = self.profile.cost_per_hour;
        profile
            .field("costPerHour")
            .require(cost.is_finite() && cost >= 0.0, "costPerHour must not be negative");
    }
}

impl QuotaPool {
    fn check(&self, check: &mut Check<'_>) {
        check.count("limits", self.limits.len(), 1..=64);
        check.unique("limits", "name", self.limits.iter().map(|limit| &limit.name));
        for (index, limit) in self.limits.iter().enumerate() {
            let mut at = check.item("limits", index);
            at.require(
                limit.concurrency.is_some() || limit.amount.is_some(),
                "set concurrency, or amount and period, or all three",
            );
            at.require(
                limit.amount.is_some() == limit.period.is_some(),
                "amount and period belong together",
            );
            at.maybe_within("concurrency", limit.concurrency, 1..=1_000_000);
            at.maybe_within("amount", limit.amount, 1..=100_000_000);
        }
    }
}
