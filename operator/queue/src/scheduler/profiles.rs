//! What is learned of actions, kept over a restart.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rollwright_core::ids::{InvalidId, JobId};
use rollwright_core::profile::{CAPACITY, Kept, KeptLevel, ProfileKey};
use rollwright_core::resources::Units;
use rollwright_core::time::Time;

use super::Scheduler;
use crate::store::{Level, Op, Profile};

/// What is learned is written so long after it was: all of it together, and no more is lost
/// with the process.
const WRITE_AFTER: Duration = Duration::from_secs(2);

/// What the store has of the core's profiles.
#[derive(Debug, Default)]
pub(super) struct Learned {
    stored: HashMap<String, ProfileKey>,
    /// When news are due to be written.
    due: Option<Instant>,
}

impl Learned {
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Scheduler {
    /// Takes up what a queue before this one had learned: the latest last, so that they stay
    /// where there are too many. Nothing depends on it: what cannot be used is passed over.
    pub(super) fn recover_profiles(&mut self, mut records: Vec<(String, Profile)>) {
        records.sort_by_key(|(_, record)| record.at);
        for (key, record) in records {
            match kept(&record) {
                Ok(kept) => {
                    self.core.profiles_mut().restore(&kept);
                    self.learned.stored.insert(key, kept.key);
                }
                Err(error) => {
                    tracing::warn!(job = record.job, %error, "a learned profile is passed over");
                    self.ops.push(Op::Profile { key, record: None });
                }
            }
        }
    }

    /// Writes what was learned, when it is due.
    pub(super) fn keep_profiles(&mut self) {
        if !self.core.profiles_mut().has_changed() {
            return;
        }
        let now = Instant::now();
        if now >= *self.learned.due.get_or_insert(now + WRITE_AFTER) {
            self.write_profiles();
        }
    }

    /// Writes what was learned since the last time, and drops what the core has forgotten.
    pub(super) fn write_profiles(&mut self) {
        self.learned.due = None;
        let at = self.now();
        for kept in self.core.profiles_mut().take_changed() {
            let key = key(&kept.key);
            let record = Some(Box::new(record(&kept, at)));
            self.learned.stored.insert(key.clone(), kept.key);
            self.ops.push(Op::Profile { key, record });
        }
        // Those that were forgotten cannot be learned again without being written again.
        if self.learned.stored.len() > CAPACITY {
            let profiles = self.core.profiles_mut();
            let gone = self.learned.stored.extract_if(|_, key| !profiles.contains(key));
            self.ops.extend(gone.map(|(key, _)| Op::Profile { key, record: None }));
        }
    }
}

/// Its name in the store: no id holds a zero byte.
fn key(of: &ProfileKey) -> String {
    format!("{}\0{}", of.job, of.profile)
}

fn record(kept: &Kept, at: Time) -> Profile {
    let level = |level: &KeptLevel| Level {
        units: level.units.as_f64(),
        weight: level.weight,
        mean: level.mean,
    };
    let (cores_used, cores_used_of) = kept.cores_used.unwrap_or_default();
    Profile {
        job: kept.key.job.as_str().to_owned(),
        name: kept.key.profile.to_string(),
        at: at.as_nanos(),
        levels: kept.levels.iter().map(level).collect(),
        buckets: kept.buckets.iter().map(|(bucket, _)| *bucket).collect(),
        counts: kept.buckets.iter().map(|(_, count)| *count as f32).collect(),
        cores_used,
        cores_used_of,
    }
}

fn kept(record: &Profile) -> Result<Kept, InvalidId> {
    let job = JobId::new(&record.job)?;
    let level = |level: &Level| {
        let units = Units::from_f64(level.units).ok()?;
        Some(KeptLevel { units, weight: level.weight, mean: level.mean })
    };
    let counts = record.counts.iter().map(|count| f64::from(*count));
    Ok(Kept {
        key: ProfileKey { job, profile: record.name.as_str().into() },
        levels: record.levels.iter().filter_map(level).collect(),
        buckets: record.buckets.iter().copied().zip(counts).collect(),
        cores_used: (record.cores_used_of > 0.0)
            .then_some((record.cores_used, record.cores_used_of)),
    })
}
