//! Action profiles: what actions of one sort need.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::duration::TimeSpan;
use crate::name::Name;
use crate::quantity::ByteSize;

/// What actions of one sort need, where a request does not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "!self.malleable || self.cpuUnits.size() > 1",
    "a malleable profile needs at least two cpuUnits to move between, for example [1, 2, 4]"
))]
pub struct ActionProfile {
    /// What requests call it.
    pub name: Name,
    /// Allowed CPU units in ascending order. One number below 1 may come first (a
    /// share of the node's shared cores); the others are whole exclusive cores.
    #[serde(default = "one_core")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(
        validation = (
            "self.all(u, u > 0.0 && u <= 4096.0 && (u < 1.0 || u == double(int(u))))",
            "each of cpuUnits is a share between 0 and 1, or a whole number of cores up to 4096"
        ),
        validation = (
            "self.isSorted() && self.all(a, self.exists_one(b, a == b))",
            "cpuUnits must ascend, for example [1, 2, 4]"
        ),
        validation = (
            "self.filter(u, u < 1.0).size() <= 1",
            "only the first of cpuUnits may be below 1"
        )
    )]
    pub cpu_units: Vec<f64>,
    /// Running time after which the process tree is killed.
    #[serde(default = "default_timeout")]
    pub timeout: TimeSpan,
    /// Time from submission after which it fails if it has not started; absent: waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_deadline: Option<TimeSpan>,
    /// Output kept of each of head and tail, both streams together.
    #[serde(default = "default_output_limit")]
    pub output_limit: ByteSize,
    /// Part of the running time that more cores do not shorten, 0 to 1: where learning
    /// begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (
        "self >= 0.0 && self <= 1.0",
        "serialFraction is between 0 (scales fully) and 1 (does not scale)"
    ))]
    pub serial_fraction: Option<f64>,
    /// Running time on one core: where learning begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<TimeSpan>,
    /// Its cores may change while it runs: it should start as many threads as its largest
    /// units.
    #[serde(default)]
    pub malleable: bool,
    /// Quota taken while it runs: name of a limit of the queue's pools, and amount.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "maxProperties" = 16,
        "additionalProperties" = { "type": "integer", "minimum": 1, "maximum": 1_000_000 },
    ))]
    pub quota: BTreeMap<String, u32>,
}

fn one_core() -> Vec<f64> {
    vec![1.0]
}

fn default_timeout() -> TimeSpan {
    TimeSpan::secs(600)
}

fn default_output_limit() -> ByteSize {
    ByteSize::mib(1)
}
