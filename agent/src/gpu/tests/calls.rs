//! Calls that do not end by themselves.

use std::sync::Arc;

use async_trait::async_trait;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::gpu::{EngineId, Event, OrderId, Trouble};
use rollwright_core::ids::ActionId;
use tokio::sync::mpsc;

use super::failures::fake;
use super::node::{LIMIT, kind, spec};
use crate::gpu::fake::FakeGpus;
use crate::gpu::{Backend as _, Caller, Driver, Instruction};

const ENGINE: EngineId = EngineId(1);

/// A driver that makes its calls by `caller`, with the engine launched.
async fn launched(caller: impl Caller) -> (mpsc::Sender<Instruction>, mpsc::Receiver<Event>) {
    launched_on(fake().0, caller).await
}

async fn launched_on(
    fake: Arc<FakeGpus>,
    caller: impl Caller,
) -> (mpsc::Sender<Instruction>, mpsc::Receiver<Event>) {
    let driver = Driver::new(fake.clone(), fake, Arc::new(caller));
    let (commands, orders) = mpsc::channel(10);
    let (reports, mut events) = mpsc::channel(10);
    tokio::spawn(driver.run(orders, reports));
    let (engine, order, limit) = (ENGINE, OrderId(1), LIMIT);
    let chunk = rollwright_core::gpu::Chunk::new(0, 0, kind(0).degree).unwrap();
    let spec = Arc::new(spec(kind(0)));
    commands.send(Instruction::Launch { engine, order, spec, chunk, limit }).await.unwrap();
    assert!(matches!(events.recv().await, Some(Event::Restored(_, _, Ok(_)))));
    (commands, events)
}

/// Says that it was called, and never returns.
struct Hangs(mpsc::UnboundedSender<ActionId>);

#[async_trait]
impl Caller for Hangs {
    async fn call(&self, action: &ActionId, _: &str) -> Result<(), Fault> {
        self.0.send(action.clone()).expect("the test listens");
        std::future::pending().await
    }
}

/// Finds the engine's connection broken.
struct BreaksOff;

#[async_trait]
impl Caller for BreaksOff {
    async fn call(&self, _: &ActionId, _: &str) -> Result<(), Fault> {
        let kind = FaultKind::Infrastructure;
        Err(Fault::new(kind, rollwright_core::gpu::ENGINE_UNREACHABLE, "broken pipe"))
    }
}

#[tokio::test]
async fn an_engine_is_unreachable_only_where_its_probe_has_no_answer() {
    let (commands, mut events) = launched(BreaksOff).await;
    let (engine, limit) = (ENGINE, LIMIT);
    let run = |id| Instruction::Run { action: ActionId::new(id).unwrap(), engine };
    commands.send(run("awake")).await.unwrap();
    assert_eq!(reason(events.recv().await), "CallBrokeOff");
    let order = OrderId(2);
    commands.send(Instruction::Evict { engine, order, residue: 1, limit }).await.unwrap();
    assert!(matches!(events.recv().await, Some(Event::Evicted(_, _, Ok(_)))));
    // Asleep: its probe has no answer.
    commands.send(run("asleep")).await.unwrap();
    assert_eq!(reason(events.recv().await), "EngineUnreachable");
}

/// Its engine ends under each call, when all are made.
struct Dies(Arc<FakeGpus>, tokio::sync::Barrier);

#[async_trait]
impl Caller for Dies {
    async fn call(&self, action: &ActionId, address: &str) -> Result<(), Fault> {
        self.1.wait().await;
        self.0.stop(ENGINE).await.expect("a phantom can be ended");
        BreaksOff.call(action, address).await
    }
}

#[tokio::test]
async fn a_call_whose_engine_ends_says_why_it_ended_and_that_once() {
    let (fake, _) = fake();
    let caller = Dies(Arc::clone(&fake), tokio::sync::Barrier::new(2));
    let (commands, mut events) = launched_on(fake, caller).await;
    for action in ["one", "two"].map(|id| ActionId::new(id).unwrap()) {
        commands.send(Instruction::Run { action, engine: ENGINE }).await.unwrap();
    }
    let died = events.recv().await;
    assert!(matches!(died, Some(Event::Broke(ENGINE, Trouble::Died(_)))), "{died:?}");
    // All that ran there ended with it: nothing more is said of the other.
    let (order, limit) = (OrderId(2), LIMIT);
    commands.send(Instruction::Stop { engine: ENGINE, order, limit }).await.unwrap();
    let next = events.recv().await;
    assert!(matches!(next, Some(Event::Stopped(ENGINE, OrderId(2), Ok(0)))), "{next:?}");
}

/// Why a call has failed.
fn reason(event: Option<Event>) -> String {
    match event {
        Some(Event::Finished { result: Err(fault), .. }) => fault.reason.into_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_cancelled_call_ends_and_one_whose_engine_is_ended_is_not_reported() {
    let (called, mut calls) = mpsc::unbounded_channel();
    let (commands, mut events) = launched(Hangs(called)).await;
    let (engine, limit) = (ENGINE, LIMIT);
    let ids = ["cancelled", "ended"].map(|id| ActionId::new(id).unwrap());
    for action in ids.clone() {
        commands.send(Instruction::Run { action, engine }).await.unwrap();
    }
    let (one, two) = (calls.recv().await, calls.recv().await);
    assert!(one.is_some() && two.is_some() && one != two);
    let [action, _] = ids.clone();
    commands.send(Instruction::Cancel { action, engine }).await.unwrap();
    let Some(Event::Finished { action, result, .. }) = events.recv().await else {
        panic!("the call that was cancelled has ended");
    };
    assert_eq!((action, result.unwrap_err().kind), (ids[0].clone(), FaultKind::Cancelled));
    let order = OrderId(2);
    commands.send(Instruction::Stop { engine, order, limit }).await.unwrap();
    assert!(matches!(events.recv().await, Some(Event::Stopped(_, OrderId(2), Ok(0)))));
    drop(commands);
    assert!(events.recv().await.is_none(), "nothing more is reported");
}
