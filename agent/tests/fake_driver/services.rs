//! `HostPinned` as on a real GPU: the agent's copies, the server's import of blocks at a fixed
//! address, and the driver's account of memory.

use rollwright_agent::gpu::spec::EvictBy;
use rollwright_core::gpu::EngineId;

use crate::engines::{end, held, launch, model, station};
use crate::machine::{CONTEXT, LIMIT, Machine, python};
use crate::scores::scores;

const BLOCK: u64 = 256 << 20;
/// Two blocks, of which each model takes one.
const ARENA: u64 = 2 * BLOCK;

#[tokio::test]
async fn services_share_a_gpu_and_answer_bit_for_bit_as_if_alone() {
    if python().is_none() {
        return;
    }
    // No two arenas fit, nor one beside a block that an earlier agent's server still has.
    Machine::new(2, ARENA + BLOCK / 2).run("services::share").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by `services_share_a_gpu_and_answer_bit_for_bit_as_if_alone`"]
async fn share() {
    let models = ["1", "2", "3"].map(model);
    let node = station(0).unwrap().expect("fake devices");
    assert_eq!((node.inventory.gpus, node.inventory.fake), (2, false));
    // What each answers by itself, from weights of its own.
    let mut alone = Vec::new();
    for model in &models {
        launch(&node, EngineId(9), model, EvictBy::EngineSleep, 0).await;
        alone.push(scores(&node, EngineId(9)).await.unwrap());
        node.backend.evict(EngineId(9)).await.unwrap();
        assert_eq!(held(&node, EngineId(9)).await, CONTEXT, "the weights are off the GPU");
        node.backend.wake(EngineId(9)).await.unwrap();
        assert_eq!(scores(&node, EngineId(9)).await.unwrap(), alone[alone.len() - 1]);
        node.backend.stop(EngineId(9)).await.unwrap();
        assert_eq!(held(&node, EngineId(9)).await, 0);
    }
    assert_ne!(alone[0], alone[1]);
    drop(node);

    let node = station(ARENA).unwrap().expect("fake devices");
    for (engine, model) in (0..).zip(&models) {
        launch(&node, EngineId(engine), model, EvictBy::HostPinned, 1).await;
        assert_eq!(scores(&node, EngineId(engine)).await.as_ref(), Ok(&alone[engine as usize]));
        assert_eq!(held(&node, EngineId(engine)).await, CONTEXT + BLOCK);
        node.backend.evict(EngineId(engine)).await.unwrap();
        assert_eq!(held(&node, EngineId(engine)).await, CONTEXT);
        assert_eq!(scores(&node, EngineId(engine)).await, Err(503), "it sleeps");
    }
    // They take each other's blocks; two are there at a time.
    for round in 0..3 {
        for engine in [0, 1, 2_u64].map(|n| (n + round) % 3) {
            let both = [engine, (engine + 1) % 3];
            for engine in both {
                node.backend.wake(EngineId(engine)).await.unwrap();
                assert_eq!(node.backend.is_asleep(EngineId(engine)).await, Ok(false));
            }
            for engine in both {
                let answer = scores(&node, EngineId(engine)).await;
                assert_eq!(answer.as_ref(), Ok(&alone[engine as usize]), "round {round}");
                node.backend.evict(EngineId(engine)).await.unwrap();
            }
        }
    }
    // One that is ended awake gives back what the agent lent it.
    launch(&node, EngineId(3), &models[0], EvictBy::HostPinned, 0).await;
    assert_eq!(held(&node, EngineId(3)).await, CONTEXT + BLOCK);
    assert_eq!(end(&node, EngineId(3)).await, Ok(0));
    // One is awake as its agent goes: it gives back what it has of the agent's memory.
    node.backend.wake(EngineId(0)).await.unwrap();
    drop(node);
    let reopened = async {
        loop {
            match station(ARENA) {
                Ok(node) => return node.expect("fake devices"),
                Err(short) => assert!(short.to_string().contains("OUT_OF_MEMORY"), "{short}"),
            }
            tokio::task::yield_now().await;
        }
    };
    let node = tokio::time::timeout(LIMIT, reopened).await.expect("the memory is free");
    // Their weights were the earlier agent's memory: they cannot be woken, and are ended.
    assert_eq!(node.found().await.len(), 3);
    for engine in [0, 1, 2].map(EngineId) {
        assert_eq!(scores(&node, engine).await, Err(503));
        assert!(node.backend.wake(engine).await.is_err());
        node.backend.stop(engine).await.unwrap();
    }
}
