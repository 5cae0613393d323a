//! `CudaCheckpoint` with a remap: a process comes back on another GPU.

use std::sync::Arc;

use async_trait::async_trait;
use rollwright_agent::gpu::cuda::{Checkpoints as _, Driver as Nvml, DriverCheckpoints, GpuId};
use rollwright_agent::gpu::cuda::{ProcessState, Remap};
use rollwright_agent::gpu::spec::EvictBy;
use rollwright_agent::gpu::{Caller, Driver, Instruction, Station};
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{EngineId, Event, OrderId, Proof, Trouble};
use rollwright_core::ids::ActionId;
use tokio::sync::mpsc;

use crate::engines::{chunk, end, held, launch, model, station};
use crate::machine::{CONTEXT, LIMIT, Machine, order, python, take_back};
use crate::scores::scores;

const ENGINE: EngineId = EngineId(4);

/// Bytes of a GPU.
const MEMORY: u64 = 64 << 20;

/// Makes no calls.
struct Silent;

#[async_trait]
impl Caller for Silent {
    async fn call(&self, _: &ActionId, _: &str) -> Result<(), Fault> {
        unreachable!("engines are only moved")
    }
}

/// What a queue is told when it has this done.
async fn obey(node: &Station, instruction: Instruction) -> Result<Proof, Trouble> {
    let (backend, device) = (Arc::clone(&node.backend), Arc::clone(&node.device));
    let (commands, orders) = mpsc::channel(1);
    let (reports, mut events) = mpsc::channel(1);
    tokio::spawn(Driver::new(backend, device, Arc::new(Silent)).run(orders, reports));
    commands.send(instruction).await.unwrap();
    match events.recv().await {
        Some(Event::Restored(_, _, result) | Event::Evicted(_, _, result)) => result,
        other => panic!("{other:?}"),
    }
}

async fn evict(node: &Station) -> Result<Proof, Trouble> {
    let (engine, order, limit) = (ENGINE, OrderId(1), LIMIT);
    obey(node, Instruction::Evict { engine, order, residue: 0, limit }).await
}

async fn wake(node: &Station, gpu: Option<u32>) -> Result<Proof, Trouble> {
    let (engine, order, limit) = (ENGINE, OrderId(2), LIMIT);
    obey(node, Instruction::Wake { engine, order, to: gpu.map(chunk), limit }).await
}

/// Bytes that the driver counts on each GPU for the one process of the engine that uses CUDA.
async fn accounts(node: &Station) -> Vec<u64> {
    let at = node.backend.occupant(ENGINE).await.unwrap().expect("it lives");
    let mut accounts = Vec::new();
    for gpu in 0..node.inventory.gpus {
        let at = rollwright_agent::gpu::Occupant { chunk: chunk(gpu), ..at.clone() };
        accounts.push(node.device.held(ENGINE, Some(&at)).await.unwrap());
    }
    accounts
}

#[tokio::test]
async fn a_process_comes_back_on_another_gpu_with_the_same_answers() {
    if python().is_some() {
        Machine::new(3, MEMORY).run("moves::there_and_back").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by `a_process_comes_back_on_another_gpu_with_the_same_answers`"]
async fn there_and_back() {
    let node = station(0).unwrap().expect("fake devices");
    launch(&node, ENGINE, &model("1"), EvictBy::CudaCheckpoint, 0).await;
    let answer = scores(&node, ENGINE).await.unwrap();
    let awake = held(&node, ENGINE).await;
    assert!(awake > CONTEXT + 2_000_000, "{awake}");
    assert_eq!(accounts(&node).await, [awake, 0, 0]);
    for gpu in [1, 2, 0] {
        let left = evict(&node).await.unwrap();
        assert!(left.movable && left.is_unbound(), "{left:?}");
        assert_eq!(accounts(&node).await, [0, 0, 0]);
        let back = wake(&node, Some(gpu)).await.unwrap();
        assert_eq!((back.held, back.answers, back.movable), (awake, true, false));
        let mut expected = [0; 3];
        expected[gpu as usize] = awake;
        assert_eq!(accounts(&node).await, expected);
        assert_eq!(scores(&node, ENGINE).await.as_ref(), Ok(&answer));
    }
    // From where it is now it comes back as ever, and a later agent finds it there.
    evict(&node).await.unwrap();
    wake(&node, Some(2)).await.unwrap();
    evict(&node).await.unwrap();
    wake(&node, None).await.unwrap();
    assert_eq!(accounts(&node).await, [0, 0, awake]);
    drop(node);
    let node = station(0).unwrap().expect("fake devices");
    let [found] = &node.found().await[..] else { panic!("one engine") };
    assert_eq!(found.chunk, chunk(2));
    assert!(found.proof.is_some_and(|proof| proof.answers && proof.held == awake), "{found:?}");

    // Its old GPU is another's meanwhile: that one stays as it is.
    evict(&node).await.unwrap();
    let other = EngineId(5);
    launch(&node, other, &model("2"), EvictBy::CudaCheckpoint, 2).await;
    let others = scores(&node, other).await.unwrap();
    wake(&node, Some(0)).await.unwrap();
    assert_eq!(scores(&node, ENGINE).await.as_ref(), Ok(&answer));
    assert_eq!(scores(&node, other).await.as_ref(), Ok(&others));
    for engine in [ENGINE, other] {
        assert_eq!(end(&node, engine).await, Ok(0));
    }
}

#[tokio::test]
async fn what_the_driver_does_not_move_is_not_believed_to_be_moved() {
    if python().is_some() {
        Machine::new(2, MEMORY).run("moves::failures").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by `what_the_driver_does_not_move_is_not_believed_to_be_moved`"]
async fn failures() {
    let model = model("1");
    // The driver takes the pairs, and moves nothing: the account says so.
    let node = station(0).unwrap().expect("fake devices");
    launch(&node, ENGINE, &model, EvictBy::CudaCheckpoint, 0).await;
    evict(&node).await.unwrap();
    order("unmoved-0", "");
    let proof = wake(&node, Some(1)).await.unwrap();
    assert_eq!((proof.asleep, proof.held), (false, 0), "there it has nothing: it is ended");
    assert_eq!(end(&node, ENGINE).await, Ok(0));
    take_back("unmoved-0");

    // It is lost half way.
    launch(&node, ENGINE, &model, EvictBy::CudaCheckpoint, 0).await;
    evict(&node).await.unwrap();
    order("fail-restore", "999");
    assert!(wake(&node, Some(1)).await.unwrap_err().to_string().contains("UNKNOWN"));
    assert!(matches!(node.backend.is_asleep(ENGINE).await, Err(Trouble::Died(_))));
    assert_eq!(end(&node, ENGINE).await, Ok(0));

    // After that nothing is moved any more; all else goes on.
    launch(&node, ENGINE, &model, EvictBy::CudaCheckpoint, 0).await;
    let answer = scores(&node, ENGINE).await.unwrap();
    assert!(!evict(&node).await.unwrap().movable);
    assert!(wake(&node, Some(1)).await.unwrap_err().to_string().contains("cannot be moved"));
    node.backend.stop(ENGINE).await.unwrap();

    // Nor is it by a node whose GPUs are of two kinds, or whose driver is too old.
    for (name, what, why) in
        [("chip-1", "7", "GPU 1 is a FAKE GPU 7"), ("branch", "570", "use 580")]
    {
        order(name, what);
        let refused = Nvml::find().unwrap().expect("fake devices").remap().unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        let node = station(0).unwrap().expect("fake devices");
        launch(&node, ENGINE, &model, EvictBy::CudaCheckpoint, 0).await;
        assert!(!evict(&node).await.unwrap().movable, "{why}");
        wake(&node, None).await.unwrap();
        assert_eq!(scores(&node, ENGINE).await.as_ref(), Ok(&answer));
        node.backend.stop(ENGINE).await.unwrap();
        take_back(name);
    }
}

#[tokio::test]
async fn pairs_that_do_not_name_every_gpu_once_are_refused() {
    if python().is_some() {
        Machine::new(3, MEMORY).run("moves::pairs").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by `pairs_that_do_not_name_every_gpu_once_are_refused`"]
async fn pairs() {
    let node = station(0).unwrap().expect("fake devices");
    launch(&node, ENGINE, &model("1"), EvictBy::CudaCheckpoint, 1).await;
    let answer = scores(&node, ENGINE).await.unwrap();
    let remap: Remap = Nvml::find().unwrap().expect("fake devices").remap().unwrap();
    let all = remap.swap(0, 1).unwrap();
    let driver = DriverCheckpoints::find().unwrap();
    node.backend.evict(ENGINE).await.unwrap();
    let at = node.backend.occupant(ENGINE).await.unwrap().unwrap();
    let pid = at.pids.into_iter().find(|pid| driver.state(*pid).is_ok()).unwrap();
    let twice: Vec<_> = all.iter().map(|(old, _)| (*old, all[0].0)).collect();
    let unknown: (GpuId, GpuId) = ([0; 16], all[2].1);
    // One that the process was never shown is missing, one is named twice, one is none.
    for wrong in [&all[..2], &[all[0], all[1], all[1]][..], &twice[..], &[all[0], all[1], unknown]]
    {
        let why = driver.restore(pid, wrong).unwrap_err();
        assert!(why.contains("INVALID_VALUE"), "{why}");
        assert_eq!(driver.state(pid), Ok(ProcessState::Checkpointed));
    }
    driver.restore(pid, &all).unwrap();
    driver.unlock(pid).unwrap();
    assert_eq!(scores(&node, ENGINE).await.as_ref(), Ok(&answer));
    let counted = accounts(&node).await;
    assert!(counted[0] > CONTEXT && counted[1..] == [0, 0], "{counted:?}");
    node.backend.stop(ENGINE).await.unwrap();
}
