//! How an engine is ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Event, OrderId, Trouble};
use tokio::sync::mpsc;

use super::node::{Calls, LIMIT, kind};
use crate::gpu::spec::{EngineSpec, Found, Occupant};
use crate::gpu::{Backend, Device, Driver, Instruction};

/// One engine, of which this is known until it is ended.
struct One {
    at: Result<Occupant, Trouble>,
    ended: AtomicBool,
}

#[async_trait]
impl Backend for One {
    async fn launch(&self, _: EngineId, _: Arc<EngineSpec>, _: Chunk) -> Result<(), Trouble> {
        unreachable!("it is only ended")
    }

    async fn wake(&self, _: EngineId) -> Result<(), Trouble> {
        unreachable!("it is only ended")
    }

    async fn evict(&self, _: EngineId) -> Result<(), Trouble> {
        unreachable!("it is only ended")
    }

    async fn stop(&self, _: EngineId) -> Result<(), Trouble> {
        self.ended.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn is_asleep(&self, _: EngineId) -> Result<bool, Trouble> {
        unreachable!("it is only ended")
    }

    async fn probe(&self, _: EngineId) -> Result<bool, Trouble> {
        unreachable!("it is only ended")
    }

    async fn address(&self, _: EngineId) -> Option<String> {
        None
    }

    async fn occupant(&self, _: EngineId) -> Result<Option<Occupant>, Trouble> {
        if self.ended.load(Ordering::SeqCst) { Ok(None) } else { self.at.clone().map(Some) }
    }

    async fn found(&self) -> Vec<Found> {
        Vec::new()
    }
}

/// Counts as the driver of real GPUs does, of which the engine's processes have none.
struct Lent;

#[async_trait]
impl Device for Lent {
    async fn held(&self, _: EngineId, at: Option<&Occupant>) -> Result<u64, Trouble> {
        Ok(at.map_or(0, |at| at.lent))
    }
}

/// What is reported of each of two orders to end it.
async fn ended(at: Result<Occupant, Trouble>) -> [Result<u64, Trouble>; 2] {
    let one = Arc::new(One { at, ended: AtomicBool::new(false) });
    let driver = Driver::new(one, Arc::new(Lent), Arc::new(Calls::default()));
    let (commands, orders) = mpsc::channel(10);
    let (reports, mut events) = mpsc::channel(10);
    tokio::spawn(driver.run(orders, reports));
    let mut results = Vec::new();
    for order in [1, 2].map(OrderId) {
        let stop = Instruction::Stop { engine: EngineId(1), order, limit: LIMIT };
        commands.send(stop).await.unwrap();
        let Some(Event::Stopped(_, of, result)) = events.recv().await else { panic!("no report") };
        assert_eq!(of, order);
        results.push(result);
    }
    results.try_into().unwrap()
}

#[tokio::test]
async fn what_the_agent_lent_is_back_when_an_engine_is_ended() {
    let chunk = Chunk::new(0, 0, kind(0).degree).unwrap();
    let at = Occupant { chunk, pids: vec![1], lent: 7 };
    assert_eq!(ended(Ok(at)).await, [Ok(0), Ok(0)]);
}

#[tokio::test]
async fn an_engine_whose_processes_cannot_be_counted_is_ended_too() {
    let unknown = Trouble::Unknown("no answer".into());
    assert_eq!(ended(Err(unknown.clone())).await, [Err(unknown), Ok(0)]);
}
