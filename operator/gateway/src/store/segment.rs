//! Payloads: appended to files of about 64 MiB, read back by their place. Which of them
//! are alive is the index's business; a file is written by one process only, so there is
//! no torn tail to understand: what the index does not name is not there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::StoreError;

/// A file is closed when it is as long.
const SEGMENT: u64 = 64 << 20;
/// Payloads begin at multiples of this, so that one can be freed without its neighbours.
const PAGE: u64 = 4096;

/// Where a payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
    /// XXH3 of its bytes.
    pub(super) checksum: u64,
}

impl Place {
    fn end(&self) -> u64 {
        (self.offset + u64::from(self.length)).next_multiple_of(PAGE)
    }
}

/// The files, open for reading from any thread.
#[derive(Default)]
pub(super) struct Reader {
    files: RwLock<BTreeMap<u64, Arc<File>>>,
}

impl Reader {
    /// The payload's bytes, checked. Blocks.
    pub(super) fn read(&self, place: Place, key: &str) -> Result<Vec<u8>, StoreError> {
        let file = {
            let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
            files.get(&place.segment).cloned()
        };
        let corrupt = |message: &str| StoreError::Corrupt {
            what: "payload",
            key: key.to_owned(),
            message: message.to_owned(),
        };
        let file = file.ok_or_else(|| corrupt("its file is gone"))?;
        let mut bytes = vec![0; place.length as usize];
        file.read_exact_at(&mut bytes, place.offset)?;
        if xxh3_64(&bytes) != place.checksum {
            return Err(corrupt("its bytes are not those that were written"));
        }
        Ok(bytes)
    }
}

/// The one that writes.
pub(super) struct Segments {
    dir: PathBuf,
    reader: Arc<Reader>,
    /// Bytes in use, by file.
    live: BTreeMap<u64, u64>,
    active: Option<Active>,
    next: u64,
    /// Whether the file system can free part of a file.
    punch: bool,
}

struct Active {
    segment: u64,
    file: Arc<File>,
    end: u64,
    dirty: bool,
}

impl Segments {
    /// Opens the files that `places` lie in, and frees everything else. Reads no payload.
    pub(super) fn open(dir: &Path, places: &[(String, Place)]) -> Result<Self, StoreError> {
        std::fs::create_dir_all(dir)?;
        let mut by_segment: BTreeMap<u64, Vec<(&str, Place)>> = BTreeMap::new();
        for (key, place) in places {
            by_segment.entry(place.segment).or_default().push((key, *place));
        }
        let mut segments = Self {
            dir: dir.to_owned(),
            reader: Arc::default(),
            live: BTreeMap::new(),
            active: None,
            next: 0,
            punch: true,
        };
        for entry in std::fs::read_dir(dir)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".seg"));
            let Some(segment) = number.and_then(|hex| u64::from_str_radix(hex, 16).ok()) else {
                continue;
            };
            segments.next = segments.next.max(segment + 1);
            match by_segment.remove(&segment) {
                Some(places) => segments.adopt(segment, places)?,
                None => std::fs::remove_file(segments.path(segment))?,
            }
        }
        if let Some((key, _)) = by_segment.into_values().flatten().next() {
            let message = "its file is missing".to_owned();
            return Err(StoreError::Corrupt { what: "payload", key: key.to_owned(), message });
        }
        Ok(segments)
    }

    /// Takes a file of an earlier process: frees what lies between the places.
    fn adopt(&mut self, segment: u64, mut places: Vec<(&str, Place)>) -> Result<(), StoreError> {
        let file = File::options().read(true).write(true).open(self.path(segment))?;
        let length = file.metadata()?.len();
        places.sort_by_key(|(_, place)| place.offset);
        let mut end = 0;
        for (key, place) in &places {
            if place.offset + u64::from(place.length) > length {
                let message = format!("it lies past the end of its file ({length} bytes)");
                let key = (*key).to_owned();
                return Err(StoreError::Corrupt { what: "payload", key, message });
            }
            self.free_range(&file, end, place.offset)?;
            end = place.end();
            *self.live.entry(segment).or_default() += place.end() - place.offset;
        }
        if end < length {
            file.set_len(end)?;
        }
        self.files().insert(segment, Arc::new(file));
        Ok(())
    }

    fn files(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, Arc<File>>> {
        self.reader.files.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(format!("{segment:016x}.seg"))
    }

    pub(super) fn reader(&self) -> Arc<Reader> {
        Arc::clone(&self.reader)
    }

    /// Writes the payload behind the last one; it is on disk after [`Self::sync`]. A
    /// failure leaves everything as it was.
    pub(super) fn append(&mut self, payload: &[u8], length: u32) -> Result<Place, StoreError> {
        let active = match self.active.take() {
            Some(active) if active.end < SEGMENT => active,
            full => {
                if let Some(active) = full {
                    self.close(&active)?;
                }
                self.begin()?
            }
        };
        let active = self.active.insert(active);
        let offset = active.end;
        if let Err(error) = active.file.write_all_at(payload, offset) {
            // Half a payload must not keep the last pages of a full disk.
            active.file.set_len(offset)?;
            return Err(error.into());
        }
        let checksum = xxh3_64(payload);
        let place = Place { segment: active.segment, offset, length, checksum };
        active.end = place.end();
        active.dirty = true;
        *self.live.entry(active.segment).or_default() += place.end() - offset;
        Ok(place)
    }

    /// Makes everything that was appended durable. After a failure nothing that was
    /// appended since the last call may be relied on.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        if !active.dirty {
            return Ok(());
        }
        active.dirty = false;
        let synced = active.file.sync_data();
        if synced.is_err() {
            // What the kernel holds of this file is not known any more: go on in another.
            self.active = None;
        }
        Ok(synced?)
    }

    /// Gives the place's disk back.
    pub(super) fn free(&mut self, place: Place) -> Result<(), StoreError> {
        let size = place.end() - place.offset;
        let left = self.live.get_mut(&place.segment).map(|live| {
            *live -= size;
            *live
        });
        let active = self.active.as_ref().is_some_and(|active| active.segment == place.segment);
        if left == Some(0) && !active {
            return self.remove(place.segment);
        }
        let file = self.files().get(&place.segment).cloned();
        match file {
            Some(file) => self.free_range(&file, place.offset, place.end()),
            None => Ok(()),
        }
    }

    fn free_range(&mut self, file: &File, start: u64, end: u64) -> Result<(), StoreError> {
        if start >= end || !self.punch {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(file, flags, start, end - start) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                tracing::info!(
                    "the store's file system cannot free part of a file: disk comes back in steps of {SEGMENT} bytes"
                );
                self.punch = false;
                Ok(())
            }
            done => Ok(done.map_err(io::Error::from)?),
        }
    }

    /// Ends a full file; it goes at once when nothing in it is alive.
    fn close(&mut self, active: &Active) -> Result<(), StoreError> {
        if active.dirty {
            active.file.sync_data()?;
        }
        match self.live.get(&active.segment) {
            Some(0) | None => self.remove(active.segment),
            Some(_) => Ok(()),
        }
    }

    fn remove(&mut self, segment: u64) -> Result<(), StoreError> {
        self.live.remove(&segment);
        self.files().remove(&segment);
        Ok(std::fs::remove_file(self.path(segment))?)
    }

    fn begin(&mut self) -> Result<Active, StoreError> {
        let segment = self.next;
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(self.path(segment))?;
        self.next += 1;
        File::open(&self.dir)?.sync_all()?;
        let file = Arc::new(file);
        self.files().insert(segment, Arc::clone(&file));
        self.live.insert(segment, 0);
        Ok(Active { segment, file, end: 0, dirty: false })
    }
}
