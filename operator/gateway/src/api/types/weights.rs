//! `/rollout/v1/weights`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::field;

/// An update of the weights to begin.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"version": 8, "transfer": "disk", "deadline_seconds": 600}))]
pub struct BeginWeights {
    /// The new version: greater than the current one.
    pub version: u64,
    /// How the weights come to the workers.
    #[serde(default)]
    pub transfer: Transfer,
    /// Without a commit for so long, the update is aborted; the job's own limit where not given.
    #[serde(default, deserialize_with = "field::day")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 86400)]
    pub deadline_seconds: Option<Duration>,
}

/// How weights come to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// The workers load a path that the commit names.
    #[default]
    Disk,
    /// The trainer stores buckets here, the workers pull them.
    Store,
    /// The trainer moves them itself (NCCL), between begin and commit.
    External,
}

/// An update that was begun.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(example = json!({"version": 8, "workers": [{"id": "w0", "url": "http://10.0.0.5:8000"}],
    "deadline_seconds": 600.0}))]
pub struct Begun {
    /// The new version.
    pub version: u64,
    /// The workers that will get it.
    pub workers: Vec<WorkerUrl>,
    /// Time until it is aborted by itself.
    pub deadline_seconds: f64,
}

/// A worker's address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct WorkerUrl {
    /// Its name.
    pub id: String,
    /// Its base URL.
    pub url: String,
}

/// The begun update to bring to the workers.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"version": 8, "path": "/weights/step-8"}))]
pub struct CommitWeights {
    /// The begun version.
    pub version: u64,
    /// Transfer `disk`: a directory or file that the engines can read.
    #[serde(default, deserialize_with = "field::path")]
    #[schema(max_length = 4096)]
    pub path: Option<String>,
}

/// An update that every worker in service holds.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(example = json!({"version": 8, "workers": 4, "push_seconds": 3.1, "pull_seconds": 2.0,
    "exposed_seconds": 1.4}))]
pub struct Committed {
    /// The version that is current now.
    pub version: u64,
    /// How many workers hold it.
    pub workers: u64,
    /// Time from begin until the last bucket was stored.
    pub push_seconds: f64,
    /// Time that the workers took to fetch the weights.
    pub pull_seconds: f64,
    /// Time during which generation stood still.
    pub exposed_seconds: f64,
}

/// The begun update to give up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"version": 8}))]
pub struct AbortWeights {
    /// The begun version.
    pub version: u64,
}

/// A stored bucket of weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"name": "bucket-0", "bytes": 1_073_741_824_u64,
    "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}))]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

/// The version of the weights, and what each worker holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"version": 7, "begun": 8,
    "workers": [{"id": "w0", "version": 7, "state": "ready"}]}))]
pub struct WeightsReport {
    /// The current version.
    pub version: u64,
    /// The version that was begun and neither committed nor aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<u64>,
    /// Every worker.
    pub workers: Vec<WeightsWorker>,
}

/// What a worker holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct WeightsWorker {
    /// Its name.
    pub id: String,
    /// Its version; null where it is not known.
    pub version: Option<u64>,
    /// Whether it serves, updates, or is out of service.
    pub state: String,
}

/// An update that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"version": 8}))]
pub struct UpdateAborted {
    /// The version that was begun.
    pub version: u64,
}
