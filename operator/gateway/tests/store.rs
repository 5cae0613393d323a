//! The durable buffer in one process: what is written is there after opening again, what
//! is over is off the disk.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

mod store_common;

use bytes::Bytes;
use futures::StreamExt as _;
use proptest::prelude::*;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::{BatchId, Version};
use rollwright_gateway::store::{
    GroupMeta, Recovered, Store, StoreConfig, StoreError, TakenBatch, Weights,
};
use store_common::{disk_usage, group, payload, record};

const RECORD: usize = 256 << 10;

async fn open(dir: &std::path::Path) -> (Store, Recovered) {
    Store::open(StoreConfig::new(dir)).await.unwrap()
}

async fn keep(store: &Store, group: u64, number: u64) -> TrajectoryId {
    let meta = record(group, number);
    let trajectory = meta.trajectory.clone();
    store.keep(meta, payload(&trajectory, RECORD)).await.unwrap();
    trajectory
}

fn batch(id: u64, groups: &[u64]) -> TakenBatch {
    let groups = groups.iter().map(|number| group(*number).id).collect();
    TakenBatch { id: BatchId(id), version: Version(8), groups }
}

#[tokio::test]
async fn everything_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, recovered) = open(dir.path()).await;
    assert_eq!(recovered, Recovered::default());

    let prompt = Bytes::from_static(br#"{"prompt":"6 x 7?"}"#);
    store.open_group(group(1), Some(prompt.clone())).await.unwrap();
    store.open_group(group(2), None).await.unwrap();
    store.open_group(group(3), None).await.unwrap();
    for number in 0..3 {
        keep(&store, 1, number).await;
        keep(&store, 2, number).await;
    }
    let open_record = keep(&store, 3, 0).await;
    // Settled in another order than opened, and kept in another order than scored.
    let kept = |group, numbers: [u64; 2]| numbers.map(|n| record(group, n).trajectory).to_vec();
    store.settle(group(2).id, kept(2, [2, 0])).await.unwrap();
    store.settle(group(1).id, kept(1, [0, 1])).await.unwrap();
    store.take(batch(9, &[2])).await.unwrap();
    let weights = Weights { version: Version(8), source: Some("/weights/8".to_owned()) };
    store.set_weights(weights.clone()).await.unwrap();
    store.close().await;

    let (store, recovered) = open(dir.path()).await;
    assert_eq!(recovered.weights, Some(weights));
    assert_eq!(recovered.batches, [batch(9, &[2])]);
    let settled: Vec<_> = recovered.settled.iter().map(|group| &group.meta).collect();
    assert_eq!(settled, [&group(2), &group(1)]);
    assert_eq!(recovered.settled[0].records, [record(2, 2), record(2, 0)]);
    assert_eq!(recovered.settled[1].records, [record(1, 0), record(1, 1)]);
    assert_eq!(recovered.open[0].meta, group(3));
    assert_eq!(recovered.open[0].records, [record(3, 0)]);
    assert_eq!(store.payload(&group(1).id).await.unwrap(), Some(prompt));
    assert_eq!(store.payload(&group(2).id).await.unwrap(), None);
    let wanted = vec![record(2, 2).trajectory, open_record, record(1, 1).trajectory];
    let read: Vec<_> = store.records(wanted.clone()).collect().await;
    for (trajectory, read) in wanted.iter().zip(read) {
        assert_eq!(read.unwrap(), payload(trajectory, RECORD), "{trajectory}");
    }
    // What the group settled without is gone.
    let fault: Fault = store.record(&record(1, 2).trajectory).await.unwrap_err().into();
    assert_eq!(fault.reason, "RecordEnded");
}

#[tokio::test]
async fn an_acknowledged_batch_is_off_the_disk_and_stays_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    let empty = disk_usage(dir.path());
    // Group 1 stays, and lies between the others: files must shrink in their middle.
    for number in [0, 1, 2] {
        store
            .open_group(group(number), Some(payload(&record(number, 0).trajectory, 500)))
            .await
            .unwrap();
    }
    for number in 0..40 {
        for group in [0, 1, 2] {
            if group != 1 || number == 20 {
                keep(&store, group, number).await;
            }
        }
    }
    let all: Vec<_> = (0..40).map(|number| record(0, number).trajectory).collect();
    store.settle(group(0).id, all).await.unwrap();
    let full = disk_usage(dir.path()) - empty;
    assert!(full >= 81 * RECORD as u64, "{full}");

    store.take(batch(1, &[0])).await.unwrap();
    store.acknowledge(BatchId(1)).await.unwrap();
    store.acknowledge(BatchId(1)).await.unwrap();
    store.end_group(group(2).id).await.unwrap();
    store.end_group(group(2).id).await.unwrap();
    // The writer frees disk after it has answered; the next answer is behind that.
    store.set_weights(Weights { version: Version(1), source: None }).await.unwrap();
    let left = disk_usage(dir.path()) - empty;
    assert!(left < 4 * RECORD as u64, "{left} of {full} bytes are still used");
    store.close().await;

    let (store, recovered) = open(dir.path()).await;
    assert_eq!((recovered.acknowledged, recovered.last_acknowledged), (1, Some(BatchId(1))));
    assert_eq!(recovered.open.len(), 1);
    assert!(recovered.settled.is_empty() && recovered.batches.is_empty());
    let trajectory = record(1, 20).trajectory;
    assert_eq!(store.record(&trajectory).await.unwrap(), payload(&trajectory, RECORD));
}

#[tokio::test]
async fn whole_files_go_when_nothing_in_them_is_alive() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    let segments = || std::fs::read_dir(dir.path().join("segments")).unwrap().count();
    for group_number in 0..3_u64 {
        store.open_group(group(group_number), None).await.unwrap();
        for number in 0..3 {
            let meta = record(group_number, number);
            let bytes = payload(&meta.trajectory, 40 << 20);
            store.keep(meta, bytes).await.unwrap();
        }
    }
    assert!(segments() >= 4);
    for group_number in 0..3 {
        store.end_group(group(group_number).id).await.unwrap();
    }
    store.close().await;
    assert!(segments() <= 1, "{} files are left", segments());
    let (_store, _) = open(dir.path()).await;
    assert_eq!(segments(), 0);
}

#[tokio::test]
async fn a_second_gateway_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    let Err(error) = Store::open(StoreConfig::new(dir.path())).await else {
        panic!("two stores in one directory")
    };
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("in use by another process"), "{text}");
    store.close().await;
    open(dir.path()).await;
}

#[tokio::test]
async fn another_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.0.close().await;
    let db = fjall::Database::builder(dir.path().join("index")).open().unwrap();
    let meta = db.keyspace("meta", fjall::KeyspaceCreateOptions::default).unwrap();
    meta.insert("schema", "rollwright-gateway/0").unwrap();
    drop((meta, db));
    let Err(error) = Store::open(StoreConfig::new(dir.path())).await else {
        panic!("another schema was accepted")
    };
    assert!(error.to_string().contains("`rollwright-gateway/0`"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_written_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    let refused = |outcome: Result<(), StoreError>, reason: &str| {
        let fault: Fault = outcome.unwrap_err().into();
        assert_eq!(fault.reason, reason, "{fault}");
        fault
    };
    let meta = record(1, 0);
    let bytes = payload(&meta.trajectory, RECORD);
    refused(store.keep(meta.clone(), bytes.clone()).await, "GroupEnded");
    store.open_group(group(1), None).await.unwrap();
    store.keep(meta.clone(), bytes.clone()).await.unwrap();
    // Again: the first one stays, whatever comes.
    store.keep(meta.clone(), Bytes::from_static(b"other")).await.unwrap();
    assert_eq!(store.record(&meta.trajectory).await.unwrap(), bytes);
    let missing = vec![meta.trajectory.clone(), record(1, 1).trajectory];
    refused(store.settle(group(1).id, missing).await, "RecordEnded");
    refused(store.settle(group(2).id, Vec::new()).await, "GroupEnded");
    refused(store.take(batch(1, &[1, 2])).await, "GroupEnded");
    let large = Bytes::from(vec![0; rollwright_gateway::store::MAX_RECORD + 1]);
    let fault = refused(store.keep(record(1, 2), large).await, "RecordTooLarge");
    assert_eq!(fault.kind, FaultKind::User);
    // A group that is open already stays as it is, but for the numbers that it gave away.
    let again = |numbers| GroupMeta { numbers, needed: 9, ..group(1) };
    for numbers in [7, 5] {
        let payload = Some(Bytes::from_static(b"{}"));
        store.open_group(again(numbers), payload).await.unwrap();
    }
    assert_eq!(store.payload(&group(1).id).await.unwrap(), None);
    store.close().await;
    refused(store.open_group(group(3), None).await, "StoreStopped");

    let (_store, recovered) = open(dir.path()).await;
    assert_eq!(recovered.open.len(), 1);
    assert_eq!(recovered.open[0].meta, GroupMeta { numbers: 7, ..group(1) });
    assert_eq!(recovered.open[0].records, [meta]);
    assert!(recovered.batches.is_empty() && recovered.settled.is_empty());
}

#[tokio::test]
async fn a_flipped_bit_is_noticed() {
    use std::os::unix::fs::FileExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    store.open_group(group(1), None).await.unwrap();
    let (first, second) = (keep(&store, 1, 0).await, keep(&store, 1, 1).await);
    let segment = std::fs::read_dir(dir.path().join("segments")).unwrap().next().unwrap().unwrap();
    let file = std::fs::File::options().read(true).write(true).open(segment.path()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1000).unwrap();
    let fault: Fault = store.record(&first).await.unwrap_err().into();
    assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::Infrastructure, "StoreCorrupt"));
    store.record(&second).await.unwrap();
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Open(u64),
    Keep(u64, u64),
    Drop(u64, u64),
    Settle(u64),
    End(u64),
    Take(u64),
    Acknowledge,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let group = 0..5_u64;
    prop_oneof![
        3 => group.clone().prop_map(Step::Open),
        8 => (group.clone(), 0..4_u64).prop_map(|(group, number)| Step::Keep(group, number)),
        1 => (group.clone(), 0..4_u64).prop_map(|(group, number)| Step::Drop(group, number)),
        3 => group.clone().prop_map(Step::Settle),
        1 => group.clone().prop_map(Step::End),
        2 => group.prop_map(Step::Take),
        2 => Just(Step::Acknowledge),
        1 => Just(Step::Reopen),
    ]
}

/// What the store must hold: groups by number, with their records and whether they settled.
type Model = std::collections::BTreeMap<u64, (Vec<u64>, bool)>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_recovered(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(history(steps));
    }
}

async fn history(steps: Vec<Step>) {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path()).await;
    let mut model = Model::new();
    let mut order: Vec<u64> = Vec::new();
    let mut taken: Option<(u64, u64)> = None;
    let mut next_batch = 1;
    for step in steps.into_iter().chain([Step::Reopen]) {
        let free = |group: &u64| taken.is_none_or(|(_, of)| of != *group);
        match step {
            Step::Open(number) => {
                store.open_group(group(number), None).await.unwrap();
                model.entry(number).or_default();
            }
            Step::Keep(of, number) => {
                let meta = record(of, number);
                let bytes = payload(&meta.trajectory, 5000);
                match model.get_mut(&of) {
                    Some((_, true)) => {}
                    Some((records, false)) => {
                        store.keep(meta, bytes).await.unwrap();
                        if !records.contains(&number) {
                            records.push(number);
                        }
                    }
                    None => drop(store.keep(meta, bytes).await.unwrap_err()),
                }
            }
            Step::Drop(of, number) => {
                if let Some((records, false)) = model.get_mut(&of) {
                    let gone = vec![record(of, number).trajectory];
                    store.drop_records(group(of).id, gone).await.unwrap();
                    records.retain(|record| *record != number);
                }
            }
            Step::Settle(of) => {
                if let Some((records, settled @ false)) = model.get_mut(&of) {
                    // The last scored first, without the first.
                    let kept: Vec<u64> = records.iter().skip(1).rev().copied().collect();
                    let ids = kept.iter().map(|number| record(of, *number).trajectory).collect();
                    store.settle(group(of).id, ids).await.unwrap();
                    (*records, *settled) = (kept, true);
                    order.push(of);
                }
            }
            Step::End(of) if free(&of) => {
                store.end_group(group(of).id).await.unwrap();
                model.remove(&of);
                order.retain(|group| *group != of);
            }
            Step::Take(of) if taken.is_none() && model.get(&of).is_some_and(|(_, s)| *s) => {
                store.take(batch(next_batch, &[of])).await.unwrap();
                taken = Some((next_batch, of));
                next_batch += 1;
            }
            Step::Acknowledge => {
                if let Some((id, of)) = taken.take() {
                    store.acknowledge(BatchId(id)).await.unwrap();
                    model.remove(&of);
                    order.retain(|group| *group != of);
                }
            }
            Step::Reopen => {
                store.close().await;
                let (opened, recovered) = open(dir.path()).await;
                store = opened;
                check(&store, &recovered, &model, &order, taken).await;
            }
            Step::End(_) | Step::Take(_) => {}
        }
    }
}

async fn check(
    store: &Store,
    recovered: &Recovered,
    model: &Model,
    order: &[u64],
    taken: Option<(u64, u64)>,
) {
    let ids = |groups: &[rollwright_gateway::store::RecoveredGroup]| -> Vec<GroupId> {
        groups.iter().map(|group| group.meta.id.clone()).collect()
    };
    let settled: Vec<_> = order.iter().map(|number| group(*number).id).collect();
    assert_eq!(ids(&recovered.settled), settled);
    let open: Vec<_> =
        model.iter().filter(|(_, (_, settled))| !settled).map(|(id, _)| group(*id).id).collect();
    assert_eq!(ids(&recovered.open), open);
    for found in recovered.settled.iter().chain(&recovered.open) {
        let number: u64 = found.meta.id.as_str()[1..].parse().unwrap();
        let (records, settled) = &model[&number];
        let mut wanted: Vec<_> =
            records.iter().map(|record_number| record(number, *record_number)).collect();
        let mut got = found.records.clone();
        if !settled {
            let by_id = |a: &rollwright_gateway::store::RecordMeta,
                         b: &rollwright_gateway::store::RecordMeta| {
                a.trajectory.cmp(&b.trajectory)
            };
            wanted.sort_by(by_id);
            got.sort_by(by_id);
        }
        assert_eq!(got, wanted);
        for meta in &found.records {
            let read = store.record(&meta.trajectory).await.unwrap();
            assert_eq!(read, payload(&meta.trajectory, 5000));
        }
    }
    let batches: Vec<_> = taken.iter().map(|(id, of)| batch(*id, &[*of])).collect();
    assert_eq!(recovered.batches, batches);
}
