//! The record of a scored trajectory, as the trainer gets it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::tokens::TokenLog;
use rollwright_core::trajectory::Keep;
use rollwright_core::weights::Source;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Taught;
use crate::store::RecordMeta;

/// A record without tokens, or with them: the fields of
/// [`RecordBody`](crate::api::types::RecordBody).
#[derive(Serialize)]
struct Record<'a> {
    id: &'a str,
    reward: f64,
    metadata: Option<&'a RawValue>,
    turns: u32,
    start_version: u64,
    oldest_version: u64,
    #[serde(flatten)]
    tokens: Tokens<'a>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    teacher_logprobs: &'a Taught,
    finish: &'static str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Tokens<'a> {
    Logged(rollwright_core::tokens::TrainingView<'a>),
    None { token_ids: [u32; 0], logprobs: [f32; 0], loss_mask: [u8; 0], versions: [u8; 0] },
}

/// What the store keeps, and the JSON that a batch sends.
pub(super) fn build(
    keep: &Keep,
    log: Option<&TokenLog>,
    metadata: Option<&[u8]>,
    taught: &Taught,
) -> Result<(RecordMeta, Bytes), Fault> {
    let start = keep.log.start.unwrap_or(keep.opened_at);
    let oldest = keep.log.oldest.unwrap_or(keep.opened_at);
    let metadata: Option<&RawValue> =
        metadata.map(serde_json::from_slice).transpose().map_err(|error| unbuilt(&error))?;
    let none = Tokens::None { token_ids: [], logprobs: [], loss_mask: [], versions: [] };
    let record = Record {
        id: keep.trajectory.as_str(),
        reward: keep.reward,
        metadata,
        turns: keep.log.turns,
        start_version: start.0,
        oldest_version: oldest.0,
        tokens: log.map_or(none, |log| Tokens::Logged(log.training_view())),
        teacher_logprobs: taught,
        finish: log.and_then(TokenLog::finish).map_or("other", |finish| finish.as_str()),
    };
    // About seven digits of an id, twelve of a log-probability, two of the mask.
    let each = 22 + 12 * taught.len();
    let mut json = Vec::with_capacity(512 + log.map_or(0, |log| log.len() * each));
    serde_json::to_writer(&mut json, &record).map_err(|error| unbuilt(&error))?;
    let meta = RecordMeta {
        trajectory: keep.trajectory.clone(),
        group: keep.group.clone(),
        reward: keep.reward,
        opened_at: keep.opened_at,
        took: keep.took,
        start: keep.log.start,
        oldest: keep.log.oldest,
        turns: keep.log.turns,
        prompt_tokens: keep.log.prompt_tokens,
        generated_tokens: keep.log.generated_tokens,
    };
    Ok((meta, json.into()))
}

fn unbuilt(error: &serde_json::Error) -> Fault {
    let message = format!("the record cannot be written as JSON: {error}");
    Fault::new(FaultKind::Infrastructure, "RecordFailed", message)
}

/// Where weights came from, for the disk; `None` where the engines were started with them.
pub(super) fn source_text(source: &Source) -> Option<String> {
    match source {
        Source::Disk(path) => Some(format!("disk:{path}")),
        Source::Store => Some("store".to_owned()),
        Source::External => Some("external".to_owned()),
        Source::Launch => None,
    }
}

/// The other way round.
pub(crate) fn source_from(text: Option<&str>) -> Source {
    match text {
        Some("store") => Source::Store,
        Some(text) => text
            .strip_prefix("disk:")
            .map_or(Source::External, |path| Source::Disk(Arc::from(path))),
        None => Source::Launch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_the_same_after_the_disk() {
        for source in [Source::Store, Source::Disk("/a:b".into()), Source::Launch, Source::External]
        {
            assert_eq!(source_from(source_text(&source).as_deref()), source);
        }
    }
}
