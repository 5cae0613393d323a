//! Checkpoints, over a fake of the driver.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, Degree, EngineId, Trouble};

use super::{Checkpoints, CudaCheckpoint, GpuId, Identity, ProcessState, Remap};
use crate::gpu::Mover;
use crate::gpu::launch::{Launcher, Program};
use crate::gpu::spec::{EngineSpec, EvictBy};

/// A **fake** of the driver: processes that use CUDA, and what cannot be done with them.
#[derive(Default)]
struct Fake {
    states: Mutex<BTreeMap<u32, ProcessState>>,
    refuses: Mutex<Option<&'static str>>,
    /// Of the last restore.
    pairs: Mutex<Vec<(GpuId, GpuId)>>,
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

    fn restore(&self, pid: u32, pairs: &[(GpuId, GpuId)]) -> Result<(), String> {
        pairs.clone_into(&mut self.pairs.lock().unwrap());
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

fn chunk(start: u32, degree: u32) -> Chunk {
    Chunk::new(0, start, Degree::new(degree).unwrap()).unwrap()
}

fn program(degree: u32) -> Program {
    let spec = EngineSpec { degree, evict: EvictBy::CudaCheckpoint, ..EngineSpec::bare() };
    let chunk = chunk(0, degree);
    let (engine, spec) = (EngineId(1), Arc::new(spec));
    Program { engine, spec, chunk, url: String::new(), arena: "".into() }
}

fn checkpoint(states: &[(u32, ProcessState)]) -> (Arc<Fake>, CudaCheckpoint) {
    let fake = Arc::new(Fake::default());
    *fake.states.lock().unwrap() = states.iter().copied().collect();
    let gpu = |n| Identity {
        id: format!("GPU-0000000{n}-0000-0000-0000-000000000000"),
        name: "H100".into(),
        memory: 80,
    };
    let remap = Remap::new("580.65.06", &[gpu(0), gpu(1)]).unwrap();
    (Arc::clone(&fake), CudaCheckpoint::new(fake, Arc::new(Two), Some(remap)))
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

#[tokio::test]
async fn a_process_is_moved_until_that_fails() {
    let (fake, mover) = checkpoint(&[(10, Running)]);
    let program = program(1);
    let named = || -> Vec<_> {
        fake.pairs.lock().unwrap().iter().map(|(old, new)| (old[3], new[3])).collect()
    };
    assert!(mover.wake_on(&program, chunk(1, 1)).await.is_err(), "it has not left");
    mover.evict(&program).await.unwrap();
    assert!(mover.wake_on(&program, chunk(2, 1)).await.is_err(), "there is no such GPU");
    mover.wake_on(&program, chunk(1, 1)).await.unwrap();
    assert_eq!((named(), fake.state(10)), (vec![(0, 1), (1, 0)], Ok(Running)));
    mover.evict(&program).await.unwrap();
    *fake.refuses.lock().unwrap() = Some("restore");
    assert!(mover.is_movable(&program));
    assert!(mover.wake_on(&program, chunk(1, 1)).await.is_err());
    // Nobody is asked to go elsewhere any more; where it was, it can still be woken.
    assert!(!mover.is_movable(&program));
    *fake.refuses.lock().unwrap() = None;
    assert!(mover.wake_on(&program, chunk(1, 1)).await.is_err());
    mover.wake(&program).await.unwrap();
    assert_eq!(named(), []);
}

#[tokio::test]
async fn a_container_is_bound_to_its_gpus() {
    let (_, mover) = checkpoint(&[(10, Running)]);
    let program = program(1);
    let spec = EngineSpec { image: Some("judge:1".into()), ..EngineSpec::clone(&program.spec) };
    assert!(!mover.is_movable(&Program { spec: Arc::new(spec), ..program }));
}
