//! Nothing is done to an engine twice at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Chunk, EngineId, Event, OrderId, Trouble};
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::failures::fake;
use super::node::{LIMIT, kind, spec};
use crate::gpu::spec::{EngineSpec, Found, Inventory, Occupant};
use crate::gpu::{Backend, Caller, Desk, Driver, Instruction, Station};

const ENGINE: EngineId = EngineId(1);

/// A backend whose launches never return, and that finds out whether an engine is ended
/// while it is launched.
struct Slow {
    launching: AtomicBool,
    overlapped: AtomicBool,
    begun: mpsc::UnboundedSender<()>,
    /// Holds the thread of a launch until something comes; `None` holds none.
    held: Mutex<Option<Receiver<()>>>,
}

/// True as long as it lives.
struct Launching<'a>(&'a AtomicBool);

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl Backend for Slow {
    async fn launch(&self, _: EngineId, _: Arc<EngineSpec>, _: Chunk) -> Result<(), Trouble> {
        self.launching.store(true, Ordering::SeqCst);
        let _launching = Launching(&self.launching);
        self.begun.send(()).expect("the test listens");
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(held) = held {
            held.recv().expect("the test lets it go on");
        }
        std::future::pending().await
    }

    async fn stop(&self, _: EngineId) -> Result<(), Trouble> {
        self.overlapped.fetch_or(self.launching.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok(())
    }

    async fn wake(&self, _: EngineId) -> Result<(), Trouble> {
        Ok(())
    }

    async fn evict(&self, _: EngineId) -> Result<(), Trouble> {
        Ok(())
    }

    async fn is_asleep(&self, _: EngineId) -> Result<bool, Trouble> {
        Ok(false)
    }

    async fn probe(&self, _: EngineId) -> Result<bool, Trouble> {
        Ok(true)
    }

    async fn address(&self, _: EngineId) -> Option<String> {
        None
    }

    async fn occupant(&self, _: EngineId) -> Result<Option<Occupant>, Trouble> {
        Ok(None)
    }

    async fn found(&self) -> Vec<Found> {
        Vec::new()
    }
}

struct Uncalled;

#[async_trait]
impl Caller for Uncalled {
    async fn call(&self, _: &ActionId, _: &str) -> Result<(), Fault> {
        Ok(())
    }
}

fn slow(held: Option<Receiver<()>>) -> (Arc<Slow>, mpsc::UnboundedReceiver<()>) {
    let (begun, begins) = mpsc::unbounded_channel();
    let (launching, overlapped) = (AtomicBool::default(), AtomicBool::default());
    (Arc::new(Slow { launching, overlapped, begun, held: Mutex::new(held) }), begins)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_order_begins_when_the_one_before_it_is_gone() {
    let (go_on, held) = std::sync::mpsc::channel();
    let (backend, mut begins) = slow(Some(held));
    let (device, _) = fake();
    let driver = Driver::new(Arc::clone(&backend) as _, device, Arc::new(Uncalled));
    let (commands, orders) = mpsc::channel(10);
    let (reports, mut events) = mpsc::channel(10);
    tokio::spawn(driver.run(orders, reports));
    let (engine, limit) = (ENGINE, LIMIT);
    let chunk = Chunk::new(0, 0, kind(0).degree).unwrap();
    let spec = Arc::new(spec(kind(0)));
    let launch = Instruction::Launch { engine, order: OrderId(1), spec, chunk, limit };
    commands.send(launch).await.unwrap();
    begins.recv().await.unwrap();
    // The launch does not let go of its thread, while two orders follow it.
    for order in [2, 3].map(OrderId) {
        commands.send(Instruction::Stop { engine, order, limit }).await.unwrap();
    }
    let action = ActionId::new("none").unwrap();
    commands.send(Instruction::Cancel { action, engine }).await.unwrap();
    assert!(matches!(events.recv().await, Some(Event::Finished { .. })), "both were taken");
    // They would not wait for anything.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    go_on.send(()).unwrap();
    let stopped = events.recv().await;
    assert!(matches!(stopped, Some(Event::Stopped(_, OrderId(3), Ok(0)))), "{stopped:?}");
    assert!(!backend.overlapped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_node_that_is_cleared_launches_nothing_meanwhile() {
    let (backend, mut begins) = slow(None);
    let (device, _) = fake();
    let (_incidents, happens) = mpsc::channel(1);
    let station = Station {
        backend: Arc::clone(&backend) as _,
        device,
        inventory: Inventory { gpus: 1, ..Inventory::default() },
        incidents: happens,
        care: JoinSet::new(),
    };
    let desk = Desk::open(station).await;
    let launch = pb::EngineSpec {
        engine: pb::engine_spec::Engine::Vllm.into(),
        evict: pb::engine_spec::Evict::EngineSleep.into(),
        degree: 1,
        ..pb::EngineSpec::default()
    };
    let (engine, order) = (ENGINE.0, 1);
    let restore =
        pb::RestoreEngine { engine, order, launch: Some(launch), ..pb::RestoreEngine::default() };
    desk.handle(FromQueue::RestoreEngine(restore)).await;
    begins.recv().await.unwrap();
    desk.stop(true).await;
    assert!(!backend.overlapped.load(Ordering::SeqCst), "ended while it was launched");
    assert!(!backend.launching.load(Ordering::SeqCst), "launched after it was ended");
}
