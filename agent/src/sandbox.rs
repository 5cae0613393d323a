//! One sandbox that is ready, and where its things are on this node.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use rollwright_core::fault::Fault;
use rollwright_proto::v1::{OpenSandbox, SandboxSpec};
use tokio::sync::mpsc;

use crate::cgroup::SandboxCgroup;
use crate::fault;
use crate::runner::Order;
use crate::session::Session;

/// Name of the helper's socket in its directory.
const SOCKET: &str = "init.sock";
/// Start of the names of our containers.
const NAME_PREFIX: &str = "rollwright-";
/// Directory of sockets, and of records of whose each sandbox is.
const RUNS: &str = "run";
const RECORDS: &str = "sandboxes";
/// Hexadecimal digits of a state directory's id.
const ID_DIGITS: usize = 16;
/// Pause between two tries to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A sandbox that actions can run in.
#[derive(Debug)]
pub struct Sandbox {
    /// Container name.
    pub name: Arc<str>,
    /// What it was made from; for a warm one, with the trajectory's environment.
    pub spec: SandboxSpec,
    /// Environment of the container: the image's and the template's.
    pub env: BTreeMap<String, String>,
    /// Its Docker network, where it has one.
    pub network: Option<String>,
    /// Its process 1, to end all of it without Docker.
    pub main: Option<OwnedFd>,
    /// For files.
    pub session: Session,
    /// Its cgroup, where this agent writes cgroups.
    pub cgroup: Option<SandboxCgroup>,
    /// node --orders--> its runner
    pub orders_tx: mpsc::Sender<Order>,
}

impl Sandbox {
    /// Environment of its actions, before their own.
    pub fn action_env(&self) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        env.extend(self.spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        env
    }
}

/// A new container name.
pub fn new_name() -> String {
    format!("{NAME_PREFIX}{:012x}", rand::random::<u64>() & 0xffff_ffff_ffff)
}

/// Directories of one agent's sandboxes, in its state directory.
#[derive(Debug)]
pub struct Places {
    state_dir: PathBuf,
    id: String,
    /// Held for as long as this agent lives.
    _lock: File,
}

impl Places {
    /// Makes the directories, closed to all but this user, and takes them for
    /// this agent alone. An agent that is about to end gets `patience` to do so.
    pub async fn take(state_dir: &Path, patience: Duration) -> Result<Self, Fault> {
        let (runs, records) = (state_dir.join(RUNS), state_dir.join(RECORDS));
        for dir in [state_dir, &runs, &records] {
            make_private(dir).map_err(|error| io("make", dir, &error))?;
        }
        let path = state_dir.join("lock");
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let lock = lock.map_err(|error| io("open", &path, &error))?;
        let asked = Instant::now();
        let mut said = false;
        let in_use = || {
            format!(
                "another agent uses the state directory {}: end it, or give this one a directory \
                 of its own",
                state_dir.display()
            )
        };
        while let Err(error) = lock.try_lock() {
            if let TryLockError::Error(error) = error {
                return Err(io("lock", &path, &error));
            }
            if asked.elapsed() >= patience {
                return Err(fault::user("StateDirInUse", in_use()));
            }
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(
                    ?patience,
                    "{}; waiting for a while, in case it is about to end",
                    in_use()
                );
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
        let path = state_dir.join("id");
        let id = own_id(&path).map_err(|error| io("keep an id in", &path, &error))?;
        Ok(Self { state_dir: state_dir.to_owned(), id, _lock: lock })
    }

    /// Random id of this state directory, the same after a restart.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn runs(&self) -> PathBuf {
        self.state_dir.join(RUNS)
    }

    fn records(&self) -> PathBuf {
        self.state_dir.join(RECORDS)
    }

    /// Record of images that this agent pulled.
    pub fn pulled(&self) -> PathBuf {
        self.state_dir.join("pulled.json")
    }

    /// Directory of the helper's socket.
    pub fn run_dir(&self, name: &str) -> PathBuf {
        self.runs().join(name.trim_start_matches(NAME_PREFIX))
    }

    /// The helper's socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.run_dir(name).join(SOCKET)
    }

    /// Makes the directory of the helper's socket, closed to all but root.
    pub fn make_run_dir(&self, name: &str) -> Result<PathBuf, Fault> {
        let dir = self.run_dir(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|error| io("make", &dir, &error))?;
        Ok(dir)
    }

    /// Writes down whose sandbox it is; it counts after a restart only with this.
    pub fn record(&self, name: &str, open: &OpenSandbox) -> Result<(), Fault> {
        let path = self.records().join(name);
        let new = self.records().join(format!("{name}.new"));
        let written = write_private(&new, &open.encode_to_vec());
        let written = written.and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|error| io("write", &path, &error))
    }

    /// Whose sandbox it is, where that was written down.
    pub fn recorded(&self, name: &str) -> Option<OpenSandbox> {
        let bytes = std::fs::read(self.records().join(name)).ok()?;
        OpenSandbox::decode(bytes.as_slice()).ok()
    }

    /// It is nobody's any more: after a restart it is removed, not taken over.
    pub fn disown(&self, name: &str) {
        warn(name, std::fs::remove_file(self.records().join(name)));
    }

    /// Removes everything of one sandbox.
    pub fn forget(&self, name: &str) {
        self.disown(name);
        warn(name, std::fs::remove_dir_all(self.run_dir(name)));
    }

    /// Removes what belongs to no sandbox of these names; whose they were.
    pub fn collect(&self, names: &[&str]) -> Vec<OpenSandbox> {
        let entries = |dir: PathBuf| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
        };
        let mut lost = Vec::new();
        for name in entries(self.records()) {
            if !names.contains(&name.as_str()) {
                lost.extend(self.recorded(&name));
                self.forget(&name);
            }
        }
        for run in entries(self.runs()) {
            let name = format!("{NAME_PREFIX}{run}");
            if !names.contains(&name.as_str()) {
                self.forget(&name);
            }
        }
        lost
    }
}

fn make_private(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o700))
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

/// The id that is written down, or a new one.
fn own_id(path: &Path) -> std::io::Result<String> {
    let known = match std::fs::read_to_string(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        known => known.unwrap_or_default(),
    };
    let known = known.trim();
    if known.len() == ID_DIGITS && known.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(known.to_owned());
    }
    let id = format!("{:016x}", rand::random::<u64>());
    let new = path.with_extension("new");
    write_private(&new, id.as_bytes())?;
    std::fs::rename(new, path)?;
    Ok(id)
}

fn warn(name: &str, removed: std::io::Result<()>) {
    if let Err(error) = removed
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(sandbox = name, %error, "cannot remove what a sandbox left");
    }
}

fn io(doing: &str, path: &Path, error: &std::io::Error) -> Fault {
    fault::infrastructure("StateDirFailed", format!("cannot {doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_agent_at_a_time_and_only_its_user_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let places = Places::take(&path, Duration::ZERO).await.unwrap();
        let id = places.id().to_owned();
        assert_eq!(id.len(), ID_DIGITS);
        let fault = Places::take(&path, Duration::ZERO).await.unwrap_err();
        assert_eq!(fault.reason, "StateDirInUse");
        let name = new_name();
        places.record(&name, &OpenSandbox::default()).unwrap();
        for (entry, mode) in [
            (path.clone(), 0o700),
            (path.join(RECORDS), 0o700),
            (path.join(RECORDS).join(&name), 0o600),
        ] {
            let found = std::fs::metadata(&entry).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{}", entry.display());
        }
        drop(places);
        assert_eq!(Places::take(&path, Duration::ZERO).await.unwrap().id(), id);
    }

    #[tokio::test]
    async fn records_are_found_again_and_orphans_go() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::take(dir.path(), Duration::ZERO).await.unwrap();
        let open = OpenSandbox { trajectory_id: "t".into(), ..Default::default() };
        let (kept, orphan) = (new_name(), new_name());
        for name in [&kept, &orphan] {
            places.make_run_dir(name).unwrap();
            places.record(name, &open).unwrap();
        }
        assert_eq!(places.collect(&[&kept]), std::slice::from_ref(&open));
        assert_eq!(places.recorded(&kept), Some(open));
        assert_eq!(places.recorded(&orphan), None);
        assert!(places.run_dir(&kept).exists() && !places.run_dir(&orphan).exists());
    }
}
