//! A log as it lies on disk.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Finish, LengthCap, TokenFault, TokenLog, VersionRange};
use crate::version::Version;

/// A log without an open turn, for a compact encoding such as postcard: about 3 bytes a
/// token and 4 more for a generated one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record<'a> {
    ids: Cow<'a, [u32]>,
    logprobs: Cow<'a, [f32]>,
    /// Observed tokens before it, its length and its version, for each range.
    ranges: Vec<(u32, u32, u64)>,
    turns: u32,
    last_start: Option<u32>,
    finish: Option<Finish>,
}

impl TokenLog {
    /// The log for the disk; of an open turn it holds what is there so far.
    pub fn record(&self) -> Record<'_> {
        let mut end = 0;
        let range = |span: &VersionRange| {
            let gap = span.start - std::mem::replace(&mut end, span.end);
            (gap as u32, span.len() as u32, span.version.0)
        };
        Record {
            ranges: self.spans.iter().map(range).collect(),
            ids: Cow::Borrowed(&self.ids),
            logprobs: Cow::Borrowed(&self.logprobs),
            turns: self.turns,
            last_start: self.last_start.map(|start| start as u32),
            finish: self.finish,
        }
    }

    /// The log of a record. A record that is longer than `cap` is kept whole.
    pub fn from_record(record: Record<'_>, cap: LengthCap) -> Result<Self, TokenFault> {
        let Record { ids, logprobs, ranges, turns, last_start, finish } = record;
        let mut end = 0_usize;
        let spans: Vec<_> = ranges
            .into_iter()
            .map(|(gap, len, version)| {
                let start = end.saturating_add(gap as usize);
                end = start.saturating_add(len as usize);
                VersionRange { start, end, version: Version(version) }
            })
            .collect();
        if end > ids.len() {
            return Err(TokenFault::Damaged("a range of generated tokens lies outside of them"));
        }
        if spans.iter().any(|span| span.len() == 0) {
            return Err(TokenFault::Damaged("a range of generated tokens is empty"));
        }
        if spans.iter().map(VersionRange::len).sum::<usize>() != logprobs.len() {
            return Err(TokenFault::Damaged("not each generated token has a log-probability"));
        }
        let last_start = last_start.map(|start| start as usize);
        if last_start.is_some_and(|start| start > ids.len()) {
            return Err(TokenFault::Damaged("the last turn begins nowhere"));
        }
        Ok(Self {
            cap,
            ids: ids.into_owned(),
            logprobs: logprobs.into_owned(),
            spans,
            turns,
            last_start,
            finish,
            open: None,
        })
    }
}
