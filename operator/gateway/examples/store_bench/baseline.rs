//! What the store is measured against: the same bytes appended to one file, and the same
//! records in a key-value-separated keyspace of fjall; both synced after every `COMMIT`.

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use fjall::{Database, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

/// Records between two syncs: what the store's writer has at hand with as many callers.
pub(crate) const COMMIT: u64 = 32;

/// The record with its number, so that no two are the same.
pub(crate) fn numbered(record: &[u8], number: u64) -> Vec<u8> {
    let mut record = record.to_vec();
    if let Some(place) = record.last_chunk_mut::<8>() {
        *place = number.to_be_bytes();
    }
    record
}

/// Appends and syncs.
pub(crate) fn plain(dir: &Path, record: &[u8], records: u64) -> Result<Duration, Box<dyn Error>> {
    let path = dir.join("plain");
    let began = Instant::now();
    let mut file = File::create(&path)?;
    for number in 0..records {
        file.write_all(&numbered(record, number))?;
        if (number + 1) % COMMIT == 0 {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    let took = began.elapsed();
    drop(file);
    std::fs::remove_file(path)?;
    Ok(took)
}

/// Writes and opening again.
pub(crate) fn fjall(
    dir: &Path,
    record: &[u8],
    records: u64,
) -> Result<(Duration, Duration), Box<dyn Error>> {
    let path = dir.join("fjall");
    let open = || -> Result<_, fjall::Error> {
        let db = Database::builder(&path)
            .manual_journal_persist(true)
            .max_journaling_size(512 << 20)
            .worker_threads(1)
            .open()?;
        let options = || {
            let blobs = KvSeparationOptions::default().compression(fjall::CompressionType::None);
            KeyspaceCreateOptions::default()
                .manual_journal_persist(true)
                .with_kv_separation(Some(blobs))
        };
        let keyspace = db.keyspace("records", options)?;
        Ok((db, keyspace))
    };
    let began = Instant::now();
    let (db, keyspace) = open()?;
    for first in (0..records).step_by(COMMIT as usize) {
        let mut batch = db.batch();
        for number in first..(first + COMMIT).min(records) {
            batch.insert(&keyspace, number.to_be_bytes(), numbered(record, number));
        }
        batch.durability(Some(PersistMode::SyncData)).commit()?;
    }
    let wrote = began.elapsed();
    drop((db, keyspace));
    let began = Instant::now();
    let (db, keyspace) = open()?;
    let found = keyspace.get((records - 1).to_be_bytes())?;
    let opened = began.elapsed();
    if found.is_none() {
        return Err("fjall lost a record".into());
    }
    drop((db, keyspace));
    std::fs::remove_dir_all(path)?;
    Ok((wrote, opened))
}
