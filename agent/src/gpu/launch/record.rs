//! What an agent writes down of the programs that it started, so that the next one knows.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollwright_core::gpu::{Chunk, Degree, EngineId, Order, Trouble};
use serde::{Deserialize, Serialize};

use super::Program;
use crate::gpu::spec::EngineSpec;

/// Below the state directory of an agent.
const DIR: &str = "engines";

/// A file for each program, and what it prints, readable by the agent alone: both may hold
/// secrets.
#[derive(Debug, Clone)]
pub struct Records {
    dir: PathBuf,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    engine: u64,
    spec: EngineSpec,
    /// The first GPU.
    start: u32,
    pub(super) url: String,
    pub(super) runs: Runs,
}

/// As what a program runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Runs {
    /// It was about to be started.
    Unborn,
    /// A process, which leads a session of its own.
    Process(Leader),
    /// A container of this name.
    Container(String),
}

/// A process, told apart from a later one of the same number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leader {
    pub(super) pid: u32,
    /// When it started, in clock ticks since the machine did.
    pub(super) started: u64,
    /// Id of the machine's own start.
    pub(super) boot: String,
}

impl Record {
    pub(super) fn new(program: &Program, runs: Runs) -> Self {
        let Program { engine, spec, chunk, url, .. } = program;
        let (spec, url) = (EngineSpec::clone(spec), url.clone());
        Self { engine: engine.0, spec, start: chunk.start(), url, runs }
    }
}

impl Records {
    /// Below the agent's state directory.
    pub fn open(state_dir: &Path) -> std::io::Result<Self> {
        let dir = state_dir.join(DIR);
        std::fs::create_dir_all(&dir)?;
        std::fs::set_permissions(&dir, Permissions::from_mode(0o700))?;
        Ok(Self { dir })
    }

    /// Whether an agent with GPUs has kept any there.
    pub fn are_kept(state_dir: &Path) -> bool {
        state_dir.join(DIR).exists()
    }

    /// Where what an engine prints is kept.
    pub(super) fn log(&self, engine: EngineId) -> PathBuf {
        self.dir.join(format!("{}.log", engine.0))
    }

    /// The directory of the socket on which an engine waits for its weights.
    pub(super) fn arena_dir(&self, engine: EngineId) -> PathBuf {
        self.dir.join(format!("{}.arena", engine.0))
    }

    /// A program that is about to be started, or was found.
    pub(super) fn program(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
        url: String,
    ) -> Program {
        Program { engine, spec, chunk, url, arena: self.arena_dir(engine).join("sock") }
    }

    /// The program of a record; `None` for one that this agent could not have written.
    pub(super) fn recorded(&self, record: &Record) -> Option<Program> {
        let degree = Degree::new(record.spec.degree).ok()?;
        let chunk = Chunk::new(0, record.start, degree)?;
        let (spec, url) = (Arc::new(record.spec.clone()), record.url.clone());
        Some(self.program(EngineId(record.engine), spec, chunk, url))
    }

    fn path(&self, engine: EngineId) -> PathBuf {
        self.dir.join(format!("{}.json", engine.0))
    }

    /// Writes a record in the place of what was there.
    pub(super) fn write(&self, record: &Record) -> Result<(), Trouble> {
        let path = self.path(EngineId(record.engine));
        let written = || {
            let draft = path.with_extension("draft");
            let open = std::fs::File::options();
            let mut file =
                open.clone().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            file.sync_data()?;
            std::fs::rename(draft, &path)
        };
        written().map_err(|error: std::io::Error| {
            let why = format!("the agent cannot write {}: {error}", path.display());
            Trouble::Refused(Order::Launch, why)
        })
    }

    pub(super) fn read(&self, engine: EngineId) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(self.path(engine)).ok()?).ok()
    }

    /// Forgets an engine that is gone, with what it printed.
    pub(super) fn remove(&self, engine: EngineId) {
        let log = self.log(engine);
        for path in [self.path(engine), log.with_extension("log.old"), log] {
            // What is not there is removed.
            let _absent = std::fs::remove_file(path);
        }
        let _absent = std::fs::remove_dir_all(self.arena_dir(engine));
    }

    /// Makes the directory of an engine's socket, empty.
    pub(super) fn make_arena(&self, engine: EngineId) -> Result<(), Trouble> {
        let dir = self.arena_dir(engine);
        let _absent = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).map_err(|error| {
            let why = format!("the agent cannot make {}: {error}", dir.display());
            Trouble::Refused(Order::Launch, why)
        })
    }

    /// All that can be read; the others are removed, and said.
    pub(super) fn all(&self) -> Vec<Record> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return Vec::new() };
        let paths = entries.flatten().map(|entry| entry.path());
        let json = paths.filter(|path| path.extension().is_some_and(|ext| ext == "json"));
        let records = json.filter_map(|path| {
            let bytes = std::fs::read(&path).ok()?;
            let record = serde_json::from_slice::<Record>(&bytes);
            let record = record.inspect_err(|error| {
                tracing::warn!(path = %path.display(), %error, "no record of an engine");
                let _absent = std::fs::remove_file(&path);
            });
            record.ok()
        });
        records.collect()
    }
}
