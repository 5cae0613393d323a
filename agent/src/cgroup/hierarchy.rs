use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::CgroupError;

/// Controllers that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Weights and the idle class.
    Cpu,
    /// CPU seconds (part of `cpu` on v2).
    Cpuacct,
    /// Core sets.
    Cpuset,
    /// Peak and out-of-memory kills.
    Memory,
    /// Bound on processes: set by Docker, never by us.
    Pids,
    /// Stops a tree while it is killed (part of every cgroup on v2).
    Freezer,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Cpuacct, Self::Cpuset, Self::Memory, Self::Pids, Self::Freezer];

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
        }
    }
}

/// How the cgroup file system under a root is laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    /// One tree a controller, as mounted under the root.
    V1 {
        /// The root, usually `/sys/fs/cgroup`.
        root: PathBuf,
        /// Mount point of each controller that is present; those mounted together share one.
        mounts: BTreeMap<Controller, PathBuf>,
    },
    /// One tree for all.
    V2 {
        /// The root, usually `/sys/fs/cgroup`.
        root: PathBuf,
    },
}

impl Hierarchy {
    /// Finds out what is mounted under `root`. On a machine with both, the one
    /// that has the CPU controllers counts.
    ///
    /// # Errors
    /// [`CgroupError::ControllerMissing`] when neither has `cpu`, `cpuset`, CPU
    /// accounting, `memory` and (on v1) `freezer`.
    pub fn detect(root: &Path) -> Result<Self, CgroupError> {
        if let Ok(controllers) = std::fs::read_to_string(root.join("cgroup.controllers")) {
            for needed in ["cpu", "cpuset", "memory"] {
                if !controllers.split_whitespace().any(|name| name == needed) {
                    let root = root.to_path_buf();
                    return Err(CgroupError::ControllerMissing { controller: needed, root });
                }
            }
            return Ok(Self::V2 { root: root.to_path_buf() });
        }
        let mut mounts = BTreeMap::new();
        for controller in Controller::ALL {
            let path = root.join(controller.name());
            // A controller mounted with others is a symbolic link to their directory.
            if let Ok(path) = path.canonicalize()
                && path.is_dir()
            {
                mounts.insert(controller, path);
            }
        }
        for needed in [
            Controller::Cpu,
            Controller::Cpuset,
            Controller::Cpuacct,
            Controller::Memory,
            Controller::Freezer,
        ] {
            if !mounts.contains_key(&needed) {
                let root = root.to_path_buf();
                return Err(CgroupError::ControllerMissing { controller: needed.name(), root });
            }
        }
        Ok(Self::V1 { root: root.to_path_buf(), mounts })
    }

    /// The root that it was detected under.
    pub fn root(&self) -> &Path {
        match self {
            Self::V1 { root, .. } | Self::V2 { root } => root,
        }
    }

    /// True on cgroup v2.
    pub fn is_v2(&self) -> bool {
        matches!(self, Self::V2 { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn v1_with_controllers_mounted_together() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["cpu,cpuacct", "cpuset", "memory", "freezer"] {
            fs::create_dir(root.path().join(dir)).unwrap();
        }
        for link in ["cpu", "cpuacct"] {
            std::os::unix::fs::symlink("cpu,cpuacct", root.path().join(link)).unwrap();
        }
        let Hierarchy::V1 { mounts, .. } = Hierarchy::detect(root.path()).unwrap() else {
            panic!("expected v1");
        };
        assert_eq!(mounts[&Controller::Cpu], mounts[&Controller::Cpuacct]);
        assert!(!mounts.contains_key(&Controller::Pids));
    }

    #[test]
    fn v2_lacking_a_controller_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let error = Hierarchy::detect(root.path()).unwrap_err().to_string();
        assert!(error.contains("cpuset"), "{error}");
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        assert!(Hierarchy::detect(root.path()).unwrap().is_v2());
    }

    #[test]
    fn an_empty_root_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(
            Hierarchy::detect(root.path()),
            Err(CgroupError::ControllerMissing { controller: "cpu", .. })
        ));
    }
}
