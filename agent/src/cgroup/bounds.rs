//! What a cgroup that holds sandboxes may use: the one of a reservation pod.

use std::path::{Path, PathBuf};

use super::{CgroupError, Controller, CoreList, Hierarchy, file};

/// Memory bounds of cgroup v1 from here on are none: it has no word for that.
const UNBOUNDED: u64 = 1 << 60;

/// Cores and memory of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Its core set.
    pub cores: CoreList,
    /// Its bound on memory in bytes, where it has one.
    pub memory_bytes: Option<u64>,
}

impl Bounds {
    /// Reads those of the pod's cgroup `parent`, a path or a systemd slice; `None` where it
    /// is not there yet, and Docker will make it. The kubelet bounds the memory of a pod, but
    /// the cores of its containers: the heaviest of them is the reservation, which other
    /// containers of the pod and sandboxes are light against.
    ///
    /// # Errors
    /// [`CgroupError::Io`] where its files cannot be read.
    pub fn of(hierarchy: &Hierarchy, parent: &str) -> Result<Option<Self>, CgroupError> {
        let parent = path_of(parent);
        let below = |controller| directory(hierarchy, controller, &parent);
        if !below(Controller::Memory)?.exists() {
            return Ok(None);
        }
        let (weight, set, limit) = match hierarchy {
            Hierarchy::V2 { .. } => ("cpu.weight", "cpuset.cpus.effective", "memory.max"),
            Hierarchy::V1 { .. } => ("cpu.shares", "cpuset.cpus", "memory.limit_in_bytes"),
        };
        let reservation = heaviest(&below(Controller::Cpu)?, weight);
        let sets = below(Controller::Cpuset)?;
        let own = read_cores(&sets.join(set))?;
        let cores = match reservation {
            Some(name) => read_cores(&sets.join(name).join(set)).unwrap_or_default(),
            None => CoreList::default(),
        };
        let memory = file::read(&below(Controller::Memory)?.join(limit))?;
        let memory_bytes = memory.trim().parse().ok().filter(|bytes| *bytes < UNBOUNDED);
        Ok(Some(Self { cores: if cores.is_empty() { own } else { cores }, memory_bytes }))
    }
}

/// Path below the root: `a-b.slice` is `a.slice/a-b.slice` (systemd.slice(5)).
fn path_of(parent: &str) -> PathBuf {
    let parent = parent.trim_start_matches('/');
    let Some(name) = parent.strip_suffix(".slice").filter(|name| !name.contains('/')) else {
        return parent.into();
    };
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| format!("{}.slice", &name[..end])).collect()
}

fn directory(
    hierarchy: &Hierarchy,
    controller: Controller,
    parent: &Path,
) -> Result<PathBuf, CgroupError> {
    match hierarchy {
        Hierarchy::V2 { root } => Ok(root.join(parent)),
        Hierarchy::V1 { root, mounts } => {
            let mount = mounts.get(&controller).ok_or_else(|| CgroupError::ControllerMissing {
                controller: controller.name(),
                root: root.clone(),
            })?;
            Ok(mount.join(parent))
        }
    }
}

/// Name of the child with the largest weight.
fn heaviest(directory: &Path, weight: &str) -> Option<std::ffi::OsString> {
    let children = std::fs::read_dir(directory).ok()?.flatten();
    let weighed = children.filter_map(|child| {
        Some((file::read_number(&child.path().join(weight)).ok()?, child.file_name()))
    });
    weighed.max().map(|(_, name)| name)
}

fn read_cores(path: &Path) -> Result<CoreList, CgroupError> {
    file::read(path)?.parse()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn slices_lie_in_each_other() {
        for (parent, path) in [
            ("/kubepods/pod1", "kubepods/pod1"),
            ("kubepods-pod1.slice", "kubepods.slice/kubepods-pod1.slice"),
            ("/kubepods.slice/kubepods-pod1.slice", "kubepods.slice/kubepods-pod1.slice"),
            ("a.slice", "a.slice"),
        ] {
            assert_eq!(path_of(parent), Path::new(path));
        }
    }

    #[test]
    fn on_v2_cores_are_the_reservations_and_memory_the_pods() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &[("cgroup.controllers", "cpuset cpu memory")]);
        let hierarchy = Hierarchy::detect(root.path()).unwrap();
        assert_eq!(Bounds::of(&hierarchy, "/kubepods/pod1").unwrap(), None);
        let pod = root.path().join("kubepods/pod1");
        write(&pod, &[("cpuset.cpus.effective", "0-7\n"), ("memory.max", "4096\n")]);
        let bounds = Bounds::of(&hierarchy, "/kubepods/pod1").unwrap().unwrap();
        assert_eq!((bounds.cores.to_string().as_str(), bounds.memory_bytes), ("0-7", Some(4096)));
        let child = |name: &str, weight: &str, cores: &str| {
            write(&pod.join(name), &[("cpu.weight", weight), ("cpuset.cpus.effective", cores)]);
        };
        child("pause", "1\n", "0-1\n");
        child("reservation", "235\n", "2-7\n");
        child("sandbox", "100\n", "0-7\n");
        write(&pod, &[("memory.max", "max\n")]);
        let bounds = Bounds::of(&hierarchy, "/kubepods/pod1").unwrap().unwrap();
        assert_eq!((bounds.cores.to_string().as_str(), bounds.memory_bytes), ("2-7", None));
    }

    #[test]
    fn on_v1_the_same_from_three_trees() {
        let root = tempfile::tempdir().unwrap();
        for name in ["cpu", "cpuset", "cpuacct", "memory", "freezer"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let hierarchy = Hierarchy::detect(root.path()).unwrap();
        let at = |path: &str| root.path().join(path);
        write(&at("memory/p"), &[("memory.limit_in_bytes", "9223372036854771712\n")]);
        write(&at("cpuset/p"), &[("cpuset.cpus", "0-3\n")]);
        write(&at("cpu/p/reservation"), &[("cpu.shares", "2048\n")]);
        write(&at("cpuset/p/reservation"), &[("cpuset.cpus", "2-3\n")]);
        let bounds = Bounds::of(&hierarchy, "p").unwrap().unwrap();
        assert_eq!((bounds.cores.to_string().as_str(), bounds.memory_bytes), ("2-3", None));
    }
}
