use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::{CgroupError, Controller, Usage, file, group};

/// Weight of one CPU unit, and the bounds of the kernel.
const SHARES_PER_UNIT: f64 = 1024.0;
const MIN_SHARES: f64 = 2.0;
const MAX_SHARES: f64 = 262_144.0;
/// How long a tree may take to stand still before it is killed as it is.
const FREEZE_LIMIT: Duration = Duration::from_millis(100);

/// The directories of one cgroup.
#[derive(Debug, Clone)]
pub(super) struct Dirs {
    pub(super) cpu: PathBuf,
    pub(super) cpuset: PathBuf,
    cpuacct: PathBuf,
    memory: PathBuf,
    freezer: PathBuf,
}

impl Dirs {
    pub(super) fn at(
        root: &Path,
        mounts: &BTreeMap<Controller, PathBuf>,
        path: &Path,
    ) -> Result<Self, CgroupError> {
        let dir = |controller: Controller| {
            mounts.get(&controller).map(|mount| mount.join(path)).ok_or_else(|| {
                CgroupError::ControllerMissing {
                    controller: controller.name(),
                    root: root.to_path_buf(),
                }
            })
        };
        Ok(Self {
            cpu: dir(Controller::Cpu)?,
            cpuset: dir(Controller::Cpuset)?,
            cpuacct: dir(Controller::Cpuacct)?,
            memory: dir(Controller::Memory)?,
            freezer: dir(Controller::Freezer)?,
        })
    }

    pub(super) fn child(&self, name: &str) -> Self {
        Self {
            cpu: self.cpu.join(name),
            cpuset: self.cpuset.join(name),
            cpuacct: self.cpuacct.join(name),
            memory: self.memory.join(name),
            freezer: self.freezer.join(name),
        }
    }

    /// Each directory once, controllers mounted together being one.
    pub(super) fn distinct(&self) -> Vec<&Path> {
        let mut distinct: Vec<&Path> = Vec::with_capacity(5);
        for path in [&self.cpu, &self.cpuset, &self.cpuacct, &self.memory, &self.freezer] {
            if !distinct.contains(&path.as_path()) {
                distinct.push(path);
            }
        }
        distinct
    }

    /// Cores and memory nodes of the parent, where it has none yet.
    pub(super) fn inherit_cpuset(&self, parent: &Self) -> Result<(), CgroupError> {
        for name in ["cpuset.mems", "cpuset.cpus"] {
            let path = self.cpuset.join(name);
            if file::read(&path)?.trim().is_empty() {
                file::write(&path, file::read(&parent.cpuset.join(name))?.trim())?;
            }
        }
        Ok(())
    }

    pub(super) fn set_weight(&self, units: f64) -> Result<(), CgroupError> {
        let shares = (units * SHARES_PER_UNIT).round().clamp(MIN_SHARES, MAX_SHARES);
        file::write_number(&self.cpu.join("cpu.shares"), shares as u64)
    }

    pub(super) fn usage(&self) -> Result<Usage, CgroupError> {
        let nanoseconds = file::read_number(&self.cpuacct.join("cpuacct.usage"))?;
        Ok(Usage {
            cpu_s: nanoseconds as f64 / 1e9,
            memory_peak_bytes: file::read_number(&self.memory.join("memory.max_usage_in_bytes"))?,
            memory_peak_sampled: false,
            oom_kills: file::read_keyed(&self.memory.join("memory.oom_control"), "oom_kill")?,
        })
    }

    /// Makes it as good as new for another action; false where it still holds memory
    /// that would count as the next one's.
    pub(super) fn recycle(&self) -> Result<bool, CgroupError> {
        let held = file::read_number(&self.memory.join("memory.usage_in_bytes"))?;
        if held > group::CLEAN_BYTES {
            return Ok(false);
        }
        file::write(&self.memory.join("memory.max_usage_in_bytes"), "0")?;
        Ok(true)
    }

    /// Stops the tree, so that nothing in it can fork away, and kills it.
    pub(super) fn kill_once(&self) -> Result<(), CgroupError> {
        let state = self.freezer.join("freezer.state");
        file::write(&state, "FROZEN")?;
        let killed = self.kill_frozen(&state);
        file::write(&state, "THAWED")?;
        killed
    }

    fn kill_frozen(&self, state: &Path) -> Result<(), CgroupError> {
        let begun = Instant::now();
        while file::read(state)?.trim() != "FROZEN" && begun.elapsed() < FREEZE_LIMIT {
            thread::sleep(Duration::from_micros(100));
        }
        for pid in group::tree_pids(&group::Group::V1(self.clone()))? {
            group::kill_process(pid, &self.freezer)?;
        }
        Ok(())
    }
}
