//! What the queue is told when the link comes back.

use rollwright_core::gpu::{EngineId, Trouble};
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::engine_report::Result as Said;
use rollwright_proto::v1::engine_spec::Evict;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use tokio::sync::mpsc;

use super::failures::fake;
use super::node::{LIMIT, footprint};
use crate::gpu::{Desk, Incident, Station};

fn launch(evict: Evict) -> FromQueue {
    let footprint = footprint();
    let spec = pb::EngineSpec {
        service: "s0".into(),
        engine: pb::engine_spec::Engine::Vllm.into(),
        evict: evict.into(),
        degree: 1,
        footprint: Some(pb::EngineFootprint {
            device_bytes: footprint.device,
            residue_bytes: footprint.residue,
            host_bytes: footprint.host,
        }),
        ..Default::default()
    };
    FromQueue::RestoreEngine(pb::RestoreEngine {
        engine: 1,
        order: 7,
        launch: Some(spec),
        ..Default::default()
    })
}

#[tokio::test]
async fn a_death_without_a_link_is_not_hidden_by_an_older_report() {
    let (fake, _) = fake();
    let (incident, incidents) = mpsc::channel(1);
    let inventory = fake.inventory();
    let (backend, device, care) = (fake.clone(), fake, tokio::task::JoinSet::new());
    let desk = Desk::open(Station { backend, device, inventory, incidents, care }).await;
    let (outbox, mut messages) = mpsc::channel(10);
    desk.attach(outbox).await;
    desk.handle(launch(Evict::EngineSleep)).await;
    let report = messages.recv().await.unwrap().message;
    let Some(FromAgent::EngineReport(report)) = report else { panic!("{report:?}") };
    assert!(matches!(report.result, Some(Said::Proof(_))), "{report:?}");

    desk.detach().await;
    incident.send(Incident::Broke(EngineId(1), Trouble::Died("it fell".into()))).await.unwrap();
    let told = async {
        loop {
            let [engine] = &desk.hello().await.unwrap().engines[..] else { panic!("one engine") };
            if engine.proof.is_none() {
                return engine.order;
            }
        }
    };
    let order = tokio::time::timeout(LIMIT, told).await.expect("the desk hears of it");
    assert_eq!(order, None, "no report is to come");
    let (outbox, mut messages) = mpsc::channel(10);
    desk.attach(outbox).await;
    desk.stop(false).await;
    assert_eq!(messages.recv().await, None, "nothing good is said of it");
}

/// What an order for engine 1 leads to.
async fn result(
    desk: &Desk,
    messages: &mut mpsc::Receiver<pb::AgentMessage>,
    order: FromQueue,
) -> Said {
    desk.handle(order).await;
    match messages.recv().await.unwrap().message {
        Some(FromAgent::EngineReport(report)) => report.result.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_engine_is_where_it_was_moved_to() {
    let (fake, incidents) = fake();
    let inventory = fake.inventory();
    let (backend, device, care) = (fake.clone(), fake.clone(), tokio::task::JoinSet::new());
    let desk = Desk::open(Station { backend, device, inventory, incidents, care }).await;
    let (outbox, mut messages) = mpsc::channel(10);
    desk.attach(outbox).await;
    let evict = |order| {
        let evict =
            pb::EvictEngine { engine: 1, order, residue_bytes: 1, ..pb::EvictEngine::default() };
        FromQueue::EvictEngine(evict)
    };
    let wake = |order, first_gpu| {
        let wake = pb::RestoreEngine { engine: 1, order, first_gpu, ..Default::default() };
        FromQueue::RestoreEngine(wake)
    };
    result(&desk, &mut messages, launch(Evict::CudaCheckpoint)).await;
    let Said::Proof(proof) = result(&desk, &mut messages, evict(8)).await else { panic!("asleep") };
    assert!(proof.asleep && proof.movable && proof.held_bytes == 0, "{proof:?}");
    assert_eq!(fake.used(0), 0);
    let Said::Proof(proof) = result(&desk, &mut messages, wake(9, 3)).await else {
        panic!("awake")
    };
    assert!(!proof.asleep && !proof.movable && proof.answers, "{proof:?}");
    assert_eq!((fake.used(0), fake.used(3)), (0, 6));
    assert_eq!(desk.hello().await.unwrap().engines[0].first_gpu, 3);
    // The link that follows: what was not acknowledged is told again.
    let (outbox, mut messages) = mpsc::channel(10);
    desk.attach(outbox).await;
    let again = messages.recv().await.unwrap().message;
    assert!(matches!(&again, Some(FromAgent::EngineReport(told)) if told.order == 9), "{again:?}");
    // Where there can be none it is told so, and stays where it is.
    result(&desk, &mut messages, evict(10)).await;
    let Said::Trouble(trouble) = result(&desk, &mut messages, wake(11, 128)).await else {
        panic!("refused")
    };
    assert!(trouble.detail.contains("GPU 128 is no place"), "{trouble:?}");
    result(&desk, &mut messages, wake(12, 3)).await;
    assert_eq!((fake.used(0), fake.used(3)), (0, 6));
    // One that is bound is not moved.
    let mut bound = launch(Evict::EngineSleep);
    if let FromQueue::RestoreEngine(restore) = &mut bound {
        restore.first_gpu = 5;
    }
    result(&desk, &mut messages, bound).await;
    let Said::Proof(proof) = result(&desk, &mut messages, evict(13)).await else {
        panic!("asleep")
    };
    assert!(proof.asleep && !proof.movable && proof.held_bytes == 1, "{proof:?}");
    let Said::Trouble(trouble) = result(&desk, &mut messages, wake(14, 3)).await else {
        panic!("refused")
    };
    assert!(trouble.detail.contains("cannot be moved to GPU 3"), "{trouble:?}");
}
