//! How sandboxes go: a container is given up only when it is gone.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Attempt, Ground};
use crate::sandbox::Sandbox;

/// First and longest pause between two tries to remove a container.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Tries that a container gets when the agent ends.
const TRIES_AT_END: u32 = 20;

/// Names of sandboxes from their making to their removal.
#[derive(Debug, Default)]
pub struct Names(Mutex<HashSet<String>>);

impl Names {
    /// It is being made, or was found.
    pub fn insert(&self, name: &str) {
        self.lock().insert(name.to_owned());
    }

    /// Whether it is this process's care.
    pub fn contains(&self, name: &str) -> bool {
        self.lock().contains(name)
    }

    fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sandbox on its way out.
#[derive(Debug)]
pub struct Leaving {
    /// Container name.
    pub name: String,
    /// Its network, where this process counts it as a user of one.
    pub network: Option<String>,
    /// Its process 1.
    pub main: Option<OwnedFd>,
}

impl Leaving {
    /// A container of which only the name is known.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), network: None, main: None }
    }
}

impl From<Sandbox> for Leaving {
    fn from(sandbox: Sandbox) -> Self {
        Self { name: sandbox.name.to_string(), network: sandbox.network, main: sandbox.main }
    }
}

/// A hold on a process that a later one of the same number does not get.
pub(super) fn main_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid.try_into().ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

impl Ground {
    /// Removes a sandbox and all that belongs to it. True when its container is
    /// gone: this is tried for as long as the agent lives, and only at its end
    /// given up, for the next start to go on with.
    pub async fn remove(&self, leaving: Leaving) -> bool {
        let name = leaving.name.as_str();
        self.names.insert(name);
        self.places.disown(name);
        let (mut tries, mut pause) = (0u32, FIRST_PAUSE);
        while let Err(fault) = self.try_remove(name).await {
            if let Some(main) = &leaving.main {
                // With process 1 of a PID namespace all of it goes; it may have gone already.
                let _ = pidfd_send_signal(main, Signal::KILL);
            }
            tries += 1;
            if tries.is_power_of_two() {
                tracing::warn!(sandbox = name, tries, %fault, "cannot remove a sandbox yet");
            }
            if self.ending.is_cancelled() && tries >= TRIES_AT_END {
                tracing::error!(sandbox = name, "a sandbox stays until the agent's next start");
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = if self.ending.is_cancelled() { FIRST_PAUSE } else { pause * 2 };
            pause = pause.min(LONGEST_PAUSE);
        }
        self.places.forget(name);
        self.names.remove(name);
        if let Some(network) = &leaving.network {
            self.networks.release(network).await;
        }
        true
    }

    async fn try_remove(&self, name: &str) -> Result<(), rollwright_core::fault::Fault> {
        // An error means that the semaphore was closed, which never happens.
        let _turn = self.removals.acquire().await;
        self.engine.remove(name).await
    }

    pub(super) async fn undo(&self, mut attempt: Attempt) {
        if let Some(acquiring) = attempt.acquiring.take() {
            // A failure made nothing.
            attempt.network = acquiring.await.ok().and_then(Result::ok);
        }
        if let Some(starting) = attempt.starting
            && let Err(error) = starting.await
        {
            tracing::error!(%error, "the start of a sandbox died");
        }
        self.remove(Leaving { name: attempt.name, network: attempt.network, main: None }).await;
    }
}
