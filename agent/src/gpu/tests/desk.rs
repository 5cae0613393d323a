//! What the queue is told when the link comes back.

use rollwright_core::gpu::{EngineId, Trouble};
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use tokio::sync::mpsc;

use super::failures::fake;
use super::node::{LIMIT, footprint};
use crate::gpu::{Desk, Incident, Station};

fn launch() -> FromQueue {
    let footprint = footprint();
    let spec = pb::EngineSpec {
        service: "s0".into(),
        engine: pb::engine_spec::Engine::Vllm.into(),
        evict: pb::engine_spec::Evict::EngineSleep.into(),
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
    desk.handle(launch()).await;
    let report = messages.recv().await.unwrap().message;
    let Some(FromAgent::EngineReport(report)) = report else { panic!("{report:?}") };
    assert!(matches!(report.result, Some(pb::engine_report::Result::Proof(_))), "{report:?}");

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
