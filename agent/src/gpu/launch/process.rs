//! Engines as processes of this node, each the leader of a session, in a cgroup of its own
//! where one can be made. They outlive the agent, and the next one finds them by their records.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::fence::Fence;
use super::line::{Place, command_line, gpus};
use super::record::{Leader, Record, Records, Runs};
use super::roster::Roster;
use super::{Launcher, Program, log, session};
use crate::gpu::spec::{EngineSpec, Incident};
use crate::policy::EnginePolicy;

/// Environment variable that marks an engine and all that it starts.
const MARK: &str = "ROLLWRIGHT_ENGINE";
/// How long an engine that is told to end may take before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long what is left of an engine may take to end.
const SWEEP: Duration = Duration::from_secs(10);
/// Between two looks at processes.
const LOOK: Duration = Duration::from_millis(50);

/// Starts processes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Processes {
    records: Records,
    policy: EnginePolicy,
    /// Of this state directory: two agents of one machine may know engines by one number.
    owner: String,
    /// Real GPUs are offered to processes, by `CUDA_VISIBLE_DEVICES`.
    gpus: bool,
    /// Where cgroups can be made.
    fence: Option<Arc<Fence>>,
    incidents: mpsc::Sender<Incident>,
    roster: Arc<Roster<Leader>>,
}

impl Processes {
    /// With the records of what an earlier agent started. [`Self::care`] must run beside it.
    pub fn new(
        records: Records,
        policy: EnginePolicy,
        owner: String,
        gpus: bool,
        fence: Option<Arc<Fence>>,
        incidents: mpsc::Sender<Incident>,
    ) -> Self {
        Self { records, policy, owner, gpus, fence, incidents, roster: Arc::default() }
    }

    /// Reports engines that die by themselves and keeps their logs small, without end.
    pub async fn care(&self) {
        self.roster.care(&self.incidents, |engine, leader| self.death(engine, leader)).await;
    }

    async fn death(&self, engine: EngineId, leader: Leader) -> Option<Trouble> {
        self.blocking(move |us| {
            log::shorten(&us.records.log(engine));
            (!leader.lives() && leader.session().is_empty()).then(|| us.cause(engine))
        })
        .await
        .unwrap_or_default()
    }

    /// Whether an engine is a process of this agent, or was to be one.
    pub(super) fn has(&self, engine: EngineId) -> bool {
        let is_ours = |record: Record| !matches!(record.runs, Runs::Container(_));
        self.roster.get(engine).is_some() || self.records.read(engine).is_some_and(is_ours)
    }

    /// What reads `/proc` and files, off the runtime's threads.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let us = self.clone();
        super::blocking(move || work(&us)).await
    }

    fn mark(&self) -> String {
        format!("{MARK}={}/", self.owner)
    }

    /// Why an engine ended.
    fn cause(&self, engine: EngineId) -> Trouble {
        let words = log::last_words(&self.records.log(engine));
        match &self.fence {
            Some(fence) if fence.ran_out(engine) => super::outgrown(fence.bytes(), &words),
            _ => Trouble::Died(format!("its process ended: {words}")),
        }
    }

    /// The living processes of an engine's cgroup; `None` where it has none.
    fn enclosed(&self, engine: EngineId) -> Result<Option<Vec<u32>>, Trouble> {
        let Some(fence) = &self.fence else { return Ok(None) };
        let pids = fence.pids(engine).map_err(|error| {
            Trouble::Unknown(format!("the processes of its cgroup cannot be read: {error}"))
        })?;
        Ok(pids.map(|pids| pids.into_iter().filter(|pid| session::lives(*pid)).collect()))
    }

    /// The living processes of its session. Looks at all of the machine.
    fn session(&self, engine: EngineId) -> Vec<u32> {
        let recorded = || match self.records.read(engine)?.runs {
            Runs::Process(leader) => Some(leader),
            Runs::Unborn | Runs::Container(_) => None,
        };
        self.roster.get(engine).or_else(recorded).map_or_else(Vec::new, |leader| leader.session())
    }

    /// The living processes of an engine: those of its cgroup, which holds all that it starts;
    /// without one, those of its session.
    fn members(&self, engine: EngineId) -> Result<Vec<u32>, Trouble> {
        Ok(self.enclosed(engine)?.unwrap_or_else(|| self.session(engine)))
    }

    /// All that is to end with an engine: what has left its session still carries its mark.
    fn descendants(&self, engine: EngineId) -> Result<Vec<u32>, Trouble> {
        let enclosed = self.enclosed(engine)?.into_iter().flatten();
        let mut pids: BTreeSet<u32> = enclosed.chain(self.session(engine)).collect();
        let marked = session::marked(&self.mark()).into_iter().filter(|(_, of)| *of == engine);
        pids.extend(marked.map(|(pid, _)| pid));
        Ok(pids.into_iter().collect())
    }

    /// Starts a process; not to be dropped half done.
    fn begin(&self, program: &Program, port: u16) -> Result<(), Trouble> {
        let (engine, spec) = (program.engine, &program.spec);
        self.records.make_arena(engine)?;
        // Were the agent killed now, the next one would find the process by its mark.
        self.records.write(&Record::new(program, Runs::Unborn))?;
        let place = Place { host: "127.0.0.1", port, chunk: program.chunk, arena: &program.arena };
        let started = self.enclose(engine, spec.most_memory());
        let started = started.and_then(|entry| self.spawn(program, place, entry));
        let leader = started.inspect_err(|_| self.forget(engine))?;
        self.roster.add(engine, leader.clone());
        self.records.write(&Record::new(program, Runs::Process(leader)))
    }

    /// The door to the engine's cgroup. Without one it runs only where nothing is to be bounded.
    fn enclose(&self, engine: EngineId, most: Option<u64>) -> Result<Option<File>, Trouble> {
        let Some(fence) = &self.fence else { return Ok(None) };
        match fence.enclose(engine, most) {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if fence.bytes() == 0 => {
                tracing::warn!(engine = engine.0, %error, "an engine without a cgroup");
                Ok(None)
            }
            Err(error) => Err(refused(format!("its memory cannot be bounded: {error}"))),
        }
    }

    fn spawn(
        &self,
        program: &Program,
        place: Place<'_>,
        entry: Option<File>,
    ) -> Result<Leader, Trouble> {
        let Program { engine, spec, chunk, .. } = program;
        let line = command_line(spec, place);
        let words = line.whole();
        let Some((named, args)) = words.split_first() else {
            return Err(refused("it names no program: give one in `args`".into()));
        };
        let found = self.policy.program(named).map_err(refused)?;
        self.policy.check_process_env(spec.env.keys()).map_err(refused)?;
        self.policy.check_model(&spec.model).map_err(refused)?;
        let path = self.records.log(*engine);
        let log = log::open(&path)
            .map_err(|error| refused(format!("no log {}: {error}", path.display())))?;
        let errors = log.try_clone().map_err(|error| refused(error.to_string()))?;
        let mut command = tokio::process::Command::new(&found);
        command.args(args).envs(line.env.iter().map(|(name, value)| (name, value)));
        command.env(MARK, format!("{}/{}", self.owner, engine.0));
        if self.gpus {
            command.env("CUDA_VISIBLE_DEVICES", gpus(*chunk));
            // As the agent numbers them.
            command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        stand_alone(&mut command, entry);
        let mut child = command.spawn().map_err(|error| {
            refused(format!("`{}` cannot be started: {error}", found.display()))
        })?;
        let leader = child.id().and_then(Leader::of);
        // Reaped when it ends; until then it counts as what it is, a zombie.
        tokio::spawn(async move { child.wait().await });
        leader.ok_or_else(|| Trouble::Died("it ended at once".into()))
    }

    /// What is kept of an engine of which nothing runs.
    fn forget(&self, engine: EngineId) {
        if let Some(fence) = &self.fence {
            fence.remove(engine);
        }
        self.records.remove(engine);
        self.roster.remove(engine);
    }

    /// The engines of which something is left, and those that live.
    fn look(&self) -> (BTreeSet<EngineId>, Vec<Program>) {
        let mut living = Vec::new();
        let mut left: BTreeSet<EngineId> = self.fence.iter().flat_map(|f| f.held()).collect();
        left.extend(session::marked(&self.mark()).into_iter().map(|(_, engine)| engine));
        for record in self.records.all() {
            let Some(program) = self.records.recorded(&record) else { continue };
            match &record.runs {
                Runs::Process(leader) if !leader.session().is_empty() => {
                    left.remove(&program.engine);
                    self.roster.add(program.engine, leader.clone());
                    living.push(program);
                }
                Runs::Process(_) | Runs::Unborn => drop(left.insert(program.engine)),
                // What carries its mark is no process of it, and ends no container.
                Runs::Container(_) => drop(left.remove(&program.engine)),
            }
        }
        (left, living)
    }
}

fn refused(why: String) -> Trouble {
    Trouble::Refused(Order::Launch, why)
}

/// The engine shall outlive the agent, and be ended with all that it starts.
fn stand_alone(command: &mut tokio::process::Command, entry: Option<File>) {
    let begin = move || {
        if let Some(entry) = &entry {
            rustix::io::write(entry, b"0")?;
        }
        rustix::process::setsid().map(drop).map_err(Into::into)
    };
    // SAFETY: between fork and exec it makes two system calls, and touches no memory or lock.
    #[expect(unsafe_code, reason = "there is no safe way to call setsid in a child")]
    unsafe {
        command.pre_exec(begin);
    }
}

/// A port of this machine's loopback that nobody listens on now.
fn free_port() -> Result<u16, Trouble> {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    free.map(|at| at.port()).map_err(|error| refused(format!("no port is free: {error}")))
}

#[async_trait]
impl Launcher for Processes {
    async fn start(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<Program, Trouble> {
        let turn = self.roster.turn(engine).await;
        let port = free_port()?;
        let url = format!("http://127.0.0.1:{port}");
        let program = self.records.program(engine, spec, chunk, url);
        self.blocking(move |us| {
            let _turn = turn;
            us.begin(&program, port).map(|()| program)
        })
        .await?
    }

    async fn end(&self, engine: EngineId) -> Result<(), Trouble> {
        let _turn = self.roster.turn(engine).await;
        self.roster.ends(engine);
        let begun = Instant::now();
        let mut told = false;
        loop {
            let left = self.blocking(move |us| us.descendants(engine)).await??;
            if left.is_empty() {
                break;
            }
            if begun.elapsed() >= PATIENCE {
                session::kill(&left, Signal::KILL);
            } else if !std::mem::replace(&mut told, true) {
                session::kill(&left, Signal::TERM);
            }
            tokio::time::sleep(LOOK).await;
        }
        self.blocking(move |us| us.forget(engine)).await
    }

    async fn pids(&self, engine: EngineId) -> Result<Vec<u32>, Trouble> {
        self.blocking(move |us| us.members(engine)).await?
    }

    async fn moved(&self, program: &Program) -> Result<(), Trouble> {
        let (turn, program) = (self.roster.turn(program.engine).await, program.clone());
        self.blocking(move |us| {
            let _turn = turn;
            let leader = us.roster.get(program.engine);
            let leader = leader.ok_or_else(|| us.cause(program.engine))?;
            us.records.write(&Record::new(&program, Runs::Process(leader)))
        })
        .await?
    }

    async fn cause(&self, engine: EngineId) -> Trouble {
        self.blocking(move |us| Self::cause(us, engine)).await.unwrap_or_else(|unknown| unknown)
    }

    async fn found(&self) -> Vec<Program> {
        let (left, living) = match self.blocking(Self::look).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(%error, "cannot look for engines of an earlier agent");
                return Vec::new();
            }
        };
        for engine in left {
            // An earlier agent was starting or ending it, or its leader is gone.
            if tokio::time::timeout(SWEEP, self.end(engine)).await.is_err() {
                tracing::warn!(engine = engine.0, "what is left of an engine cannot be ended");
            }
        }
        living
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use rollwright_core::gpu::Degree;

    use super::*;

    fn spec() -> EngineSpec {
        EngineSpec { args: vec!["sleep".into(), "1000".into()], ..EngineSpec::bare() }
    }

    /// What an earlier agent may have left of an engine.
    fn left_behind(record: Option<&[u8]>) -> (tempfile::TempDir, Processes, std::process::Child) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let (incidents, _) = mpsc::channel(1);
        let owner = format!("left-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let policy = EnginePolicy::default();
        let processes = Processes::new(records, policy, owner, false, None, incidents);
        if let Some(record) = record {
            std::fs::write(dir.path().join("engines/5.json"), record).unwrap();
        }
        let mut sleep = std::process::Command::new("sleep");
        sleep.arg("1000").env(MARK, format!("{}/5", processes.owner));
        (dir, processes, sleep.spawn().unwrap())
    }

    #[tokio::test]
    async fn a_process_that_names_a_container_as_its_engine_does_not_end_that() {
        let chunk = Chunk::new(0, 0, Degree::new(1).unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let program = records.program(EngineId(5), Arc::new(spec()), chunk, String::new());
        let record = Record::new(&program, Runs::Container("c".into()));
        let bytes = serde_json::to_vec(&record).unwrap();
        let (_dir, processes, mut child) = left_behind(Some(&bytes));
        assert_eq!(processes.found().await, []);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes.records.read(EngineId(5)), Some(record));
    }

    #[tokio::test]
    async fn what_an_earlier_agent_left_without_a_record_of_it_is_ended() {
        let chunk = Chunk::new(0, 0, Degree::new(1).unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let program = records.program(EngineId(5), Arc::new(spec()), chunk, String::new());
        // It was killed as it was about to start an engine, or its record cannot be read.
        let unborn = serde_json::to_vec(&Record::new(&program, Runs::Unborn)).unwrap();
        for record in [Some(&unborn[..]), Some(b"{}"), None] {
            let (_dir, processes, mut child) = left_behind(record);
            assert_eq!(processes.found().await, []);
            // One that was not ended is killed here, which shows.
            let _gone = child.kill();
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
            assert_eq!(processes.records.read(EngineId(5)), None);
        }
    }
}
