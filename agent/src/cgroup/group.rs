use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};

use super::v1::Dirs;
use super::{CgroupError, CoreList, Hierarchy, Usage, file, v2};

/// First and longest pause between two looks at whether a cgroup is empty.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Memory that a cgroup may hold and still be given to another action.
pub(super) const CLEAN_BYTES: u64 = 1 << 20;

/// One cgroup: a directory, or on v1 one in each controller's tree.
#[derive(Debug, Clone)]
pub(super) enum Group {
    V1(Dirs),
    V2(PathBuf),
}

impl Group {
    /// The cgroup at this path, relative to the root.
    pub(super) fn at(hierarchy: &Hierarchy, path: &Path) -> Result<Self, CgroupError> {
        let path = path.strip_prefix("/").unwrap_or(path);
        match hierarchy {
            Hierarchy::V1 { mounts, root } => Ok(Self::V1(Dirs::at(root, mounts, path)?)),
            Hierarchy::V2 { root } => Ok(Self::V2(root.join(path))),
        }
    }

    pub(super) fn child(&self, name: &str) -> Self {
        match self {
            Self::V1(dirs) => Self::V1(dirs.child(name)),
            Self::V2(dir) => Self::V2(dir.join(name)),
        }
    }

    /// The directory that errors name and whose children are listed.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::V1(dirs) => &dirs.cpu,
            Self::V2(dir) => dir,
        }
    }

    fn directories(&self) -> Vec<&Path> {
        match self {
            Self::V1(dirs) => dirs.distinct(),
            Self::V2(dir) => vec![dir],
        }
    }

    /// Makes the cgroup; on v1 it also gets the memory nodes of `parent`, and its
    /// cores, without which no process may enter. One that exists is taken as it is.
    pub(super) fn create(&self, parent: &Self) -> Result<(), CgroupError> {
        for directory in self.directories() {
            match fs::create_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(CgroupError::io("create", directory, error));
                }
                _ => {}
            }
        }
        match (self, parent) {
            (Self::V1(dirs), Self::V1(parent)) => dirs.inherit_cpuset(parent),
            _ => Ok(()),
        }
    }

    /// Removes the cgroup, and first what was made below it. Processes that are
    /// just dying are waited for until `limit` is over.
    pub(super) fn remove(&self, limit: Duration) -> Result<(), CgroupError> {
        self.directories().into_iter().rev().try_for_each(|directory| remove(directory, limit))
    }

    /// The files by which a process enters that writes `0` to each, opened for it. It
    /// must have one thread: on v1 the files move threads, for which the kernel need
    /// not wait until no process of the machine forks.
    pub(super) fn procs_fds(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let name = if matches!(self, Self::V1(_)) { "tasks" } else { "cgroup.procs" };
        self.directories()
            .into_iter()
            .map(|directory| {
                let path = directory.join(name);
                rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                    .map_err(|error| CgroupError::io("open", &path, error))
            })
            .collect()
    }

    /// Processes in it, in no child of it.
    pub(super) fn pids(&self) -> Result<Vec<u32>, CgroupError> {
        let mut pids = Vec::new();
        for directory in self.directories() {
            pids.extend(file::read_pids(&directory.join("cgroup.procs"))?);
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Moves a process in. One that ended meanwhile is no error.
    pub(super) fn add(&self, pid: u32) -> Result<(), CgroupError> {
        for directory in self.directories() {
            match file::write(&directory.join("cgroup.procs"), &pid.to_string()) {
                Err(CgroupError::Io { source, .. }) if ended(&source) => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }

    /// Moves every process of `self` to `target`; false when there were always new ones.
    pub(super) fn move_all(&self, target: &Self, moved: &mut usize) -> Result<bool, CgroupError> {
        /// Rounds after which something forks faster than we move.
        const ROUNDS: usize = 32;
        for _ in 0..ROUNDS {
            let pids = self.pids()?;
            if pids.is_empty() {
                return Ok(true);
            }
            *moved += pids.len();
            pids.into_iter().try_for_each(|pid| target.add(pid))?;
        }
        Ok(false)
    }

    /// Cores that it may use.
    pub(super) fn cores(&self) -> Result<CoreList, CgroupError> {
        match self {
            Self::V1(dirs) => file::read(&dirs.cpuset.join("cpuset.cpus"))?.parse(),
            Self::V2(dir) => file::read(&dir.join("cpuset.cpus.effective"))?.parse(),
        }
    }

    pub(super) fn set_cores(&self, cores: &CoreList) -> Result<(), CgroupError> {
        let directory = match self {
            Self::V1(dirs) => &dirs.cpuset,
            Self::V2(dir) => dir,
        };
        let path = directory.join("cpuset.cpus");
        file::write(&path, &cores.to_string())?;
        let read_back = if matches!(self, Self::V2(_)) {
            // Taken as written even where the parent has not these cores.
            directory.join("cpuset.cpus.effective")
        } else {
            path
        };
        let found = file::read(&read_back)?;
        if found.parse::<CoreList>()? == *cores {
            return Ok(());
        }
        Err(CgroupError::NotConfirmed {
            path: read_back,
            wanted: cores.to_string(),
            found: found.trim().to_owned(),
        })
    }

    /// Gives it this weight against its siblings, in CPU units.
    pub(super) fn set_weight(&self, units: f64) -> Result<(), CgroupError> {
        match self {
            Self::V1(dirs) => dirs.set_weight(units),
            Self::V2(dir) => v2::set_weight(dir, units),
        }
    }

    /// Sets or clears the idle class; a kernel without it gets the lowest weight.
    pub(super) fn set_idle(&self, idle: bool) -> Result<(), CgroupError> {
        let directory = match self {
            Self::V1(dirs) => &dirs.cpu,
            Self::V2(dir) => dir,
        };
        match file::write_number(&directory.join("cpu.idle"), u64::from(idle)) {
            Err(error) if error.is_gone() && directory.exists() => {
                if idle {
                    self.set_weight(f64::MIN_POSITIVE)
                } else {
                    Ok(())
                }
            }
            other => other,
        }
    }

    pub(super) fn usage(&self) -> Result<Usage, CgroupError> {
        match self {
            Self::V1(dirs) => dirs.usage(),
            Self::V2(dir) => v2::usage(dir),
        }
    }

    /// True while a process is in it. One that enters or leaves is in the first
    /// directory for longest: that one is looked at.
    pub(super) fn is_populated(&self) -> Result<bool, CgroupError> {
        let procs = match self {
            Self::V1(dirs) => dirs.cpu.join("cgroup.procs"),
            Self::V2(dir) => dir.join("cgroup.procs"),
        };
        Ok(!file::read_pids(&procs)?.is_empty())
    }

    /// Makes an empty one as good as new; false where it must be removed instead.
    pub(super) fn recycle(&self) -> Result<bool, CgroupError> {
        match self {
            Self::V1(dirs) => dirs.recycle(),
            Self::V2(dir) => v2::is_clean(dir),
        }
    }

    /// Kills every process in it and below it, and waits until none is left.
    pub(super) fn kill(&self, limit: Duration) -> Result<(), CgroupError> {
        let begun = Instant::now();
        loop {
            match self {
                Self::V1(dirs) => dirs.kill_once()?,
                Self::V2(dir) => v2::kill_once(dir)?,
            }
            // A process that was being forked or moved in may have escaped: look again.
            let round = (limit.saturating_sub(begun.elapsed())).min(Duration::from_millis(200));
            let left = self.wait_empty(round)?;
            if left == 0 {
                return Ok(());
            }
            let waited = begun.elapsed();
            if waited >= limit {
                return Err(CgroupError::StillPopulated {
                    path: self.path().to_path_buf(),
                    left,
                    waited,
                });
            }
        }
    }

    /// Waits until no process is in it; returns how many are left.
    fn wait_empty(&self, limit: Duration) -> Result<usize, CgroupError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let left = tree_pids(self)?.len();
            if left == 0 || begun.elapsed() >= limit {
                return Ok(left);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Names of the cgroups directly below.
    pub(super) fn children(&self) -> Result<Vec<String>, CgroupError> {
        let mut names = Vec::new();
        let entries = fs::read_dir(self.path())
            .map_err(|error| CgroupError::io("list", self.path(), error))?;
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }
}

/// Processes in it and in every cgroup below it.
pub(super) fn tree_pids(group: &Group) -> Result<Vec<u32>, CgroupError> {
    let mut pids = group.pids()?;
    for child in group.children()? {
        pids.extend(tree_pids(&group.child(&child))?);
    }
    Ok(pids)
}

/// Sends SIGKILL; a process that has ended is no error.
pub(super) fn kill_process(pid: u32, path: &Path) -> Result<(), CgroupError> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    match rustix::process::kill_process(pid, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(CgroupError::io("kill a process of", path, error)),
    }
}

fn remove(directory: &Path, limit: Duration) -> Result<(), CgroupError> {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => {
                return Err(CgroupError::io("remove", directory, error));
            }
            Err(error) if begun.elapsed() >= limit => {
                return Err(CgroupError::io("remove", directory, error));
            }
            Err(_) => {}
        }
        let entries =
            fs::read_dir(directory).map_err(|error| CgroupError::io("list", directory, error))?;
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path(), limit.saturating_sub(begun.elapsed()))?;
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}
