//! What the tests of the store share.
#![allow(clippy::unwrap_used)] // only tests use it
#![allow(dead_code)] // each test binary uses a part

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::Version;
use rollwright_gateway::store::{GroupMeta, RecordMeta};

pub(crate) fn group(number: u64) -> GroupMeta {
    GroupMeta {
        id: GroupId::new(&format!("g{number}")).unwrap(),
        task: Task::new("math").unwrap(),
        needed: 2,
        start: 3,
        numbers: 3,
        version: Version(7),
        evaluation: false,
        tokens: true,
    }
}

pub(crate) fn record(group: u64, number: u64) -> RecordMeta {
    RecordMeta {
        trajectory: TrajectoryId::new(&format!("g{group}/{number}")).unwrap(),
        group: GroupId::new(&format!("g{group}")).unwrap(),
        reward: number as f64 / 2.0,
        opened_at: Version(5),
        took: Duration::from_millis(1500),
        start: Some(Version(6)),
        oldest: None,
        turns: 3,
        prompt_tokens: 100,
        generated_tokens: 50,
    }
}

/// Bytes that belong to this trajectory alone.
pub(crate) fn payload(trajectory: &TrajectoryId, length: usize) -> Bytes {
    let mut state = trajectory.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

/// Bytes that the files of a directory really occupy.
pub(crate) fn disk_usage(dir: &Path) -> u64 {
    let mut total = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        total +=
            if metadata.is_dir() { disk_usage(&entry.path()) } else { metadata.blocks() * 512 };
    }
    total
}
