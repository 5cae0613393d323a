//! Everything that an agent is told at its start.

use std::path::PathBuf;
use std::time::Duration;

use crate::gpu::Gpus;
use crate::http::HttpConfig;
use crate::policy::Policy;
use crate::topology::Reserved;

/// Settings of one agent. [`AgentConfig::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Node name, unique in the pool; at most 63 of `[A-Za-z0-9._-]`.
    pub node: String,
    /// `ResourcePool` that the node belongs to.
    pub pool: String,
    /// Docker's unix socket.
    pub docker_socket: PathBuf,
    /// Docker configuration file with the credentials of registries (`auths`).
    pub docker_config: Option<PathBuf>,
    /// Directory of sockets and records, at the same path for Docker. It survives
    /// a restart of the agent.
    pub state_dir: PathBuf,
    /// The static helper `rollwright-init`, at the same path for Docker.
    pub init: PathBuf,
    /// Where the cgroup file systems are mounted.
    pub cgroup_root: PathBuf,
    /// Cgroup that sandboxes are made below; `None` is Docker's own.
    pub cgroup_parent: Option<String>,
    /// Root of `/proc` and `/sys` for the topology.
    pub system_root: PathBuf,
    /// Cores and memory kept back.
    pub reserved: Reserved,
    /// What this node accepts.
    pub policy: Policy,
    /// Resets that run at the same time; the others wait their turn.
    pub resets_at_once: usize,
    /// Ends all sandboxes when the agent ends cleanly.
    pub remove_on_exit: bool,
    /// When images are collected.
    pub images: ImageGc,
    /// Where metrics are served; `None` is nowhere.
    pub http: Option<HttpConfig>,
    /// Which GPUs the node offers.
    pub gpus: Gpus,
    /// Bytes of the node's memory that engines on GPUs may keep.
    pub engine_memory: u64,
    /// `ResourcePool` that the GPUs belong to; `None`: the node's own.
    pub gpu_pool: Option<String>,
}

/// When images that this agent pulled are removed.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageGc {
    /// Free part of the disk, 0 to 1, below which images go.
    pub low: f64,
    /// Free part of the disk at which it stops.
    pub high: f64,
    /// Time without use before an image may go.
    pub idle: Duration,
    /// How often the disk is looked at.
    pub every: Duration,
}

impl Default for ImageGc {
    fn default() -> Self {
        Self { low: 0.15, high: 0.25, idle: Duration::from_hours(1), every: Duration::from_mins(1) }
    }
}

impl AgentConfig {
    /// The defaults for a node of that name.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            pool: "default".into(),
            docker_socket: "/var/run/docker.sock".into(),
            docker_config: None,
            state_dir: "/var/lib/rollwright/agent".into(),
            init: "/usr/local/bin/rollwright-init".into(),
            cgroup_root: "/sys/fs/cgroup".into(),
            cgroup_parent: None,
            system_root: "/".into(),
            reserved: Reserved::default(),
            policy: Policy::default(),
            resets_at_once: 4,
            remove_on_exit: false,
            images: ImageGc::default(),
            http: None,
            gpus: Gpus::default(),
            engine_memory: 0,
            gpu_pool: None,
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The node's name.
    #[error("`{0}` is not a node name: use 1 to 63 characters of A-Z a-z 0-9 . _ -")]
    Node(String),
    /// Paths that Docker mounts must be absolute.
    #[error("{what} `{}` must be an absolute path, the same for Docker as for the agent", path.display())]
    RelativePath {
        /// Which setting.
        what: &'static str,
        /// What it was.
        path: PathBuf,
    },
    /// The helper is not there.
    #[error("no helper at `{}`: install rollwright-init there or give --init", .0.display())]
    NoInit(PathBuf),
    /// A socket path would be longer than the kernel takes.
    #[error("state directory `{}` is longer than {MAX_STATE_DIR} bytes, too long for the sockets below it", .0.display())]
    LongStateDir(PathBuf),
}

/// Longest state directory: the kernel's 108 bytes less what stands below it.
const MAX_STATE_DIR: usize = 60;

impl AgentConfig {
    /// Checks what can be checked without Docker.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if self.node.is_empty() || self.node.len() > 63 || !self.node.bytes().all(plain) {
            return Err(ConfigError::Node(self.node.clone()));
        }
        for (what, path) in [("state directory", &self.state_dir), ("helper", &self.init)] {
            if !path.is_absolute() {
                return Err(ConfigError::RelativePath { what, path: path.clone() });
            }
        }
        if self.state_dir.as_os_str().len() > MAX_STATE_DIR {
            return Err(ConfigError::LongStateDir(self.state_dir.clone()));
        }
        if !self.init.is_file() {
            return Err(ConfigError::NoInit(self.init.clone()));
        }
        Ok(())
    }
}
