//! What the tests and the benchmark share.
#![allow(dead_code, reason = "each user of this module needs another part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub(crate) mod helper;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rollwright_agent::cgroup::{
    ActionCgroup, Controller, CoreList, CpuGrant, Hierarchy, SandboxCgroup,
};

/// Generous: a slow machine is no failure.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// A cgroup that stands for a container's, and processes in it, all gone at the end.
pub(crate) struct Container {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) path: PathBuf,
    pub(crate) init: Child,
}

impl Container {
    /// `None`, and the reason printed, where this cannot be tested.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = std::env::var_os("ROLLWRIGHT_CGROUP_ROOT")
            .map_or_else(|| PathBuf::from("/sys/fs/cgroup"), PathBuf::from);
        let hierarchy = match Hierarchy::detect(&root) {
            Ok(hierarchy) => hierarchy,
            Err(error) => return skip(&error.to_string()),
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("rollwright-test-{}-{number}", std::process::id()));
        for dir in directories(&hierarchy, &path) {
            if let Err(error) = fs::create_dir(&dir) {
                return skip(&format!("cannot create {}: {error}", dir.display()));
            }
        }
        match &hierarchy {
            Hierarchy::V1 { mounts, .. } => {
                let cpuset = &mounts[&Controller::Cpuset];
                for name in ["cpuset.mems", "cpuset.cpus"] {
                    let all = fs::read_to_string(cpuset.join(name)).unwrap();
                    fs::write(cpuset.join(&path).join(name), all.trim()).unwrap();
                }
            }
            Hierarchy::V2 { root } => {
                let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap();
                for name in ["cpuset", "cpu", "memory", "pids"] {
                    assert!(enabled.contains(name), "enable {name} in {}", root.display());
                }
            }
        }
        let init = Command::new("sleep").arg("1000").spawn().unwrap();
        let container = Self { hierarchy, path, init };
        container.take_in(container.init.id());
        Some(container)
    }

    pub(crate) fn take_in(&self, pid: u32) {
        for dir in directories(&self.hierarchy, &self.path) {
            fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
        }
    }

    pub(crate) fn adopt(&self) -> SandboxCgroup {
        SandboxCgroup::adopt(&self.hierarchy, &self.path).unwrap()
    }

    pub(crate) fn file(&self, controller: Controller, cgroup: &str, name: &str) -> PathBuf {
        directory(&self.hierarchy, controller, &self.path).join(cgroup).join(name)
    }

    pub(crate) fn read(&self, controller: Controller, cgroup: &str, name: &str) -> String {
        let path = self.file(controller, cgroup, name);
        fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .trim()
            .to_owned()
    }

    pub(crate) fn read_v1_or_v2(
        &self,
        controller: Controller,
        cgroup: &str,
        names: [&str; 2],
    ) -> String {
        self.read(controller, cgroup, names[usize::from(self.hierarchy.is_v2())])
    }

    pub(crate) fn set_v1_or_v2(&self, controller: Controller, names: [&str; 2], value: &str) {
        let name = names[usize::from(self.hierarchy.is_v2())];
        fs::write(self.file(controller, "", name), value).unwrap();
    }

    /// Weight in thousandths of a unit.
    pub(crate) fn weight(&self, cgroup: &str) -> u64 {
        let text = self.read_v1_or_v2(Controller::Cpu, cgroup, ["cpu.shares", "cpu.weight"]);
        let per_unit = if self.hierarchy.is_v2() { 100 } else { 1024 };
        text.parse::<u64>().unwrap() * 1000 / per_unit
    }

    pub(crate) fn is_idle(&self, cgroup: &str) -> bool {
        self.read(Controller::Cpu, cgroup, "cpu.idle") == "1"
    }

    pub(crate) fn cores_of(&self, cgroup: &str) -> CoreList {
        self.read(Controller::Cpuset, cgroup, "cpuset.cpus").parse().unwrap()
    }

    pub(crate) fn all_cores(&self) -> CoreList {
        self.read_v1_or_v2(Controller::Cpuset, "", ["cpuset.cpus", "cpuset.cpus.effective"])
            .parse()
            .unwrap()
    }

    /// Runs a script as an action's first process, entered before it starts.
    pub(crate) fn run(&self, action: &ActionCgroup, script: &str) -> Child {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        if let Hierarchy::V1 { mounts, .. } = &self.hierarchy {
            // A child of the helper is born in the container's.
            let procs = mounts[&Controller::Pids].join(&self.path).join("cgroup.procs");
            fs::write(procs, child.id().to_string()).unwrap();
        }
        for fd in action.procs_fds().unwrap() {
            fs::File::from(fd).write_all(child.id().to_string().as_bytes()).unwrap();
        }
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Ok(sandbox) = SandboxCgroup::adopt(&self.hierarchy, &self.path) {
            for name in sandbox.actions().unwrap_or_default() {
                let grant = CpuGrant { cores: self.all_cores(), units: 1.0 };
                if let Ok(action) = sandbox.open_action(&name, &grant) {
                    let _ = action.kill(LIMIT);
                    let _ = action.park();
                }
            }
            let _ = sandbox.kill_parked(LIMIT);
        }
        let _ = self.init.kill();
        let _ = self.init.wait();
        for dir in directories(&self.hierarchy, &self.path) {
            for child in ["parked", "init"] {
                let _ = until(|| {
                    let child = dir.join(child);
                    !child.exists() || fs::remove_dir(&child).is_ok()
                });
            }
            let _ = until(|| fs::remove_dir(&dir).is_ok());
        }
    }
}

pub(crate) fn skip<T>(reason: &str) -> Option<T> {
    // Past the capture of the test harness: a test that did not test says so.
    let _ = writeln!(std::io::stderr(), "SKIPPED, nothing was tested: {reason}");
    None
}

fn directory(hierarchy: &Hierarchy, controller: Controller, path: &Path) -> PathBuf {
    match hierarchy {
        Hierarchy::V1 { mounts, .. } => mounts[&controller].join(path),
        Hierarchy::V2 { root } => root.join(path),
    }
}

fn directories(hierarchy: &Hierarchy, path: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = match hierarchy {
        Hierarchy::V1 { mounts, .. } => mounts.values().map(|mount| mount.join(path)).collect(),
        Hierarchy::V2 { root } => vec![root.join(path)],
    };
    all.sort();
    all.dedup();
    all
}

/// Waits for a condition; false after a generous limit.
pub(crate) fn until(mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > LIMIT {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

pub(crate) fn grant(cores: &[u32], units: f64) -> CpuGrant {
    CpuGrant { cores: cores.iter().copied().collect(), units }
}
