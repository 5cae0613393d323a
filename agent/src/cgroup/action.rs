use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::group::Group;
use super::sandbox::Inner;
use super::{CgroupError, CpuGrant};

/// How long the removal of a cgroup whose processes have ended may take.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// How long a kill may take inside [`ActionCgroup::park`].
const PARK_KILL_LIMIT: Duration = Duration::from_secs(5);

/// What an action used until now, its whole process tree.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// CPU seconds.
    pub cpu_s: f64,
    /// Highest memory in bytes, page cache included.
    pub memory_peak_bytes: u64,
    /// The kernel keeps no peak (v2 before Linux 5.19): the number above is what
    /// it held at the moment of the question.
    pub memory_peak_sampled: bool,
    /// Processes of the action that the kernel killed for want of memory.
    pub oom_kills: u64,
}

/// What an action left behind when it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Processes that were moved to `parked`.
    pub parked: usize,
    /// They forked faster than they could be moved, and were killed.
    pub killed: bool,
}

/// The cgroup of one running action. Dropped without [`ActionCgroup::park`] it
/// stays, and [`super::SandboxCgroup::open_action`] finds it again.
#[derive(Debug)]
pub struct ActionCgroup {
    pub(super) sandbox: Arc<Inner>,
    pub(super) group: Group,
    pub(super) name: String,
}

impl ActionCgroup {
    /// Its name below the sandbox's cgroup, to find it again after a restart.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `cgroup.procs` of each of its directories (one on v2), open for writing: a
    /// process that writes `0` to all of them enters the cgroup. The kernel checks
    /// the rights of whoever opened them.
    pub fn procs_fds(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        self.group.procs_fds()
    }

    /// Gives it other cores and another weight while it runs.
    pub fn resize(&self, grant: &CpuGrant) -> Result<(), CgroupError> {
        grant.checked()?;
        self.group.set_cores(&grant.cores)?;
        self.group.set_weight(grant.units)?;
        self.sandbox.set_running(&self.name, grant)
    }

    /// What it used until now.
    pub fn usage(&self) -> Result<Usage, CgroupError> {
        self.group.usage()
    }

    /// True while a process is in it.
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        Ok(!self.group.pids()?.is_empty())
    }

    /// Kills the whole tree, double-forked daemons and fork bombs included, and
    /// waits until nothing is left. Blocks for up to `limit`.
    ///
    /// # Errors
    /// [`CgroupError::StillPopulated`] when something is left then (a process in
    /// an uninterruptible wait).
    pub fn kill(&self, limit: Duration) -> Result<(), CgroupError> {
        self.group.kill(limit)
    }

    /// Ends the action: what it left behind goes to the sandbox's `parked` cgroup,
    /// and its own is removed. May block for a while where processes are dying or
    /// fork; a tree that forks faster than it can be moved is killed.
    pub fn park(self) -> Result<Leftovers, CgroupError> {
        let mut left = Leftovers::default();
        if !self.group.pids()?.is_empty() {
            let parked = self.sandbox.parked()?;
            if !self.group.move_all(&parked, &mut left.parked)? {
                left.killed = true;
                self.group.kill(PARK_KILL_LIMIT)?;
                parked.kill(PARK_KILL_LIMIT)?;
            }
        }
        let removed = self.group.remove(REMOVE_LIMIT);
        self.sandbox.set_ended(&self.name)?;
        removed.map(|()| left)
    }
}
