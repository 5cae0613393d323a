//! Sandbox templates: what a trajectory's container looks like.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::CommandLine;
use crate::duration::TimeSpan;
use crate::name::Name;
use crate::quantity::ByteSize;

/// What a trajectory's container looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = (
        "!self.prePull || self.pull",
        "prePull needs pull: true, since it fetches the image from a registry"
    ),
    validation = (
        "!isQuantity(self.memory) || quantity(self.memory).compareTo(quantity('6Mi')) >= 0",
        "memory must be at least 6Mi, the least that Docker accepts"
    )
)]
pub struct SandboxTemplate {
    /// What requests call it.
    pub name: Name,
    /// Image reference.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = (
        "self.matches('^[^ \\t\\r\\n]+$')",
        "image is an image reference without spaces, for example \"rollwright/busybox:local\""
    ))]
    pub image: String,
    /// Pull a missing image from a registry; else a missing image is a fault.
    #[serde(default = "yes")]
    pub pull: bool,
    /// Memory of the container, reserved on the node while the trajectory is open.
    pub memory: ByteSize,
    /// Most processes and threads at one moment.
    #[serde(default = "default_pids")]
    #[schemars(range(min = 16, max = 1_000_000))]
    pub pids: u32,
    /// Environment of every action.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 256))]
    pub env: BTreeMap<String, String>,
    /// Working directory of actions, made when missing.
    #[serde(default = "default_workdir")]
    #[schemars(length(max = 4096))]
    #[x_kube(validation = (
        "self.startsWith('/')",
        "workdir is an absolute path, for example \"/workspace\""
    ))]
    pub workdir: String,
    /// User and group that actions run as, never 0.
    #[serde(default = "default_uid")]
    #[x_kube(validation = (
        "self >= 1 && self <= 2147483647",
        "uid is at least 1 and at most 2147483647: actions never run as root"
    ))]
    pub uid: u32,
    /// Make everything but `workdir` and `tmpfs` read-only.
    #[serde(default)]
    pub read_only_root: bool,
    /// File systems in memory, which count towards `memory`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".into()]))]
    pub tmpfs: Vec<TmpfsMount>,
    /// Bound on the writable layer; needs a storage driver that can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// Bounds on disk traffic.
    #[serde(default)]
    pub io: IoLimits,
    /// Network of the sandbox; none unless asked for.
    #[serde(default)]
    pub network: NetworkAccess,
    /// Commands that make a new sandbox ready, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub setup: Vec<CommandLine>,
    /// Time limits of the first two parts of reset; each set-up command has its own.
    #[serde(default)]
    pub timeouts: ResetTimeouts,
    /// A sandbox in which nothing ran for this long is closed; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ttl: Option<TimeSpan>,
    /// Sandboxes kept started and unused on each node.
    #[serde(default)]
    #[schemars(range(max = 1000))]
    pub warm: u32,
    /// Pull the image on every node before it is needed.
    #[serde(default)]
    pub pre_pull: bool,
    /// How actions are started.
    #[serde(default)]
    pub exec_mode: ExecMode,
}

fn yes() -> bool {
    true
}

fn default_pids() -> u32 {
    256
}

fn default_workdir() -> String {
    "/workspace".to_owned()
}

fn default_uid() -> u32 {
    1000
}

/// A file system in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TmpfsMount {
    /// Where it is mounted.
    #[schemars(length(max = 4096))]
    #[x_kube(validation = (
        "self.startsWith('/') && self != '/'",
        "path is an absolute path below the root, for example \"/tmp\""
    ))]
    pub path: String,
    /// Its size.
    pub size: ByteSize,
}

/// Bounds on disk traffic of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IoLimits {
    /// Bytes read per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bps: Option<ByteSize>,
    /// Bytes written per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bps: Option<ByteSize>,
}

/// Network of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "self.enabled || !has(self.allow) || self.allow.size() == 0",
    "allow has a meaning only with enabled: true"
))]
pub struct NetworkAccess {
    /// False: no network at all.
    #[serde(default)]
    pub enabled: bool,
    /// Otherwise unreachable addresses (metadata, node, pod and service networks)
    /// that may be reached: `10.0.0.0/8`, `10.1.2.3/32:443`, `[fd00::]/8:443`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 64)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = (
            "self.all(d, d.matches('^([0-9]{1,3}([.][0-9]{1,3}){3}|\\\\[[0-9a-fA-F:.]{2,45}\\\\])/[0-9]{1,3}(:[0-9]{1,5})?$'))",
            "each of allow is a network with an optional port, for example \"10.0.0.0/8\" or \"10.1.2.3/32:443\""
        )
    )]
    pub allow: Vec<String>,
}

/// Reads one entry of [`NetworkAccess::allow`] as address, prefix length and port.
pub fn parse_destination(text: &str) -> Option<(IpAddr, u8, Option<u16>)> {
    let (address, rest) = text.split_once('/')?;
    let (prefix, port) = match rest.split_once(':') {
        Some((prefix, port)) => (prefix, Some(port.parse().ok().filter(|port| *port > 0)?)),
        None => (rest, None),
    };
    let address = match address.strip_prefix('[') {
        Some(inner) => IpAddr::V6(inner.strip_suffix(']')?.parse().ok()?),
        None => IpAddr::V4(address.parse().ok()?),
    };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= longest)?;
    Some((address, prefix, port))
}

/// Time limits of the parts of reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResetTimeouts {
    /// Making the image present.
    #[serde(default = "default_image_timeout")]
    pub image: TimeSpan,
    /// Creating and starting the container.
    #[serde(default = "default_start_timeout")]
    pub start: TimeSpan,
}

fn default_image_timeout() -> TimeSpan {
    TimeSpan::secs(600)
}

fn default_start_timeout() -> TimeSpan {
    TimeSpan::secs(60)
}

impl Default for ResetTimeouts {
    fn default() -> Self {
        Self { image: default_image_timeout(), start: default_start_timeout() }
    }
}

/// How actions are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExecMode {
    /// Through the helper in the sandbox and direct cgroup writes.
    #[default]
    Helper,
    /// By `docker update` and `docker exec`: slow, a fall-back and the baseline.
    Docker,
}
