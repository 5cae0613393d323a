use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{CgroupError, Controller, Hierarchy};

/// Depth and number of directories that a search looks through before it gives up.
const SEARCH_DEPTH: usize = 10;
const SEARCH_DIRECTORIES: usize = 50_000;

/// The cgroup of a container, relative to the root of its hierarchy, found by the
/// container's first process: `proc_root` is usually `/proc`, `pid` is that
/// process as this process sees it.
///
/// What `/proc/<pid>/cgroup` says is relative to the reader's cgroup namespace, so
/// it is believed only where the cgroup really holds the process; otherwise the
/// tree is searched for it. The leaf `init` that [`super::SandboxCgroup::adopt`]
/// made is left away, so the answer is the same after a restart of the agent.
///
/// # Errors
/// [`CgroupError::ProcessNotFound`] when no cgroup under the root holds it.
pub fn container_cgroup(
    hierarchy: &Hierarchy,
    proc_root: &Path,
    pid: u32,
) -> Result<PathBuf, CgroupError> {
    let proc_file = proc_root.join(pid.to_string()).join("cgroup");
    let text = super::file::read(&proc_file)?;
    let mount = match hierarchy {
        Hierarchy::V2 { root } => root.clone(),
        Hierarchy::V1 { mounts, root } => mounts
            .get(&Controller::Cpu)
            .cloned()
            .unwrap_or_else(|| root.join(Controller::Cpu.name())),
    };
    let told = path_in(&text, hierarchy.is_v2()).ok_or_else(|| CgroupError::Malformed {
        path: proc_file,
        found: text.chars().take(80).collect(),
        expected: "a line of the cpu controller or of cgroup v2",
    })?;
    let found = if holds(&mount.join(&told), pid) {
        Some(told)
    } else {
        let mut budget = SEARCH_DIRECTORIES;
        search(&mount, pid, SEARCH_DEPTH, &mut budget)
            .and_then(|path| path.strip_prefix(&mount).ok().map(Path::to_path_buf))
    };
    match found {
        Some(path) if path.file_name().is_some_and(|name| name == super::sandbox::INIT) => {
            Ok(path.parent().map(Path::to_path_buf).unwrap_or_default())
        }
        Some(path) => Ok(path),
        None => Err(CgroupError::ProcessNotFound { root: hierarchy.root().to_path_buf(), pid }),
    }
}

/// The path in `/proc/<pid>/cgroup`, without leading `/` and `..`.
fn path_in(text: &str, v2: bool) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let wanted = if v2 {
            number == "0" && controllers.is_empty()
        } else {
            controllers.split(',').any(|name| name == Controller::Cpu.name())
        };
        wanted.then_some(path)
    })?;
    Some(Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect())
}

fn holds(directory: &Path, pid: u32) -> bool {
    super::file::read_pids(&directory.join("cgroup.procs")).is_ok_and(|pids| pids.contains(&pid))
}

fn search(directory: &Path, pid: u32, depth: usize, budget: &mut usize) -> Option<PathBuf> {
    if holds(directory, pid) {
        return Some(directory.to_path_buf());
    }
    if depth == 0 {
        return None;
    }
    for entry in fs::read_dir(directory).ok()?.flatten() {
        if *budget == 0 {
            return None;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            *budget -= 1;
            if let Some(found) = search(&entry.path(), pid, depth - 1, budget) {
                return Some(found);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn v2(cgroup: &str, line: &str, pid: u32) -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(fake.root().join(cgroup)).unwrap();
            fs::write(fake.root().join("cgroup.controllers"), "cpuset cpu memory pids").unwrap();
            fs::write(fake.root().join(cgroup).join("cgroup.procs"), format!("1\n{pid}\n"))
                .unwrap();
            let proc = fake.0.path().join("proc").join(pid.to_string());
            fs::create_dir_all(&proc).unwrap();
            fs::write(proc.join("cgroup"), line).unwrap();
            fake
        }

        fn root(&self) -> PathBuf {
            self.0.path().join("cgroup")
        }

        fn locate(&self, pid: u32) -> Result<PathBuf, CgroupError> {
            let hierarchy = Hierarchy::detect(&self.root())?;
            container_cgroup(&hierarchy, &self.0.path().join("proc"), pid)
        }
    }

    #[test]
    fn the_path_of_the_same_namespace_is_believed() {
        let fake = Fake::v2("docker/abc", "0::/docker/abc\n", 7);
        assert_eq!(fake.locate(7).unwrap(), Path::new("docker/abc"));
    }

    #[test]
    fn the_leaf_of_an_adopted_sandbox_is_left_away() {
        let fake = Fake::v2("docker/abc/init", "0::/docker/abc/init\n", 7);
        assert_eq!(fake.locate(7).unwrap(), Path::new("docker/abc"));
    }

    #[test]
    fn a_path_of_another_namespace_is_searched() {
        let fake = Fake::v2("kubepods/pod1/docker/abc", "0::/../docker/abc\n", 7);
        assert_eq!(fake.locate(7).unwrap(), Path::new("kubepods/pod1/docker/abc"));
        let fake = Fake::v2("docker/abc", "0::/../../docker/abc\n", 7);
        assert_eq!(fake.locate(7).unwrap(), Path::new("docker/abc"));
    }

    #[test]
    fn a_process_that_no_cgroup_holds_is_an_error() {
        let fake = Fake::v2("docker/abc", "0::/docker/abc\n", 7);
        fs::create_dir_all(fake.0.path().join("proc/8")).unwrap();
        fs::write(fake.0.path().join("proc/8/cgroup"), "0::/docker/abc\n").unwrap();
        assert!(matches!(fake.locate(8), Err(CgroupError::ProcessNotFound { pid: 8, .. })));
        assert!(matches!(fake.locate(9), Err(CgroupError::Io { .. })));
    }

    #[test]
    fn lines_of_v1_are_understood() {
        let text = "5:freezer:/f\n4:cpu,cpuacct:/docker/x\n0::/u\n";
        assert_eq!(path_in(text, false).unwrap(), Path::new("docker/x"));
        assert_eq!(path_in(text, true).unwrap(), Path::new("u"));
    }
}
