//! `CudaCheckpoint`: the driver takes a process off its GPU.

use std::time::Duration;

use rollwright_agent::gpu::cuda::{Checkpoints as _, DriverCheckpoints, ProcessState};
use rollwright_agent::gpu::spec::EvictBy;
use rollwright_core::gpu::EngineId;

use crate::engines::{held, launch, model, station};
use crate::machine::{CONTEXT, Machine, is_ordered, order, python};
use crate::scores::scores;

const ENGINE: EngineId = EngineId(4);

#[tokio::test]
async fn a_process_leaves_its_gpu_and_returns() {
    if python().is_none() {
        return;
    }
    Machine::new(1, 64 << 20).run("checkpoints::leave_and_return").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by `a_process_leaves_its_gpu_and_returns`"]
async fn leave_and_return() {
    // No arena: nothing but the checkpoints has the agent begin with the driver.
    let node = station(0).unwrap().expect("fake devices");
    launch(&node, ENGINE, &model("1"), EvictBy::CudaCheckpoint, 0).await;
    let answer = scores(&node, ENGINE).await.unwrap();
    let awake = held(&node, ENGINE).await;
    assert!(awake > CONTEXT + 2_000_000, "{awake}");
    for _ in 0..2 {
        node.backend.evict(ENGINE).await.unwrap();
        assert_eq!(node.backend.is_asleep(ENGINE).await, Ok(true));
        assert_eq!(held(&node, ENGINE).await, 0);
        node.backend.wake(ENGINE).await.unwrap();
        assert_eq!(node.backend.is_asleep(ENGINE).await, Ok(false));
        assert_eq!(
            (held(&node, ENGINE).await, scores(&node, ENGINE).await.unwrap()),
            (awake, answer.clone())
        );
    }
    // One that the driver does not let go is as before.
    order("fail-cuCheckpointProcessCheckpoint", "801");
    let why = node.backend.evict(ENGINE).await.unwrap_err().to_string();
    assert!(why.contains("NOT_SUPPORTED"), "{why}");
    assert_eq!(scores(&node, ENGINE).await.as_ref(), Ok(&answer));
    // One that cannot come back stays away, until it can.
    node.backend.evict(ENGINE).await.unwrap();
    order("fail-cuCheckpointProcessRestore", "2");
    assert!(node.backend.wake(ENGINE).await.is_err());
    assert!(!is_ordered("fail-cuCheckpointProcessRestore"));
    assert_eq!(node.backend.is_asleep(ENGINE).await, Ok(true));
    node.backend.wake(ENGINE).await.unwrap();
    assert_eq!(scores(&node, ENGINE).await.as_ref(), Ok(&answer));

    // A call that does not end holds a lock up for its limit alone, and goes on.
    let driver = DriverCheckpoints::find().unwrap();
    let at = node.backend.occupant(ENGINE).await.unwrap().unwrap();
    let states = at.pids.iter().filter_map(|pid| Some((*pid, driver.state(*pid).ok()?)));
    let [(pid, ProcessState::Running)] = states.collect::<Vec<_>>()[..] else {
        panic!("one process uses CUDA")
    };
    assert!(driver.state(1).unwrap_err().contains("INVALID_VALUE"), "it does not use CUDA");
    order("slow-cuMemFree_v2", "2000");
    let address = node.backend.address(ENGINE).await.unwrap();
    let sleep = tokio::spawn(crate::engines::post(format!("{address}/sleep")));
    // The call is under way once a lock of one millisecond fails.
    let limit = Duration::from_millis(1);
    while driver.lock(pid, limit).is_ok() {
        driver.unlock(pid).unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(driver.state(pid), Ok(ProcessState::Running));
    driver.lock(pid, Duration::from_mins(1)).unwrap();
    driver.unlock(pid).unwrap();
    sleep.await.unwrap().unwrap();
    node.backend.stop(ENGINE).await.unwrap();
}
