//! `/rollout/v1/workers`.

use std::num::NonZeroU16;

use rollwright_core::ids::{Class, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::field;

/// The whole set of workers that is wished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"workers": [
    {"name": "math-worker-a", "url": "http://10.0.0.7:8000", "class": "h800", "slots": 64},
    {"name": "math-worker-b", "url": "http://10.0.0.8:8000", "class": "h20", "role": "decode",
        "slots": 128, "drain": true}]}))]
pub struct WorkerSet {
    /// Every worker, each under a name of its own; at most 10,000.
    #[serde(deserialize_with = "field::workers")]
    #[schema(max_items = 10_000)]
    pub workers: Vec<WishedWorker>,
}

/// A worker that is wished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "math-worker-a", "url": "http://10.0.0.7:8000", "class": "h800",
    "role": "mixed", "slots": 64, "drain": false}))]
pub struct WishedWorker {
    /// Its name.
    #[serde(deserialize_with = "field::worker", serialize_with = "field::shown")]
    #[schema(value_type = String, max_length = 128, pattern = "^[A-Za-z0-9._/-]+$")]
    pub name: WorkerId,
    /// Where its engine listens: `http://HOST:PORT[/BASE]`, or `unix:/PATH`.
    #[serde(deserialize_with = "field::url")]
    #[schema(max_length = 2048)]
    pub url: String,
    /// Its class of hardware.
    #[serde(deserialize_with = "field::class", serialize_with = "field::shown")]
    #[schema(value_type = String, max_length = 128, pattern = "^[A-Za-z0-9._/-]+$")]
    pub class: Class,
    /// Its part in a generation; `mixed` where not given.
    #[serde(default)]
    pub role: WorkerRole,
    /// Requests that it may have in flight.
    #[serde(deserialize_with = "field::slots")]
    #[schema(minimum = 1, maximum = 65536)]
    pub slots: u32,
    /// It ends what it has in flight and gets nothing more.
    #[serde(default)]
    pub drain: bool,
    /// `SGLang` prefill workers: the port of their bootstrap server; 8998 where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 65535)]
    pub bootstrap_port: Option<NonZeroU16>,
}

/// A worker's part in a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkerRole {
    /// All of it.
    #[default]
    Mixed,
    /// The prefill, for a decode worker.
    Prefill,
    /// The decoding, after a prefill worker.
    Decode,
}

/// Every worker, those included that are left out and not drained yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"workers": [
    {"name": "math-worker-a", "state": "serving", "in_flight": 12, "version": 7},
    {"name": "math-worker-b", "state": "joining", "in_flight": 0, "version": null}]}))]
pub struct WorkerStates {
    /// By name.
    pub workers: Vec<WorkerStatus>,
}

/// How a worker is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct WorkerStatus {
    /// Its name.
    pub name: String,
    /// `joining`: its engine has not answered yet. `serving`. `updating`, `pulling`,
    /// `suspended`: an update of the weights. `reserved`: for an evaluation. `draining`,
    /// `drained`: it gets nothing more, and may be deleted when drained. `unhealthy`,
    /// `circuit_open`, `probing`, `out`: it fails.
    pub state: String,
    /// Requests that it has in flight.
    pub in_flight: u32,
    /// The version of the weights that it holds; null where it is not known.
    pub version: Option<u64>,
}
