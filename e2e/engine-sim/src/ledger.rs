//! What tests ask afterwards: requests, calls, violations. Everything is bounded.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

/// Entries kept of each list.
const KEPT: usize = 1000;
/// Characters kept of an id or a path.
const TEXT: usize = 512;
/// Versions kept of a request.
const VERSIONS: usize = 16;

/// A rule that a caller broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ViolationKind {
    /// Weights were to be updated while requests ran and nothing had paused them.
    UpdateWhileRunning,
    /// Weights were to be updated while they were not in the device's memory.
    UpdateWhileAsleep,
    /// Resumed what was not paused.
    ResumeWithoutPause,
    /// Resumed or generated in the middle of a transfer of weights.
    ResumeDuringUpdate,
    /// A token came out of KV that older weights had made.
    StaleKv,
    /// A step of a transfer came out of order.
    TransferOutOfOrder,
    /// Memory was to be released while requests ran.
    SleepWhileRunning,
    /// A request came in while the engine slept.
    RequestWhileAsleep,
    /// A token was generated after the weights were discarded and not reloaded.
    DiscardedWeights,
    /// The cache was to be flushed while requests needed it.
    FlushWhileRunning,
    /// The KV of another prompt was handed over.
    WrongKv,
}

/// One break of a rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Violation {
    /// Which rule.
    pub kind: ViolationKind,
    /// What happened.
    pub detail: String,
    /// The request that it happened to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has not ended.
    Running,
    /// At the end of its text.
    Stop,
    /// At a limit of length.
    Length,
    /// The engine was told to abort it; it returned what it had.
    Abort,
    /// The client closed the connection, which aborted it.
    Closed,
    /// The engine was killed or restarted.
    Lost,
    /// Its KV could not be handed over.
    Failed,
}

/// One request for generation (one for each of `n` choices).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestRecord {
    /// The id in the answer.
    pub id: String,
    /// The id that the client gave (`rid`, `request_id`, `X-Request-Id`).
    pub rid: Option<String>,
    /// The route.
    pub path: String,
    /// The trajectory of its headers.
    pub trajectory: Option<String>,
    /// The priority as it was sent.
    pub priority: i64,
    /// The client closed the connection before the end.
    pub aborted: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of them, found in the prefix cache when it was first admitted.
    pub cached_tokens: usize,
    /// Of them, whose KV came from another instance.
    pub transferred_tokens: usize,
    /// Tokens made.
    pub tokens: usize,
    /// Weight versions that made them, in order, the first 16.
    pub versions: Vec<u64>,
    /// How often it lost its KV for another and was computed again.
    pub preemptions: u32,
}

/// One call of a route that generates nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallRecord {
    /// The method.
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// The status of the answer.
    pub status: u16,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    requests: VecDeque<RequestRecord>,
    first: u64,
    calls: VecDeque<CallRecord>,
    violations: VecDeque<Violation>,
    counts: BTreeMap<ViolationKind, u64>,
}

impl Ledger {
    /// Opens a record; the number finds it again.
    pub(crate) fn open(&mut self, mut record: RequestRecord) -> u64 {
        record.id = short(&record.id);
        record.rid = record.rid.as_deref().map(short);
        record.trajectory = record.trajectory.as_deref().map(short);
        if self.requests.len() == KEPT {
            self.requests.pop_front();
            self.first += 1;
        }
        self.requests.push_back(record);
        self.first + self.requests.len() as u64 - 1
    }

    /// An open record, unless it has been pushed out.
    pub(crate) fn request(&mut self, number: u64) -> Option<&mut RequestRecord> {
        self.requests.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn made(&mut self, number: u64, version: u64) {
        if let Some(record) = self.request(number) {
            record.tokens += 1;
            if record.versions.last() != Some(&version) && record.versions.len() < VERSIONS {
                record.versions.push(version);
            }
        }
    }

    pub(crate) fn call(&mut self, mut call: CallRecord) {
        call.uri = short(&call.uri);
        if self.calls.len() == KEPT {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    pub(crate) fn violate(&mut self, kind: ViolationKind, request: Option<&str>, detail: String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.violations.len() == KEPT {
            self.violations.pop_front();
        }
        self.violations.push_back(Violation { kind, detail, request: request.map(Into::into) });
    }

    pub(crate) fn requests(&self) -> Vec<RequestRecord> {
        self.requests.iter().cloned().collect()
    }

    pub(crate) fn calls(&self) -> Vec<CallRecord> {
        self.calls.iter().cloned().collect()
    }

    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.violations.iter().cloned().collect()
    }

    pub(crate) fn counts(&self) -> &BTreeMap<ViolationKind, u64> {
        &self.counts
    }
}

/// What clients name is cut.
fn short(text: &str) -> String {
    text.chars().take(TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u64) -> RequestRecord {
        RequestRecord {
            id: id.to_string(),
            rid: None,
            path: String::new(),
            trajectory: None,
            priority: 0,
            aborted: false,
            outcome: Outcome::Running,
            prompt_tokens: 0,
            cached_tokens: 0,
            transferred_tokens: 0,
            tokens: 0,
            versions: Vec::new(),
            preemptions: 0,
        }
    }

    #[test]
    fn the_last_thousand_are_kept_and_found() {
        let mut ledger = Ledger::default();
        let numbers: Vec<_> = (0..1500).map(|id| ledger.open(record(id))).collect();
        assert_eq!(ledger.requests().len(), KEPT);
        assert!(ledger.request(numbers[499]).is_none());
        for id in [500, 1499] {
            assert_eq!(ledger.request(numbers[id]).unwrap().id, id.to_string());
        }
    }
}
