//! The durable buffer when its process is killed, its files are torn, or its disk is full.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

mod store_common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::{BatchId, Version};
use rollwright_gateway::store::{Recovered, Store, StoreConfig, TakenBatch, Weights};
use store_common::{group, payload, record};

const RECORD: usize = 256 << 10;
/// Tells the test binary that it is the process to be killed.
const CHILD: &str = "ROLLWRIGHT_TEST_STORE";

async fn open(dir: &Path) -> (Store, Recovered) {
    Store::open(StoreConfig::new(dir)).await.unwrap()
}

/// Runs only as the child of the tests below: writes until it is killed, and prints the
/// number of each record that was answered.
#[tokio::test]
#[ignore = "the process that other tests kill"]
async fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let (store, recovered) = open(Path::new(&dir)).await;
    store.open_group(group(1), None).await.unwrap();
    let first = recovered.open.first().map_or(0, |group| group.records.len() as u64) + 1000;
    let mut writes = FuturesUnordered::new();
    for number in first.. {
        let meta = record(1, number);
        let (store, bytes) = (store.clone(), payload(&meta.trajectory, RECORD));
        writes.push(async move { store.keep(meta, bytes).await.map(|()| number) });
        if writes.len() == 16 {
            let number = writes.next().await.unwrap().unwrap();
            println!("kept {number}");
            std::io::stdout().flush().unwrap();
        }
    }
}

/// A child that is killed when the test ends, however it does.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Kills a writing process after so many answers; says which records were answered.
fn kill_after(dir: &Path, answers: usize) -> Vec<u64> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(CHILD, dir);
    let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let kept = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("kept ").map(|number| number.parse::<u64>().unwrap()));
    let kept: Vec<u64> = kept.take(answers).collect();
    assert_eq!(kept.len(), answers, "the child ended by itself");
    kept
}

#[tokio::test]
async fn nothing_that_was_answered_is_lost_when_the_process_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut answered = Vec::new();
    // Two crashes on the same files; the second past the border of a file.
    for answers in [37, 300] {
        let path = dir.path().to_owned();
        answered
            .extend(tokio::task::spawn_blocking(move || kill_after(&path, answers)).await.unwrap());
        let (store, recovered) = open(dir.path()).await;
        let found = &recovered.open[0].records;
        for number in &answered {
            assert!(found.contains(&record(1, *number)), "record {number} is lost");
        }
        // What was not answered is there whole, or not at all; and nothing twice.
        let mut ids: Vec<_> = found.iter().map(|meta| meta.trajectory.clone()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), found.len());
        for id in &ids {
            assert_eq!(store.record(id).await.unwrap(), payload(id, RECORD), "{id}");
        }
        store.close().await;
    }
}

fn last_segment(dir: &Path) -> PathBuf {
    let entries = std::fs::read_dir(dir.join("segments")).unwrap();
    entries.map(|entry| entry.unwrap().path()).max().unwrap()
}

#[tokio::test]
async fn a_torn_tail_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    store.open_group(group(1), None).await.unwrap();
    let meta = record(1, 0);
    let bytes = payload(&meta.trajectory, RECORD);
    store.keep(meta.clone(), bytes.clone()).await.unwrap();
    store.close().await;
    let path = last_segment(dir.path());
    let whole = std::fs::metadata(&path).unwrap().len();
    // Half of a record that the index never heard of.
    let mut segment = std::fs::File::options().append(true).open(&path).unwrap();
    segment.write_all(&bytes[..RECORD / 2]).unwrap();
    let (store, recovered) = open(dir.path()).await;
    assert_eq!(recovered.open[0].records, std::slice::from_ref(&meta));
    assert_eq!(store.record(&meta.trajectory).await.unwrap(), bytes);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
}

#[tokio::test]
async fn a_file_that_lost_its_end_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await;
    store.open_group(group(1), None).await.unwrap();
    let meta = record(1, 0);
    store.keep(meta.clone(), payload(&meta.trajectory, RECORD)).await.unwrap();
    store.close().await;
    let path = last_segment(dir.path());
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let refused = async || match Store::open(StoreConfig::new(dir.path())).await {
        Ok(_) => panic!("a record is gone and nobody says so"),
        Err(error) => error.to_string(),
    };
    let text = refused().await;
    assert!(text.contains("payload `g1/0`: it lies past the end"), "{text}");
    std::fs::remove_file(&path).unwrap();
    let text = refused().await;
    assert!(text.contains("payload `g1/0`: its file is missing"), "{text}");
}

/// A small disk of memory.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(mebibytes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path())
            .status();
        assert!(mounted.unwrap().success(), "mounting needs root: run the tests by `make test`");
        Self(dir)
    }

    fn grow(&self, mebibytes: u32) {
        let size = format!("remount,size={mebibytes}m");
        let grown = Command::new("mount").args(["-o", &size]).arg(self.0.path()).status();
        assert!(grown.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A store that is still open keeps the disk busy: it goes when that is closed.
        let gone = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
        assert!(gone.unwrap().success());
    }
}

/// Keeps records of group 1 until one is refused.
async fn fill(store: &Store, numbers: std::ops::Range<u64>) -> (Vec<u64>, Option<Fault>) {
    let mut kept = Vec::new();
    for number in numbers {
        let meta = record(1, number);
        let bytes = payload(&meta.trajectory, RECORD);
        match store.keep(meta, bytes).await {
            Ok(()) => kept.push(number),
            Err(error) => return (kept, Some(error.into())),
        }
    }
    (kept, None)
}

#[tokio::test]
async fn a_full_disk_refuses_and_an_acknowledgement_makes_room() {
    let disk = SmallDisk::mount(32);
    let config = StoreConfig { dir: disk.0.path().join("store"), headroom: 8 << 20 };
    let (store, _) = Store::open(config.clone()).await.unwrap();
    store.open_group(group(1), None).await.unwrap();
    let (kept, refused) = fill(&store, 0..1000).await;
    let refused = refused.expect("32 MiB hold no 250 MiB");
    assert_eq!(refused.kind, FaultKind::Infrastructure);
    assert_eq!(refused.reason, "StoreFull");
    assert!(refused.retry_after.is_some());
    assert!(kept.len() > 40, "{}", kept.len());
    for number in &kept {
        let id = record(1, *number).trajectory;
        assert_eq!(store.record(&id).await.unwrap(), payload(&id, RECORD));
    }
    // Everything that frees disk still works.
    let ids = kept.iter().map(|number| record(1, *number).trajectory).collect();
    store.settle(group(1).id, ids).await.unwrap();
    let batch = TakenBatch { id: BatchId(1), version: Version(7), groups: vec![group(1).id] };
    store.take(batch).await.unwrap();
    store.close().await;
    let (store, recovered) = Store::open(config.clone()).await.unwrap();
    assert_eq!(recovered.settled[0].records.len(), kept.len());
    store.acknowledge(BatchId(1)).await.unwrap();
    store.open_group(group(1), None).await.unwrap();
    let (kept, refused) = fill(&store, 2000..2020).await;
    assert_eq!((kept.len(), refused), (20, None));
    store.close().await;
}

#[tokio::test]
async fn a_disk_without_headroom_loses_nothing_either() {
    let disk = SmallDisk::mount(24);
    let config = StoreConfig { dir: disk.0.path().join("store"), headroom: 0 };
    let (store, _) = Store::open(config.clone()).await.unwrap();
    store.open_group(group(1), None).await.unwrap();
    let (mut kept, refused) = fill(&store, 0..1000).await;
    assert_eq!(refused.expect("the disk is full").kind, FaultKind::Infrastructure);
    // Fill it to the last page, until the index cannot be written either.
    let mut rest = std::fs::File::create(disk.0.path().join("rest")).unwrap();
    while rest.write_all(&[1; 4096]).is_ok() {}
    let mut refusals = 0;
    for version in 0..100_000 {
        let source = Some("x".repeat(4096));
        if let Err(error) = store.set_weights(Weights { version: Version(version), source }).await {
            let fault: Fault = error.into();
            assert_eq!(fault.kind, FaultKind::Infrastructure, "{fault}");
            refusals += 1;
            if refusals == 3 {
                break;
            }
        }
    }
    assert_eq!(refusals, 3, "the disk was never full");
    store.close().await;
    disk.grow(64);
    let (store, recovered) = Store::open(config).await.unwrap();
    let mut found: Vec<u64> = recovered.open[0]
        .records
        .iter()
        .map(|meta| meta.trajectory.as_str()[3..].parse().unwrap())
        .collect();
    found.sort_unstable();
    kept.sort_unstable();
    assert_eq!(found, kept);
    for number in kept {
        let id = record(1, number).trajectory;
        assert_eq!(store.record(&id).await.unwrap(), payload(&id, RECORD));
    }
    store.close().await;
}
