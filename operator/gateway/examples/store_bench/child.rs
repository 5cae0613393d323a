//! The process that is killed: writes as a gateway does, and prints what was answered.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream;
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::{BatchId, Version};
use rollwright_gateway::store::{GroupMeta, RecordMeta, Store, StoreConfig, TakenBatch};

use crate::Outcome;
use crate::baseline::{COMMIT, numbered};

/// Records of a group.
pub(crate) const GROUP: u64 = 8;
/// Every so many-th group is taken and acknowledged.
const TAKEN: u64 = 10;

/// What is written.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) records: u64,
    pub(crate) record: &'a [u8],
}

/// Writes everything, prints how long that took, and goes on writing until it is killed.
pub(crate) async fn write(dir: &Path, plan: Plan<'_>) -> Outcome<()> {
    let (store, _) = Store::open(StoreConfig::new(dir)).await?;
    let began = Instant::now();
    for group in 0..plan.records / GROUP {
        store.open_group(meta(group)?, None).await?;
        if group % 64 == 63 {
            keep(&store, plan, (group - 63) * GROUP..(group + 1) * GROUP).await?;
        }
    }
    let rest = plan.records / GROUP / 64 * 64 * GROUP;
    keep(&store, plan, rest..plan.records).await?;
    let took = began.elapsed();
    let mut batch = 0;
    for group in (0..plan.records / GROUP).filter(|group| group % TAKEN == 0) {
        let id = meta(group)?.id;
        let kept = (group * GROUP..(group + 1) * GROUP).map(trajectory).collect::<Outcome<_>>()?;
        store.settle(id.clone(), kept).await?;
        batch += 1;
        let taken = TakenBatch { id: BatchId(batch), version: Version(1), groups: vec![id] };
        store.take(taken).await?;
        store.acknowledge(BatchId(batch)).await?;
        writeln!(std::io::stdout(), "acknowledged {group}")?;
    }
    writeln!(std::io::stdout(), "took {}", took.as_secs_f64())?;
    let mut group = plan.records / GROUP;
    loop {
        store.open_group(meta(group)?, None).await?;
        store.keep(record(group * GROUP)?, plan.record.to_vec().into()).await?;
        group += 1;
    }
}

/// Keeps these records, as many at a time as the baselines write between two syncs.
async fn keep(store: &Store, plan: Plan<'_>, numbers: std::ops::Range<u64>) -> Outcome<()> {
    let writes = stream::iter(numbers).map(|number| async move {
        let bytes = numbered(plan.record, number).into();
        store.keep(record(number)?, bytes).await?;
        Outcome::Ok(number)
    });
    let mut writes = std::pin::pin!(writes.buffer_unordered(COMMIT as usize));
    let mut out = std::io::stdout();
    while let Some(number) = writes.next().await {
        writeln!(out, "kept {}", number?)?;
    }
    Ok(())
}

fn trajectory(number: u64) -> Outcome<TrajectoryId> {
    Ok(TrajectoryId::new(&number.to_string())?)
}

fn meta(group: u64) -> Outcome<GroupMeta> {
    Ok(GroupMeta {
        id: GroupId::new(&group.to_string())?,
        task: Task::new("bench")?,
        needed: 8,
        start: 8,
        numbers: 8,
        version: Version(1),
        evaluation: false,
        tokens: true,
    })
}

fn record(number: u64) -> Outcome<RecordMeta> {
    Ok(RecordMeta {
        trajectory: trajectory(number)?,
        group: GroupId::new(&(number / GROUP).to_string())?,
        reward: 1.0,
        opened_at: Version(1),
        took: Duration::from_mins(1),
        start: Some(Version(1)),
        oldest: Some(Version(1)),
        turns: 5,
        prompt_tokens: 4_000,
        generated_tokens: 8_000,
    })
}
