use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::group::Group;
use super::sandbox::{Inner, Slot};
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
    pub(super) slot: Slot,
}

impl ActionCgroup {
    /// Its name below the sandbox's cgroup.
    pub fn name(&self) -> &str {
        &self.slot.name
    }

    /// Finds it again after a restart, by [`super::SandboxCgroup::open_action`].
    pub fn token(&self) -> String {
        self.slot.token()
    }

    /// A file of each of its directories (one on v2), open for writing: a process with
    /// one thread that writes `0` to all of them enters the cgroup. The kernel checks
    /// the rights of whoever opened them.
    pub fn procs_fds(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        self.group.procs_fds()
    }

    /// Gives it other cores and another weight while it runs.
    pub fn resize(&mut self, grant: &CpuGrant) -> Result<(), CgroupError> {
        self.slot.fill(&self.group, grant)?;
        self.sandbox.set_running(&self.slot.name, grant)
    }

    /// What it used until now.
    pub fn usage(&self) -> Result<Usage, CgroupError> {
        let all = self.group.usage()?;
        Ok(Usage { cpu_s: (all.cpu_s - self.slot.before_s).max(0.0), ..all })
    }

    /// True while a process is in it.
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        self.group.is_populated()
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

    /// Ends an action that left nothing behind, in some ten microseconds: its cgroup is
    /// kept for a later one. Where something came in the way it is given back, to be
    /// parked.
    pub fn recycle(self) -> Option<Self> {
        if self.group.is_populated().unwrap_or(true) || !self.sandbox.wants_spare() {
            return Some(self);
        }
        let (Ok(used), Ok(true)) = (self.group.usage(), self.group.recycle()) else {
            return Some(self);
        };
        // The count of these cannot be set back.
        if used.oom_kills > 0 {
            return Some(self);
        }
        let Self { sandbox, slot, .. } = self;
        if let Err(error) = sandbox.keep(Slot { before_s: used.cpu_s, ..slot }) {
            tracing::warn!(%error, "cannot settle a sandbox after an action");
        }
        None
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
        self.sandbox.set_ended(&self.slot.name)?;
        removed.map(|()| left)
    }
}
