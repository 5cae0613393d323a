//! When the requests that wait have waited for too long.

use std::collections::VecDeque;

use crate::time::Time;
use crate::version::RequestId;

/// Entries that are out of date are tolerated up to so many.
const SLACK: usize = 256;

/// All wait equally long at most, so the first to enter is the first to be due. One
/// that has left the line leaves its entry behind, until it is first or in the way.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    entries: VecDeque<(Time, RequestId)>,
}

impl Deadlines {
    /// `waits` says whether a request has waited without a break since then, and
    /// `waiting` how many do.
    pub(super) fn push(
        &mut self,
        since: Time,
        request: RequestId,
        waiting: usize,
        waits: impl Fn(RequestId, Time) -> bool,
    ) {
        if self.entries.len() > 2 * waiting + SLACK {
            self.entries.retain(|(since, request)| waits(*request, *since));
        }
        self.entries.push_back((since, request));
    }

    /// The one that has waited for longest, and since when. It may be out of date until
    /// the next [`Self::trim`].
    pub(super) fn first(&self) -> Option<(Time, RequestId)> {
        self.entries.front().copied()
    }

    /// Drops what is out of date at the front.
    pub(super) fn trim(&mut self, waits: impl Fn(RequestId, Time) -> bool) {
        while self.entries.front().is_some_and(|(since, request)| !waits(*request, *since)) {
            self.entries.pop_front();
        }
    }
}
