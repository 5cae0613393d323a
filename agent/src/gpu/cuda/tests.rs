//! Checkpoints, over a fake of the driver.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, Degree, EngineId, Trouble};

use super::{Checkpoints, CudaCheckpoint, ProcessState};
use crate::gpu::Mover;
use crate::gpu::launch::{Launcher, Program};
use crate::gpu::spec::{EngineKind, EngineSpec, EvictBy, Needs};

/// A **fake** of the driver: processes that use CUDA, and what cannot be done with them.
#[derive(Default)]
struct Fake {
    states: Mutex<BTreeMap<u32, ProcessState>>,
    refuses: Mutex<Option<&'static str>>,
}

impl Fake {
    fn go(
        &self,
        pid: u32,
        call: &'static str,
        from: ProcessState,
        to: ProcessState,
    ) -> Result<(), String> {
        let mut states = self.states.lock().unwrap();
        let state = states.get_mut(&pid).ok_or("it does not use CUDA")?;
        assert_eq!(*state, from, "{call} in the wrong state");
        if *self.refuses.lock().unwrap() == Some(call) {
            return Err(format!("the fake refuses to {call}"));
        }
        *state = to;
        Ok(())
    }
}

use ProcessState::{Checkpointed, Failed, Locked, Running};

impl Checkpoints for Fake {
    fn state(&self, pid: u32) -> Result<ProcessState, String> {
        self.states.lock().unwrap().get(&pid).copied().ok_or("it does not use CUDA".into())
    }

    fn lock(&self, pid: u32, _: Duration) -> Result<(), String> {
        self.go(pid, "lock", Running, Locked)
    }

    fn checkpoint(&self, pid: u32) -> Result<(), String> {
        self.go(pid, "checkpoint", Locked, Checkpointed)
    }

    fn restore(&self, pid: u32) -> Result<(), String> {
        self.go(pid, "restore", Checkpointed, Locked)
    }

    fn unlock(&self, pid: u32) -> Result<(), String> {
        self.go(pid, "unlock", Locked, Running)
    }
}

/// Engines whose processes are 10 and 11.
struct Two;

#[async_trait]
impl Launcher for Two {
    async fn start(&self, _: EngineId, _: Arc<EngineSpec>, _: Chunk) -> Result<Program, Trouble> {
        Err(Trouble::Hung)
    }

    async fn end(&self, _: EngineId) -> Result<(), Trouble> {
        Ok(())
    }

    async fn pids(&self, _: EngineId) -> Result<Vec<u32>, Trouble> {
        Ok(vec![10, 11])
    }

    async fn cause(&self, _: EngineId) -> Trouble {
        Trouble::Died("it ended".into())
    }

    async fn found(&self) -> Vec<Program> {
        Vec::new()
    }
}

fn program(degree: u32) -> Program {
    let spec = EngineSpec {
        service: "s".into(),
        engine: EngineKind::Vllm,
        image: None,
        args: Vec::new(),
        env: BTreeMap::new(),
        model: "m".into(),
        served_name: "m".into(),
        degree,
        evict: EvictBy::CudaCheckpoint,
        probe: None,
        footprint: Needs::default(),
    };
    let chunk = Chunk::new(0, 0, Degree::new(degree).unwrap()).unwrap();
    let (engine, spec) = (EngineId(1), Arc::new(spec));
    Program { engine, spec, chunk, url: String::new(), arena: "".into() }
}

fn checkpoint(states: &[(u32, ProcessState)]) -> (Arc<Fake>, CudaCheckpoint) {
    let fake = Arc::new(Fake::default());
    *fake.states.lock().unwrap() = states.iter().copied().collect();
    (Arc::clone(&fake), CudaCheckpoint::new(fake, Arc::new(Two)))
}

#[tokio::test]
async fn a_process_leaves_its_gpu_and_returns() {
    let (fake, mover) = checkpoint(&[(11, Running)]);
    let program = program(1);
    mover.started(&program).await.unwrap();
    for _ in 0..2 {
        mover.evict(&program).await.unwrap();
        assert_eq!((mover.is_asleep(&program).await, fake.state(11)), (Ok(true), Ok(Checkpointed)));
        mover.evict(&program).await.unwrap();
        mover.wake(&program).await.unwrap();
        assert_eq!((mover.is_asleep(&program).await, fake.state(11)), (Ok(false), Ok(Running)));
        mover.wake(&program).await.unwrap();
    }
}

#[tokio::test]
async fn what_fails_leaves_it_running_or_is_said() {
    let (fake, mover) = checkpoint(&[(10, Running)]);
    let program = program(1);
    *fake.refuses.lock().unwrap() = Some("checkpoint");
    assert!(mover.evict(&program).await.is_err());
    assert_eq!(fake.state(10), Ok(Running), "not locked");
    *fake.refuses.lock().unwrap() = None;
    mover.evict(&program).await.unwrap();
    *fake.refuses.lock().unwrap() = Some("restore");
    assert!(mover.wake(&program).await.is_err());
    assert_eq!(mover.is_asleep(&program).await, Ok(true));
    fake.states.lock().unwrap().insert(10, Failed);
    assert!(mover.is_asleep(&program).await.is_err());
}

#[tokio::test]
async fn only_one_process_on_one_gpu_can_be_checkpointed() {
    let why = |refused: Result<(), Trouble>| refused.unwrap_err().to_string();
    let (_, mover) = checkpoint(&[(10, Running), (11, Running)]);
    assert!(why(mover.started(&program(1)).await).contains("several"));
    assert!(why(mover.started(&program(2)).await).contains("EngineSleep"));
    let (_, mover) = checkpoint(&[]);
    assert!(why(mover.started(&program(1)).await).contains("none of its processes"));
}
