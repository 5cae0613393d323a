//! The cgroup of a pod, by the pod's uid.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Controller, Hierarchy};

/// Depth and number of directories that a search looks through before it gives up. The kubelet
/// puts a Guaranteed pod at depth 2 below its own root.
const SEARCH_DEPTH: usize = 8;
const SEARCH_DIRECTORIES: usize = 50_000;

/// The cgroup of the pod with that uid, relative to the root of the hierarchy; `None` where it is
/// not there. Whichever driver the kubelet uses, and below whichever root, its name tells the uid:
/// `pod<uid>` (cgroupfs), or a slice that ends with `-pod<uid>` with `_` for `-` (systemd).
pub fn pod_cgroup(hierarchy: &Hierarchy, uid: &str) -> Option<PathBuf> {
    let root = match hierarchy {
        Hierarchy::V2 { root } => root,
        Hierarchy::V1 { mounts, .. } => mounts.get(&Controller::Memory)?,
    };
    let plain = format!("pod{uid}");
    let slice = format!("-pod{}.slice", uid.replace('-', "_"));
    let is = |name: &str| name == plain || name.ends_with(&slice);
    let mut ahead = VecDeque::from([(root.clone(), 0)]);
    let mut budget = SEARCH_DIRECTORIES;
    while let Some((directory, depth)) = ahead.pop_front() {
        // What is removed meanwhile is not looked for.
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if entry.file_name().to_str().is_some_and(is) {
                return path.strip_prefix(root).ok().map(Path::to_path_buf);
            }
            budget = budget.checked_sub(1)?;
            if depth + 1 < SEARCH_DEPTH {
                ahead.push_back((path, depth + 1));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "5c8b2f3e-1a2b";

    fn v2(cgroups: &[&str]) -> (tempfile::TempDir, Hierarchy) {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu memory pids").unwrap();
        for cgroup in cgroups {
            fs::create_dir_all(root.path().join(cgroup)).unwrap();
        }
        let hierarchy = Hierarchy::detect(root.path()).unwrap();
        (root, hierarchy)
    }

    #[test]
    fn it_is_found_under_either_driver_and_below_any_root() {
        let other = "kubepods/burstable/pod00000000-0000/container";
        for cgroup in [
            "kubepods/pod5c8b2f3e-1a2b",
            "kubelet/kubepods/pod5c8b2f3e-1a2b",
            "kubepods.slice/kubepods-pod5c8b2f3e_1a2b.slice",
            "docker/abc/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod5c8b2f3e_1a2b.slice",
        ] {
            let (_root, hierarchy) = v2(&[other, cgroup, "system.slice/pod5c8b2f3e-1a2b.mount"]);
            assert_eq!(pod_cgroup(&hierarchy, UID).as_deref(), Some(Path::new(cgroup)));
        }
        let (_root, hierarchy) = v2(&[other]);
        assert_eq!(pod_cgroup(&hierarchy, UID), None);
    }

    #[test]
    fn on_v1_it_is_looked_for_where_memory_is() {
        let root = tempfile::tempdir().unwrap();
        for name in ["cpu", "cpuset", "cpuacct", "memory", "freezer"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let hierarchy = Hierarchy::detect(root.path()).unwrap();
        assert_eq!(pod_cgroup(&hierarchy, UID), None);
        let cgroup = "kubepods/pod5c8b2f3e-1a2b";
        fs::create_dir_all(root.path().join("memory").join(cgroup)).unwrap();
        assert_eq!(pod_cgroup(&hierarchy, UID).as_deref(), Some(Path::new(cgroup)));
    }
}
