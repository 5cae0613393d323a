//! The cgroup of a node's engines. It bounds their memory together, so that what they take too
//! much is theirs to miss and not the sandboxes'; and it holds each engine that is a process
//! with all that it starts.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollwright_core::gpu::EngineId;

use crate::cgroup::{CgroupError, Controller, Hierarchy};

/// Between two looks whether the bound still stands.
const KEEP: Duration = Duration::from_secs(1);
/// The kernel rounds bounds to pages, of 64 KiB at most.
const PAGE: u64 = 64 << 10;

/// Made when the first engine starts, removed with the last.
#[derive(Debug)]
pub struct Fence {
    hierarchy: Hierarchy,
    /// Where memory is accounted.
    memory: PathBuf,
    name: String,
    bytes: u64,
    changing: Mutex<()>,
}

impl Fence {
    /// For the engines of one agent, which have `bytes` of memory together; 0 is no bound.
    pub fn new(cgroup_root: &Path, agent: &str, bytes: u64) -> Result<Self, CgroupError> {
        let hierarchy = Hierarchy::detect(cgroup_root)?;
        let memory = match &hierarchy {
            Hierarchy::V2 { root } => root,
            Hierarchy::V1 { root, mounts } => mounts.get(&Controller::Memory).unwrap_or(root),
        };
        // Of a form that systemd takes for a slice of its own as well, where Docker uses it.
        let name = format!("rollwright_engines_{agent}.slice");
        Ok(Self { memory: memory.clone(), hierarchy, name, bytes, changing: Mutex::default() })
    }

    /// Its path below the root.
    pub(super) fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// Bytes of memory that engines have together; 0 is no bound.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes it, where it is not there, and sets the bound.
    pub(super) fn raise(&self) -> io::Result<()> {
        let _one = self.lock();
        self.make()
    }

    /// Sets the bound again where it was lost, without end: systemd knows nothing of it, and
    /// Docker makes the cgroup anew where it is missing.
    pub async fn keep(self: Arc<Self>) {
        let mut said = false;
        loop {
            tokio::time::sleep(KEEP).await;
            let us = Arc::clone(&self);
            let kept = tokio::task::spawn_blocking(move || us.bound_again()).await;
            let kept = kept.map_err(io::Error::other).and_then(|kept| kept);
            if let Err(error) = &kept
                && !said
            {
                tracing::warn!(cgroup = self.name, %error, "the memory of engines is not bounded");
            }
            said = kept.is_err();
        }
    }

    /// Makes a cgroup for one engine, with a bound of its own, and opens the file by which a
    /// process enters that writes `0` to it.
    pub(super) fn enclose(&self, engine: EngineId, most: Option<u64>) -> io::Result<fs::File> {
        let _one = self.lock();
        self.make()?;
        let dir = self.of(engine);
        make_dir(&dir)?;
        if let Some(bytes) = most {
            self.bound(&dir, bytes)?;
        }
        // On v1 the other file moves whole processes, for which the kernel waits long.
        let entry = if self.hierarchy.is_v2() { "cgroup.procs" } else { "tasks" };
        fs::File::options().write(true).open(dir.join(entry))
    }

    /// The processes of an engine; `None` for one that it does not hold.
    pub(super) fn pids(&self, engine: EngineId) -> io::Result<Option<Vec<u32>>> {
        match fs::read_to_string(self.of(engine).join("cgroup.procs")) {
            // Those of another namespace of processes read as 0.
            Ok(text) => {
                Ok(Some(text.lines().filter_map(|l| l.parse().ok()).filter(|p| *p > 0).collect()))
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a process of an engine was killed because there was no memory left for it.
    pub(super) fn ran_out(&self, engine: EngineId) -> bool {
        let events = if self.hierarchy.is_v2() { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.of(engine).join(events)).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        kills.is_some_and(|kills: u64| kills > 0)
    }

    /// Engines that it holds as processes.
    pub(super) fn held(&self) -> Vec<EngineId> {
        let entries = fs::read_dir(self.memory.join(&self.name)).into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix("e-")?.parse().ok();
        entries.filter_map(|entry| number(entry.file_name().to_str()?).map(EngineId)).collect()
    }

    /// Removes an engine's cgroup, in which no process is, and the whole after the last.
    pub(super) fn remove(&self, engine: EngineId) {
        let _one = self.lock();
        // One that is in use stays.
        let _in_use = fs::remove_dir(self.of(engine));
        self.lower();
    }

    /// Removes the whole, if nothing is in it.
    pub(super) fn tidy(&self) {
        let _one = self.lock();
        self.lower();
    }

    fn lower(&self) {
        let root = self.hierarchy.root();
        let mut mounts = vec![root.to_owned()];
        if !self.hierarchy.is_v2() {
            mounts.extend(fs::read_dir(root).into_iter().flatten().flatten().map(|of| of.path()));
        }
        for mount in mounts {
            let _in_use = fs::remove_dir(mount.join(&self.name));
        }
    }

    fn of(&self, engine: EngineId) -> PathBuf {
        self.memory.join(&self.name).join(format!("e-{}", engine.0))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self) -> io::Result<()> {
        let dir = self.memory.join(&self.name);
        make_dir(&dir)?;
        if self.hierarchy.is_v2() {
            for above in [&self.memory, &dir] {
                write(&above.join("cgroup.subtree_control"), "+memory")?;
            }
        } else {
            // The only way on newer kernels, which may have lost the file.
            let _only = write(&dir.join("memory.use_hierarchy"), "1");
        }
        self.bound_all()
    }

    fn bound_all(&self) -> io::Result<()> {
        if self.bytes == 0 { Ok(()) } else { self.bound(&self.memory.join(&self.name), self.bytes) }
    }

    fn bound_again(&self) -> io::Result<()> {
        let _one = self.lock();
        match self.bound_all() {
            Err(error) if is_gone(&error) => Ok(()),
            bounded => bounded,
        }
    }

    fn bound(&self, dir: &Path, bytes: u64) -> io::Result<()> {
        let (memory, swap, most) = if self.hierarchy.is_v2() {
            ("memory.max", "memory.swap.max", 0)
        } else {
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes)
        };
        let swap = dir.join(swap);
        // On v1 that of both may never be the lower one: to raise them it comes first.
        let _lowered = set(&swap, most);
        set(&dir.join(memory), bytes)?;
        match set(&swap, most) {
            // A kernel that does not count what is swapped.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) => {
                Ok(())
            }
            bounded => bounded,
        }
    }
}

/// Sets a bound, where it is not set.
fn set(bound: &Path, bytes: u64) -> io::Result<()> {
    let set = fs::read_to_string(bound)?.trim().parse::<u64>();
    if set.is_ok_and(|set| set.abs_diff(bytes) < PAGE) {
        return Ok(());
    }
    write(bound, &bytes.to_string())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::File::options().write(true).open(path)?.write_all(text.as_bytes())
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// A cgroup that is not there, or was removed while it was read.
fn is_gone(error: &io::Error) -> bool {
    let no_device = rustix::io::Errno::NODEV.raw_os_error();
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(no_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: EngineId = EngineId(3);
    const NAME: &str = "rollwright_engines_a.slice";

    fn files(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    /// Encloses an engine in directories that have the kernel's files already.
    fn enclosed(root: &Path, memory: &Path) -> Fence {
        let fence = Fence::new(root, "a", 1 << 30).unwrap();
        assert_eq!(fence.memory, memory);
        let mut entry = fence.enclose(ENGINE, Some(1 << 20)).unwrap();
        entry.write_all(b"0").unwrap();
        assert_eq!(fence.held(), [ENGINE]);
        fence
    }

    fn text(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn on_v2_all_and_each_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let (all, each) = (root.join(NAME), root.join(NAME).join("e-3"));
        files(root, &[("cgroup.controllers", "cpuset cpu memory"), ("cgroup.subtree_control", "")]);
        files(&all, &[("cgroup.subtree_control", ""), ("memory.max", "max\n")]);
        files(&all, &[("memory.swap.max", "max\n")]);
        let procs = "0\n17\n18\n";
        files(&each, &[("memory.max", "max\n"), ("cgroup.procs", procs)]);
        files(&each, &[("memory.swap.max", "max\n")]);
        let fence = enclosed(root, root);
        for above in [root, &all] {
            assert_eq!(text(above.join("cgroup.subtree_control")), "+memory");
        }
        assert_eq!(text(all.join("memory.max")), "1073741824");
        assert!(text(each.join("memory.max")).starts_with("1048576"));
        for bounded in [&all, &each] {
            assert!(text(bounded.join("memory.swap.max")).starts_with('0'), "no more by swapping");
        }
        assert_eq!(fence.pids(ENGINE).unwrap(), Some(vec![17, 18]));
        assert_eq!(fence.pids(EngineId(4)).unwrap(), None);
        assert!(!fence.ran_out(ENGINE));
        files(&each, &[("memory.events", "low 0\noom 1\noom_kill 1\n")]);
        assert!(fence.ran_out(ENGINE));
        // What took the bound away is set right, and what the kernel rounds is left.
        files(&all, &[("memory.max", "max\n")]);
        fence.bound_again().unwrap();
        assert!(text(all.join("memory.max")).starts_with("1073741824"));
        files(&all, &[("memory.max", "1073676289\n")]);
        fence.bound_again().unwrap();
        assert_eq!(text(all.join("memory.max")), "1073676289\n");
    }

    #[test]
    fn on_v1_it_is_where_memory_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for name in ["cpu", "cpuset", "cpuacct", "freezer", "memory"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let memory = root.join("memory").canonicalize().unwrap();
        let (all, each) = (memory.join(NAME), memory.join(NAME).join("e-3"));
        files(
            &all,
            &[("memory.use_hierarchy", "1"), ("memory.limit_in_bytes", "9223372036854771712\n")],
        );
        files(&each, &[("memory.limit_in_bytes", "9223372036854771712\n"), ("tasks", "")]);
        for bounded in [&all, &each] {
            files(bounded, &[("memory.memsw.limit_in_bytes", "9223372036854771712\n")]);
        }
        let fence = enclosed(root, &memory);
        assert!(text(all.join("memory.limit_in_bytes")).starts_with("1073741824"));
        assert!(text(each.join("memory.limit_in_bytes")).starts_with("1048576"));
        let with_swap = "memory.memsw.limit_in_bytes";
        assert!(text(all.join(with_swap)).starts_with("1073741824"));
        assert!(text(each.join(with_swap)).starts_with("1048576"));
        assert_eq!(text(each.join("tasks")), "0");
        files(&each, &[("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")]);
        assert!(fence.ran_out(ENGINE));
    }
}
