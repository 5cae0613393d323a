//! What the driver says of the node's GPUs.

use std::io::Write as _;

use rollwright_agent::gpu::cuda::Driver;
use rollwright_agent::gpu::{Incident, Occupant, Station};
use rollwright_core::gpu::{EngineId, Trouble};

use crate::engines::{chunk, station};
use crate::machine::{LIMIT, Machine, hang, order, take_back};

#[tokio::test]
async fn gpus_that_fall_off_or_err_are_reported() {
    Machine::new(3, 64 << 20).run("node::incidents").await;
}

async fn incident(station: &mut Station) -> Incident {
    let incident = tokio::time::timeout(LIMIT, station.incidents.recv()).await;
    incident.expect("something happens").expect("the station is open")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by `gpus_that_fall_off_or_err_are_reported`"]
async fn incidents() {
    // Errors of before the agent began are past.
    order("ecc-1", "5");
    let mut node = station(0).unwrap().expect("fake devices");
    assert_eq!((node.inventory.gpus, node.inventory.memory), (3, 64 << 20));
    let at = |gpu| Occupant { chunk: chunk(gpu), pids: vec![1, 2], lent: 7 };
    assert_eq!(node.device.held(EngineId(1), Some(&at(2))).await, Ok(7));
    order("lost-2", "");
    assert_eq!(incident(&mut node).await, Incident::Gpu { gpu: 2, lost: true });
    assert_eq!(node.device.held(EngineId(1), Some(&at(2))).await, Err(Trouble::GpuLost));
    take_back("lost-2");
    assert_eq!(incident(&mut node).await, Incident::Gpu { gpu: 2, lost: false });
    // One whose memory erred stays out.
    order("ecc-0", "1");
    assert_eq!(incident(&mut node).await, Incident::Gpu { gpu: 0, lost: true });
    order("ecc-1", "6");
    assert_eq!(incident(&mut node).await, Incident::Gpu { gpu: 1, lost: true });
    drop(node);

    // A node where one has fallen off has the others.
    order("lost-0", "");
    let mut node = station(0).unwrap().expect("fake devices");
    assert_eq!((node.inventory.gpus, node.inventory.memory), (3, 64 << 20));
    assert_eq!(incident(&mut node).await, Incident::Gpu { gpu: 0, lost: true });
}

#[tokio::test]
async fn a_gpu_of_which_the_driver_says_nothing_holds_up_no_other() {
    Machine::new(2, 64 << 20).run("node::silent").await;
}

#[tokio::test]
#[ignore = "run by `a_gpu_of_which_the_driver_says_nothing_holds_up_no_other`"]
async fn silent() {
    let answer = hang("ecc-1");
    let mut node = station(0).unwrap().expect("fake devices");
    // It is open when the driver reads it, and waits.
    let open = move || std::fs::File::options().write(true).open(answer);
    let mut answer = tokio::task::spawn_blocking(open).await.unwrap().unwrap();
    let at = Occupant { chunk: chunk(0), pids: vec![1, 2], lent: 7 };
    assert_eq!(node.device.held(EngineId(1), Some(&at)).await, Ok(7));
    order("ecc-1", "5");
    answer.write_all(b"4").unwrap();
    drop(answer);
    assert_eq!(incident(&mut node).await, Incident::Gpu { gpu: 1, lost: true });
}

#[tokio::test]
async fn a_node_with_a_gpu_split_by_mig_offers_none() {
    Machine::new(2, 64 << 20).run("node::split").await;
}

#[test]
#[ignore = "run by `a_node_with_a_gpu_split_by_mig_offers_none`"]
fn split() {
    assert_eq!(Driver::find().unwrap().expect("not split yet").gpus(), 2);
    order("mig-1", "1");
    assert!(Driver::find().expect("no error").is_none());
}

#[tokio::test]
async fn a_driver_without_devices_is_no_gpu() {
    Machine::new(0, 0).run("node::nothing").await;
}

#[test]
#[ignore = "run by `a_driver_without_devices_is_no_gpu`"]
fn nothing() {
    assert!(Driver::find().expect("no error").is_none());
}
