use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a cgroup operation failed; every variant names the path.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A file or directory operation failed.
    #[error("cannot {op} {path}: {source}", path = path.display())]
    Io {
        /// What was tried: `read`, `write "0-3" to`, `create`, `remove`.
        op: String,
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel took a write but the file reads otherwise.
    #[error("{path} reads {found:?} after {wanted:?} was written", path = path.display())]
    NotConfirmed {
        /// File.
        path: PathBuf,
        /// What was written.
        wanted: String,
        /// What it reads.
        found: String,
    },
    /// A file holds something that cannot be understood.
    #[error("{path} holds {found:?}, expected {expected}", path = path.display())]
    Malformed {
        /// File.
        path: PathBuf,
        /// Its content, shortened.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A list of cores cannot be understood.
    #[error("{text:?} is not a list of cores such as \"0-3,8\"")]
    BadCoreList {
        /// The text.
        text: String,
    },
    /// A grant without cores, or with units that are not positive.
    #[error("a grant needs at least one core and positive units, not {cores:?} and {units}")]
    BadGrant {
        /// The cores.
        cores: String,
        /// The units.
        units: f64,
    },
    /// The root holds no cgroup hierarchy, or lacks a controller that we need.
    #[error("no cgroup controller {controller} under {root}; mount it there or give the right root",
        root = root.display())]
    ControllerMissing {
        /// The controller, or `any`.
        controller: &'static str,
        /// Root that was looked in.
        root: PathBuf,
    },
    /// No cgroup under the root holds this process.
    #[error("no cgroup under {root} holds process {pid}; the agent needs the host's process \
        and cgroup namespaces", root = root.display())]
    ProcessNotFound {
        /// Root that was looked in.
        root: PathBuf,
        /// Process, in the caller's process namespace.
        pid: u32,
    },
    /// Processes were still there when the time was over.
    #[error("{left} processes still live in {path} after {waited:?}", path = path.display())]
    StillPopulated {
        /// Cgroup.
        path: PathBuf,
        /// How many processes.
        left: usize,
        /// How long was waited.
        waited: Duration,
    },
}

impl CgroupError {
    pub(crate) fn io(op: impl Into<String>, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { op: op.into(), path: path.to_path_buf(), source: source.into() }
    }

    /// True when the file or cgroup is not there: its container was removed.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
            }
            _ => false,
        }
    }
}
