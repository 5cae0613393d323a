//! One sandbox that is ready, and where its things are on this node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
#[derive(Debug, Clone)]
pub struct Places {
    state_dir: PathBuf,
}

impl Places {
    /// Makes the directories.
    pub fn new(state_dir: &Path) -> Result<Self, Fault> {
        let places = Self { state_dir: state_dir.to_owned() };
        for dir in [places.runs(), places.records()] {
            std::fs::create_dir_all(&dir).map_err(|error| io("make", &dir, &error))?;
        }
        Ok(places)
    }

    fn runs(&self) -> PathBuf {
        self.state_dir.join("run")
    }

    fn records(&self) -> PathBuf {
        self.state_dir.join("sandboxes")
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
        use std::os::unix::fs::DirBuilderExt as _;
        let dir = self.run_dir(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|error| io("make", &dir, &error))?;
        Ok(dir)
    }

    /// Writes down whose sandbox it is; it counts after a restart only with this.
    pub fn record(&self, name: &str, open: &OpenSandbox) -> Result<(), Fault> {
        let path = self.records().join(name);
        let new = self.records().join(format!("{name}.new"));
        let written = std::fs::write(&new, open.encode_to_vec());
        let written = written.and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|error| io("write", &path, &error))
    }

    /// Whose sandbox it is, where that was written down.
    pub fn recorded(&self, name: &str) -> Option<OpenSandbox> {
        let bytes = std::fs::read(self.records().join(name)).ok()?;
        OpenSandbox::decode(bytes.as_slice()).ok()
    }

    /// Removes everything of one sandbox.
    pub fn forget(&self, name: &str) {
        let removed = [
            std::fs::remove_dir_all(self.run_dir(name)),
            std::fs::remove_file(self.records().join(name)),
        ];
        for error in removed.into_iter().filter_map(Result::err) {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(sandbox = name, %error, "cannot remove what a sandbox left");
            }
        }
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

fn io(doing: &str, path: &Path, error: &std::io::Error) -> Fault {
    fault::infrastructure("StateDirFailed", format!("cannot {doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again_and_orphans_go() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path()).unwrap();
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
