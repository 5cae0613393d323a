//! Engines as processes of this node, each the leader of a session. They outlive the agent,
//! and the next one finds them by their records.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::line::{CommandLine, Place, command_line, gpus};
use super::record::{Leader, Record, Records, Runs};
use super::{Launcher, Program, session};
use crate::gpu::spec::{EngineSpec, Incident};
use crate::policy::EnginePolicy;

/// Environment variable that marks an engine and all that it starts.
const MARK: &str = "ROLLWRIGHT_ENGINE";
/// How long an engine that is told to end may take before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at processes.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at what engines have printed, and at those that this agent did not start.
const CARE: Duration = Duration::from_secs(1);
/// Bytes of a log beyond which the older part goes.
const MOST_LOG: u64 = 8 << 20;
/// Bytes of a log that a failure shows.
const WORDS: u64 = 800;

/// Starts processes.
pub struct Processes {
    records: Records,
    policy: EnginePolicy,
    /// Of this state directory: two agents of one machine may know engines by one number.
    owner: String,
    /// A real GPU is offered to the process, by `CUDA_VISIBLE_DEVICES`.
    gpus: bool,
    incidents: mpsc::Sender<Incident>,
    running: Arc<Mutex<BTreeMap<EngineId, Leader>>>,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processes").field("running", &*self.running()).finish_non_exhaustive()
    }
}

impl Processes {
    /// With the records of what an earlier agent started. [`Self::care`] must run beside it.
    pub fn new(
        records: Records,
        policy: EnginePolicy,
        owner: String,
        gpus: bool,
        incidents: mpsc::Sender<Incident>,
    ) -> Self {
        Self { records, policy, owner, gpus, incidents, running: Arc::default() }
    }

    /// Reports engines that die by themselves and keeps their logs small, without end.
    pub async fn care(&self) {
        loop {
            let running = self.running().clone();
            for (engine, leader) in running {
                shorten(&self.records.log(engine));
                // One that is being ended is no longer among the running.
                if leader.session().is_empty() && self.running().remove(&engine).is_some() {
                    let why = format!("its process ended: {}", self.last_words(engine).await);
                    let broke = Incident::Broke(engine, Trouble::Died(why));
                    if self.incidents.send(broke).await.is_err() {
                        return;
                    }
                }
            }
            tokio::time::sleep(CARE).await;
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<EngineId, Leader>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, engine: EngineId) -> String {
        format!("{MARK}={}/{}", self.owner, engine.0)
    }

    fn spawn(&self, engine: EngineId, line: &CommandLine, chunk: Chunk) -> Result<Leader, Trouble> {
        let refused = |why: String| Trouble::Refused(Order::Launch, why);
        let words = line.whole();
        let Some((program, args)) = words.split_first() else {
            return Err(refused("it names no program: give one in `args`".into()));
        };
        self.policy.check_program(program).map_err(refused)?;
        let path = self.records.log(engine);
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| refused(format!("no log {}: {error}", path.display())))?;
        let errors = log.try_clone().map_err(|error| refused(error.to_string()))?;
        let mut command = tokio::process::Command::new(program);
        command.args(args).envs(line.env.iter().map(|(name, value)| (name, value)));
        command.env(MARK, format!("{}/{}", self.owner, engine.0));
        if self.gpus {
            command.env("CUDA_VISIBLE_DEVICES", gpus(chunk));
            // As the agent numbers them.
            command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        lead_session(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| refused(format!("`{program}` cannot be started: {error}")))?;
        let leader = child.id().and_then(Leader::of);
        // Reaped when it ends; until then it counts as what it is, a zombie.
        tokio::spawn(async move { child.wait().await });
        leader.ok_or_else(|| Trouble::Died("it ended at once".into()))
    }
}

/// The engine shall outlive the agent, and be ended with all that it starts.
fn lead_session(command: &mut tokio::process::Command) {
    let begin = || rustix::process::setsid().map(drop).map_err(Into::into);
    // SAFETY: between fork and exec it makes one system call, and touches no memory or lock.
    #[expect(unsafe_code, reason = "there is no safe way to call setsid in a child")]
    unsafe {
        command.pre_exec(begin);
    }
}

/// A port of this machine's loopback that nobody listens on now.
fn free_port() -> Result<u16, Trouble> {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let free = free.map(|address| address.port());
    free.map_err(|error| Trouble::Refused(Order::Launch, format!("no port is free: {error}")))
}

/// Keeps the latter half of a log that has grown too long. Its writer appends, so it goes on
/// at the new end.
fn shorten(path: &Path) {
    let long = std::fs::metadata(path).is_ok_and(|meta| meta.len() > MOST_LOG);
    if long && let Err(error) = halve(path) {
        tracing::warn!(path = %path.display(), %error, "cannot shorten a log");
    }
}

fn halve(path: &Path) -> std::io::Result<()> {
    std::fs::write(path.with_extension("log.old"), tail(path, MOST_LOG / 2)?)?;
    File::options().write(true).open(path)?.set_len(0)
}

fn tail(path: &Path, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail)?;
    Ok(tail)
}

#[async_trait]
impl Launcher for Processes {
    async fn start(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<Program, Trouble> {
        let port = free_port()?;
        let url = format!("http://127.0.0.1:{port}");
        let program = self.records.program(engine, spec, chunk, url);
        let place = Place { host: "127.0.0.1", port, chunk, arena: &program.arena };
        let line = command_line(&program.spec, place);
        self.records.make_arena(engine)?;
        // Were the agent killed now, the next one would find the process by its mark.
        self.records.write(&Record::new(&program, Runs::Unborn))?;
        let leader = self.spawn(engine, &line, chunk);
        let leader = leader.inspect_err(|_| self.records.remove(engine))?;
        self.running().insert(engine, leader.clone());
        self.records.write(&Record::new(&program, Runs::Process(leader)))?;
        Ok(program)
    }

    async fn end(&self, engine: EngineId) -> Result<(), Trouble> {
        let leader = self.running().remove(&engine);
        let leader = leader.or_else(|| match self.records.read(engine)?.runs {
            Runs::Process(leader) => Some(leader),
            Runs::Unborn | Runs::Container(_) => None,
        });
        let there = || match &leader {
            Some(leader) => leader.session(),
            None => session::marked(&self.mark(engine)),
        };
        session::kill(&there(), Signal::TERM);
        let until = Instant::now() + PATIENCE;
        loop {
            let left = there();
            if left.is_empty() {
                break;
            }
            if Instant::now() >= until {
                session::kill(&left, Signal::KILL);
            }
            tokio::time::sleep(LOOK).await;
        }
        self.records.remove(engine);
        Ok(())
    }

    async fn pids(&self, engine: EngineId) -> Vec<u32> {
        let leader = self.running().get(&engine).cloned();
        leader.map(|leader| leader.session()).unwrap_or_default()
    }

    async fn last_words(&self, engine: EngineId) -> String {
        let tail = tail(&self.records.log(engine), WORDS).unwrap_or_default();
        String::from_utf8_lossy(&tail).trim().to_owned()
    }

    async fn found(&self) -> Vec<Program> {
        let mut found = Vec::new();
        for record in self.records.all() {
            let Some(program) = self.records.recorded(&record) else { continue };
            match &record.runs {
                Runs::Process(leader) if !leader.session().is_empty() => {
                    self.running().insert(program.engine, leader.clone());
                    found.push(program);
                }
                Runs::Process(_) => self.records.remove(program.engine),
                Runs::Unborn => {
                    session::kill(&session::marked(&self.mark(program.engine)), Signal::KILL);
                    self.records.remove(program.engine);
                }
                Runs::Container(_) => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use rollwright_core::gpu::Degree;

    use super::*;
    use crate::gpu::spec::{EngineKind, EvictBy, Needs};

    fn spec() -> EngineSpec {
        EngineSpec {
            service: "s".into(),
            engine: EngineKind::Other,
            image: None,
            args: vec!["sleep".into(), "1000".into()],
            env: BTreeMap::new(),
            model: String::new(),
            served_name: String::new(),
            degree: 1,
            evict: EvictBy::EngineSleep,
            probe: None,
            footprint: Needs::default(),
        }
    }

    #[tokio::test]
    async fn one_whose_agent_died_as_it_was_started_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let (incidents, _) = mpsc::channel(1);
        let processes = Processes::new(
            records.clone(),
            EnginePolicy::default(),
            format!("unborn-{}", std::process::id()),
            false,
            incidents,
        );
        let engine = EngineId(5);
        let chunk = Chunk::new(0, 0, Degree::new(1).unwrap()).unwrap();
        let program = records.program(engine, Arc::new(spec()), chunk, String::new());
        records.write(&Record::new(&program, Runs::Unborn)).unwrap();
        let mark = processes.mark(engine);
        let (name, value) = mark.split_once('=').unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("1000").env(name, value).spawn().unwrap();
        assert_eq!(processes.found().await, []);
        assert!(!child.wait().unwrap().success(), "it was killed");
        assert_eq!(records.read(engine), None);
    }

    #[test]
    fn a_long_log_keeps_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        let lines = "a line of an engine\n".repeat(MOST_LOG as usize / 20);
        std::fs::write(&path, &lines).unwrap();
        shorten(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), lines.len() as u64, "not too long yet");
        std::fs::write(&path, format!("{lines}the end of it all\n")).unwrap();
        shorten(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        let old = std::fs::read(path.with_extension("log.old")).unwrap();
        assert_eq!(old.len() as u64, MOST_LOG / 2);
        assert!(old.ends_with(b"the end of it all\n"));
    }
}
