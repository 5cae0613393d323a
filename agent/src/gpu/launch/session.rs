//! Processes of a session, as `/proc` shows them.

use std::fs;

use rollwright_core::gpu::EngineId;

use super::record::Leader;

/// What of `/proc/PID/stat` matters.
struct Stat {
    /// `Z` is one that has ended and was not reaped.
    state: char,
    session: u32,
    /// In clock ticks since the machine started.
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, a closing bracket too.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let state = fields.first()?.chars().next()?;
    let session = fields.get(3)?.parse().ok()?;
    Some(Stat { state, session, started: fields.get(19)?.parse().ok()? })
}

impl Leader {
    /// A process that runs now.
    pub(super) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started: stat(pid)?.started, boot: boot()? })
    }

    /// Whether the number still means this process, if any.
    fn same(&self) -> bool {
        boot().is_some_and(|boot| boot == self.boot)
            && stat(self.pid).is_none_or(|stat| stat.started == self.started)
    }

    /// Whether it runs itself: that is known without a look at any other.
    pub(super) fn lives(&self) -> bool {
        let runs = stat(self.pid).is_some_and(|s| s.started == self.started && s.state != 'Z');
        runs && boot().is_some_and(|boot| boot == self.boot)
    }

    /// The living processes of its session.
    pub(super) fn session(&self) -> Vec<u32> {
        if !self.same() {
            return Vec::new();
        }
        let living = |pid: &u32| {
            let stat = stat(*pid);
            stat.is_some_and(|stat| {
                stat.session == self.pid && stat.state != 'Z' && stat.started >= self.started
            })
        };
        pids().filter(living).collect()
    }
}

fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// All processes of this machine.
fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process runs.
pub(super) fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state != 'Z')
}

/// Processes that have this and an engine's number in their environment, and whose they are.
pub(super) fn marked(mark: &str) -> Vec<(u32, EngineId)> {
    let engine = |pid: u32| {
        let env = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut entries = env.split(|byte| *byte == 0);
        let number = entries.find_map(|entry| entry.strip_prefix(mark.as_bytes()))?;
        Some((pid, EngineId(std::str::from_utf8(number).ok()?.parse().ok()?)))
    };
    pids().filter_map(engine).collect()
}

/// Sends a signal to each; those that are gone are.
pub(super) fn kill(pids: &[u32], signal: rustix::process::Signal) {
    for pid in pids.iter().filter_map(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
        let _gone = rustix::process::kill_process(pid, signal);
    }
}
