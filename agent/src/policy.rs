//! The agent's own policy: what this node runs, whatever the queue asks for.
//! Checked before anything is done.

mod engines;
mod glob;

use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};

use rollwright_core::fault::Fault;
use rollwright_proto::v1::SandboxSpec;
use serde::Deserialize;

pub use engines::EnginePolicy;
use glob::glob;

use crate::fault;

/// Uid that actions run as where the template does not say.
pub const DEFAULT_UID: u32 = 1000;

/// What this node accepts. Read from YAML or JSON; each field has a default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Policy {
    /// Image references that may run, as globs (`*` stands for any characters).
    pub images: Vec<String>,
    /// Most memory of one sandbox, in bytes.
    pub max_memory_bytes: u64,
    /// Most processes and threads of one sandbox.
    pub max_pids: u32,
    /// Whether a template may ask for network.
    pub network: bool,
    /// Networks that no sandbox reaches unless the template names a part of them.
    /// Link-local addresses (cloud metadata) and the node itself are always closed.
    pub closed_cidrs: Vec<String>,
    /// Networks that no template may name in `allow`.
    pub forbidden_cidrs: Vec<String>,
    /// Whether a missing image may be pulled from a registry.
    pub pull: bool,
    /// Most bytes kept of each of head and tail of an action's output.
    pub max_output_bytes: u64,
    /// Most bytes that a template may ask for as `diskBytes`.
    pub max_disk_bytes: u64,
    /// Refuse templates that may fill the node's disk: those with neither
    /// `diskBytes` nor a read-only root.
    pub require_disk_bound: bool,
    /// Free bytes of Docker's disk below which the sandbox with the largest
    /// writable layer is ended; 0 ends none.
    pub min_free_disk_bytes: u64,
    /// DNS servers of sandboxes with network, as IPv4 addresses; they are reached on
    /// port 53 even in a closed network. None is what Docker takes from the node,
    /// which is closed where it is a private address.
    pub dns_servers: Vec<Ipv4Addr>,
    /// Most memory of all tmpfs mounts of one sandbox, in bytes; they count
    /// against the sandbox's memory as well.
    pub max_tmpfs_bytes: u64,
    /// What may be started on this node's GPUs.
    pub engines: EnginePolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            images: vec!["*".into()],
            max_memory_bytes: 64 << 30,
            max_pids: 16_384,
            network: true,
            closed_cidrs: ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]
                .map(String::from)
                .to_vec(),
            forbidden_cidrs: vec!["169.254.0.0/16".into()],
            pull: true,
            max_disk_bytes: 1 << 40,
            require_disk_bound: false,
            min_free_disk_bytes: 1 << 30,
            dns_servers: Vec::new(),
            max_output_bytes: 16 << 20,
            max_tmpfs_bytes: 16 << 30,
            engines: EnginePolicy::default(),
        }
    }
}

/// A policy file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file could not be read.
    #[error("cannot read the policy {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a policy.
    #[error("{} is not a policy: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Which field, and why.
        source: serde_yaml::Error,
    },
    /// A network is not written as a CIDR.
    #[error("{}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        what: String,
    },
}

impl Policy {
    /// Reads a policy from a YAML or JSON file.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PolicyError::Read { path: path.into(), source })?;
        let policy: Self = serde_yaml::from_str(&text)
            .map_err(|source| PolicyError::Parse { path: path.into(), source })?;
        for cidr in policy.closed_cidrs.iter().chain(&policy.forbidden_cidrs) {
            cidr.parse::<crate::network::rules::Cidr>().map_err(|error| PolicyError::Invalid {
                path: path.into(),
                what: error.to_string(),
            })?;
        }
        Ok(policy)
    }

    /// Refuses a sandbox that this node does not run, with a `user` fault.
    pub fn check(&self, spec: &SandboxSpec) -> Result<(), Fault> {
        check_shape(spec)?;
        if !self.images.iter().any(|pattern| glob(pattern, &spec.image)) {
            return Err(refused(format!(
                "image `{}` is not on this node's allow-list ({}): use one that is, or add it to \
                 `images` of the agent's policy",
                spec.image,
                self.images.join(", ")
            )));
        }
        if spec.memory_bytes == 0 || spec.memory_bytes > self.max_memory_bytes {
            return Err(refused(format!(
                "memory of {} bytes: a sandbox on this node has 1 to {} bytes",
                spec.memory_bytes, self.max_memory_bytes
            )));
        }
        if spec.pids > self.max_pids {
            return Err(refused(format!(
                "{} processes: a sandbox on this node has at most {}",
                spec.pids, self.max_pids
            )));
        }
        let tmpfs = spec.tmpfs.iter().fold(0u64, |sum, t| sum.saturating_add(t.size_bytes));
        if tmpfs > self.max_tmpfs_bytes {
            return Err(refused(format!(
                "{tmpfs} bytes of tmpfs: a sandbox on this node has at most {}",
                self.max_tmpfs_bytes
            )));
        }
        self.check_disk(spec)?;
        self.check_network(spec)
    }

    fn check_disk(&self, spec: &SandboxSpec) -> Result<(), Fault> {
        if spec.disk_bytes > self.max_disk_bytes {
            return Err(refused(format!(
                "diskBytes of {}: a sandbox on this node has at most {}",
                spec.disk_bytes, self.max_disk_bytes
            )));
        }
        if self.require_disk_bound && spec.disk_bytes == 0 && !spec.read_only_root {
            return Err(refused(
                "this node takes only sandboxes whose disk is bounded: set diskBytes, or \
                 readOnlyRoot with tmpfs"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    fn check_network(&self, spec: &SandboxSpec) -> Result<(), Fault> {
        let Some(network) = spec.network.as_ref().filter(|network| network.enabled) else {
            return Ok(());
        };
        if !self.network {
            return Err(refused("this node gives sandboxes no network".to_owned()));
        }
        for entry in &network.allow {
            let allowed: crate::network::rules::Allow =
                entry.parse().map_err(|error| bad(format!("network.allow: {error}")))?;
            for forbidden in &self.forbidden_cidrs {
                let closed = forbidden.parse::<crate::network::rules::Cidr>();
                if closed.is_ok_and(|closed| closed.overlaps(allowed.cidr)) {
                    return Err(refused(format!(
                        "network.allow names `{entry}`, which this node never opens ({forbidden})"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Checks what no policy can allow: the form of the request itself.
fn check_shape(spec: &SandboxSpec) -> Result<(), Fault> {
    if spec.image.is_empty()
        || spec.image.starts_with('-')
        || spec.image.contains(char::is_whitespace)
    {
        return Err(bad(format!("`{}` is not an image reference", spec.image)));
    }
    let workdir = workdir(spec);
    check_path("workdir", workdir)?;
    if spec.uid > i32::MAX.cast_unsigned() {
        return Err(bad(format!("uid {}: use 1 to {}", spec.uid, i32::MAX)));
    }
    if is_ours(workdir) {
        return Err(refused(format!("workdir `{workdir}`: that path is the agent's")));
    }
    for mount in &spec.tmpfs {
        check_path("tmpfs path", &mount.path)?;
        if is_ours(&mount.path) {
            return Err(refused(format!("tmpfs on `{}`: that path is the agent's", mount.path)));
        }
        if mount.size_bytes == 0 {
            return Err(bad(format!("tmpfs on `{}` needs a size of at least 1 byte", mount.path)));
        }
    }
    for name in spec.env.keys() {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(bad(format!("`{name}` is not the name of an environment variable")));
        }
    }
    Ok(())
}

/// Whether a path, however it is written, is the root or the helper's directory.
fn is_ours(path: &str) -> bool {
    let mut parts = Path::new(path).components().filter(|part| *part != Component::RootDir);
    parts.next().is_none_or(|first| first == Component::Normal(".rollwright".as_ref()))
}

fn check_path(what: &str, path: &str) -> Result<(), Fault> {
    let plain = path.starts_with('/')
        && !path.contains(['\0', ':', ','])
        && !path.split('/').any(|part| part == "..");
    if plain {
        return Ok(());
    }
    Err(bad(format!("{what} `{path}`: use an absolute path without `..`, `:` and `,`")))
}

/// The user and group that actions run as: never 0.
pub fn uid(spec: &SandboxSpec) -> u32 {
    if spec.uid == 0 { DEFAULT_UID } else { spec.uid }
}

/// The directory that actions start in.
pub fn workdir(spec: &SandboxSpec) -> &str {
    if spec.workdir.is_empty() { "/workspace" } else { &spec.workdir }
}

fn refused(message: String) -> Fault {
    fault::user("PolicyRefused", message)
}

fn bad(message: String) -> Fault {
    fault::user("InvalidSandbox", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollwright_core::fault::FaultKind;
    use rollwright_proto::v1::{Network, Tmpfs};

    fn spec() -> SandboxSpec {
        SandboxSpec { image: "python:3.11".into(), memory_bytes: 1 << 20, ..Default::default() }
    }

    #[test]
    fn each_limit_refuses_with_its_field() {
        let policy = Policy {
            images: vec!["python:*".into()],
            max_memory_bytes: 1 << 30,
            max_pids: 10,
            network: false,
            max_tmpfs_bytes: 100,
            ..Policy::default()
        };
        assert_eq!(policy.check(&spec()), Ok(()));
        let cases: [(&str, SandboxSpec); 6] = [
            ("allow-list", SandboxSpec { image: "ubuntu".into(), ..spec() }),
            ("memory", SandboxSpec { memory_bytes: 2 << 30, ..spec() }),
            ("memory", SandboxSpec { memory_bytes: 0, ..spec() }),
            ("processes", SandboxSpec { pids: 11, ..spec() }),
            (
                "tmpfs",
                SandboxSpec {
                    tmpfs: vec![Tmpfs { path: "/tmp".into(), size_bytes: 101 }],
                    ..spec()
                },
            ),
            (
                "network",
                SandboxSpec { network: Some(Network { enabled: true, allow: vec![] }), ..spec() },
            ),
        ];
        for (word, spec) in cases {
            let fault = policy.check(&spec).unwrap_err();
            assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::User, "PolicyRefused"));
            assert!(fault.message.contains(word), "{} lacks {word}", fault.message);
        }
    }

    #[test]
    fn paths_that_could_smuggle_mount_options_are_refused() {
        for path in ["relative", "/a/../b", "/a:rw", "/a,exec", ""] {
            let tmpfs = vec![Tmpfs { path: path.into(), size_bytes: 1 }];
            assert!(Policy::default().check(&SandboxSpec { tmpfs, ..spec() }).is_err(), "{path}");
        }
        for path in ["/.rollwright/run", "//.rollwright", "/./.rollwright/", "/", "//"] {
            let tmpfs = vec![Tmpfs { path: path.into(), size_bytes: 1 }];
            assert!(Policy::default().check(&SandboxSpec { tmpfs, ..spec() }).is_err(), "{path}");
            let workdir = path.to_owned();
            assert!(Policy::default().check(&SandboxSpec { workdir, ..spec() }).is_err(), "{path}");
        }
        let tmpfs = vec![Tmpfs { path: "/data/.rollwright".into(), size_bytes: 1 }];
        assert_eq!(Policy::default().check(&SandboxSpec { tmpfs, ..spec() }), Ok(()));
    }

    #[test]
    fn no_uid_means_root() {
        for uid in [u32::MAX, 1 << 31] {
            let fault = Policy::default().check(&SandboxSpec { uid, ..spec() }).unwrap_err();
            assert!(fault.message.contains("uid"), "{fault}");
        }
        for uid in [0, 1, (1 << 31) - 1] {
            assert_eq!(Policy::default().check(&SandboxSpec { uid, ..spec() }), Ok(()));
        }
    }

    #[test]
    fn a_node_may_take_only_bounded_disks() {
        let policy = Policy { require_disk_bound: true, max_disk_bytes: 10, ..Policy::default() };
        assert!(policy.check(&spec()).unwrap_err().message.contains("bounded"));
        assert_eq!(policy.check(&SandboxSpec { disk_bytes: 10, ..spec() }), Ok(()));
        assert_eq!(policy.check(&SandboxSpec { read_only_root: true, ..spec() }), Ok(()));
        assert!(policy.check(&SandboxSpec { disk_bytes: 11, ..spec() }).is_err());
    }

    #[test]
    fn metadata_addresses_cannot_be_named() {
        let network = Some(Network { enabled: true, allow: vec!["169.254.169.254/32:80".into()] });
        let fault = Policy::default().check(&SandboxSpec { network, ..spec() }).unwrap_err();
        assert_eq!(fault.reason, "PolicyRefused");
    }

    #[test]
    fn a_policy_file_names_its_unknown_field() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        std::fs::write(&path, "images: [\"python:*\"]\nmaxMemory: 3\n").unwrap();
        let error = Policy::read(&path).unwrap_err().to_string();
        assert!(error.contains("maxMemory"), "{error}");
        std::fs::write(&path, "{\"images\": [\"python:*\"], \"maxPids\": 7}").unwrap();
        assert_eq!(Policy::read(&path).unwrap().max_pids, 7);
    }
}
