//! Rules of ActionQueue.

use super::{Check, Violation};
use crate::ByteSize;
use crate::queue::{
    ActionProfile, ActionQueueSpec, JobShare, Policy, PolicyType, SandboxTemplate,
    parse_destination,
};

/// The least memory that Docker accepts.
const LEAST_MEMORY: ByteSize = ByteSize::mib(6);

impl ActionQueueSpec {
    /// What is wrong beyond the types.
    pub fn validate(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut spec = Check::new("spec", &mut found);
        spec.count("pools", self.pools.len(), 1..=64);
        spec.unique("pools", "", &self.pools);
        self.policy.check(&mut spec.field("policy"));
        spec.count("jobs", self.jobs.len(), 0..=1024);
        spec.unique("jobs", "name", self.jobs.iter().map(JobShare::full_name));
        for (index, job) in self.jobs.iter().enumerate() {
            let mut item = spec.item("jobs", index);
            item.within("weight", job.weight, 1..=1000);
            item.require(
                is_namespace(&job.namespace),
                "namespace must be empty or 1 to 63 lower-case letters, digits or '-', a letter or digit first and last",
            );
        }
        spec.count("templates", self.templates.len(), 0..=64);
        spec.unique("templates", "name", self.templates.iter().map(|template| &template.name));
        for (index, template) in self.templates.iter().enumerate() {
            template.check(&mut spec.item("templates", index));
        }
        spec.count("profiles", self.profiles.len(), 0..=256);
        spec.unique("profiles", "name", self.profiles.iter().map(|profile| &profile.name));
        for (index, profile) in self.profiles.iter().enumerate() {
            profile.check(&mut spec.item("profiles", index));
        }
        let mut limits = spec.field("limits");
        limits.within("maxWaiting", self.limits.max_waiting, 1..=10_000_000);
        limits.within("maxTrajectories", self.limits.max_trajectories, 1..=1_000_000);
        found
    }
}

impl JobShare {
    /// For people.
    fn full_name(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.to_string(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// Empty, or a DNS label (RFC 1123).
fn is_namespace(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let edge = name.starts_with('-') || name.ends_with('-');
    name.len() <= 63 && !edge && name.bytes().all(allowed)
}

impl Policy {
    fn check(&self, check: &mut Check<'_>) {
        check.require(
            self.dop.is_some() == (self.kind == PolicyType::FixedDop),
            "dop is needed with type FixedDop and has no meaning with another type",
        );
        check.require(
            self.cores.is_some() == (self.kind == PolicyType::Static),
            "cores is needed with type Static and has no meaning with another type",
        );
        check.require(
            self.depth.is_none() || self.kind == PolicyType::Elastic,
            "depth has a meaning only with type Elastic",
        );
        check.maybe_within("dop", self.dop, 1..=4096);
        check.maybe_within("cores", self.cores, 1..=4096);
        check.maybe_within("depth", self.depth, 1..=64);
    }
}

impl SandboxTemplate {
    fn check(&self, check: &mut Check<'_>) {
        check.image(&self.image, "rollwright/busybox:local");
        check.require(
            !self.pre_pull || self.pull,
            "prePull needs pull: true, since it fetches the image from a registry",
        );
        check.field("memory").require(
            self.memory >= LEAST_MEMORY,
            "memory must be at least 6Mi, the least that Docker accepts",
        );
        check.within("pids", self.pids, 16..=1_000_000);
        check.within("warm", self.warm, 0..=1000);
        check.count("env", self.env.len(), 0..=256);
        check.field("env").require(
            self.env.keys().all(|key| !key.is_empty() && !key.contains(['=', '\0'])),
            "a name in env is not empty and has no '='",
        );
        check.count("workdir", self.workdir.chars().count(), 1..=4096);
        check.field("workdir").require(
            self.workdir.starts_with('/'),
            "workdir is an absolute path, for example \"/workspace\"",
        );
        check.field("uid").require(
            (1..=i32::MAX.cast_unsigned()).contains(&self.uid),
            "uid is at least 1 and at most 2147483647: actions never run as root",
        );
        check.count("tmpfs", self.tmpfs.len(), 0..=16);
        check.unique("tmpfs", "path", self.tmpfs.iter().map(|mount| &mount.path));
        for (index, mount) in self.tmpfs.iter().enumerate() {
            check.item("tmpfs", index).field("path").require(
                mount.path.starts_with('/') && mount.path != "/" && mount.path.len() <= 4096,
                "path is an absolute path below the root, for example \"/tmp\"",
            );
        }
        self.check_network(&mut check.field("network"));
        check.count("setup", self.setup.len(), 0..=32);
        for (index, command) in self.setup.iter().enumerate() {
            command.check(&mut check.item("setup", index));
        }
    }

    fn check_network(&self, check: &mut Check<'_>) {
        let network = &self.network;
        check.require(
            network.enabled || network.allow.is_empty(),
            "allow has a meaning only with enabled: true",
        );
        check.count("allow", network.allow.len(), 0..=64);
        check.unique("allow", "", &network.allow);
        for (index, text) in network.allow.iter().enumerate() {
            check.item("allow", index).require(
                parse_destination(text).is_some(),
                "each of allow is a network with an optional port, for example \"10.0.0.0/8\" or \"10.1.2.3/32:443\"",
            );
        }
    }
}

impl ActionProfile {
    fn check(&self, check: &mut Check<'_>) {
        let units = &self.cpu_units;
        check.count("cpuUnits", units.len(), 1..=16);
        let mut at = check.field("cpuUnits");
        at.require(
            units
                .iter()
                .all(|unit| *unit > 0.0 && *unit <= 4096.0 && (*unit < 1.0 || unit.fract() == 0.0)),
            "each of cpuUnits is a share between 0 and 1, or a whole number of cores up to 4096",
        );
        at.require(
            units.is_sorted_by(|left, right| left < right),
            "cpuUnits must ascend, for example [1, 2, 4]",
        );
        at.require(
            units.iter().filter(|unit| **unit < 1.0).count() <= 1,
            "only the first of cpuUnits may be below 1",
        );
        check.require(
            !self.malleable || units.len() > 1,
            "a malleable profile needs at least two cpuUnits to move between, for example [1, 2, 4]",
        );
        if let Some(fraction) = self.serial_fraction {
            check.field("serialFraction").require(
                (0.0..=1.0).contains(&fraction),
                "serialFraction is between 0 (scales fully) and 1 (does not scale)",
            );
        }
        check.count("quota", self.quota.len(), 0..=16);
        for (name, amount) in &self.quota {
            check.field("quota").within(name, *amount, 1..=1_000_000);
        }
    }
}
