//! Pause, sleep and aborts: the calls around a weight update.

use super::sequence::Sequence;
use super::{Engine, State};
use crate::ledger::ViolationKind;

/// A pause in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Nothing decodes. What was there has been aborted, preempted or frozen with its KV.
    Frozen,
    /// What arrived before this number runs to its end.
    Wait {
        /// The first number that must wait.
        before: u64,
    },
    /// Frozen in place: what runs needs its KV (SGLang's `in_place`).
    InPlace,
}

/// A call that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into() }
    }

    pub(crate) fn handover() -> Self {
        let message = "The KV cache of the prompt could not be handed over.";
        Self { status: 500, message: message.into() }
    }

    pub(crate) fn full(message: impl Into<String>) -> Self {
        Self { status: 503, message: message.into() }
    }
}

/// What is in the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Residence {
    pub(super) weights: bool,
    pub(super) kv: bool,
    /// vLLM's sleep level 0 stops the scheduler alone.
    pub(super) scheduling: bool,
}

impl Default for Residence {
    fn default() -> Self {
        Self { weights: true, kv: true, scheduling: true }
    }
}

impl Residence {
    /// Whether anything is missing.
    pub(super) fn asleep(self) -> bool {
        !(self.weights && self.kv && self.scheduling)
    }
}

/// What of the engine sleeps or wakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SleepRequest {
    pub(crate) weights: bool,
    pub(crate) kv: bool,
    pub(crate) scheduling: bool,
}

impl Engine {
    /// Freezes everything and returns partial results of it.
    pub(crate) fn pause_abort(&self, clear: bool) {
        let mut state = self.lock();
        state.pause = Some(Pause::Frozen);
        state.abort(|_| true);
        if clear {
            state.cache.clear();
        }
        drop(state);
        self.nudge();
    }

    /// Lets what is there run to its end, then freezes.
    pub(crate) async fn pause_wait(&self, clear: bool) {
        let before = {
            let mut state = self.lock();
            let before = state.next;
            state.pause = Some(Pause::Wait { before });
            before
        };
        self.nudge();
        self.drained(before).await;
        let mut state = self.lock();
        // Unless it was resumed, or paused otherwise, in the meantime.
        if state.pause == Some(Pause::Wait { before }) {
            state.pause = Some(Pause::Frozen);
            if clear {
                state.cache.clear();
            }
        }
    }

    /// Freezes everything as it is. With `clear`, its KV is dropped and computed again on
    /// resume (vLLM's `keep` with the cache cleared, SGLang's `retract`).
    pub(crate) fn pause_keep(&self, clear: bool) {
        let mut state = self.lock();
        state.pause = Some(Pause::Frozen);
        if clear {
            state.preempt_all();
            state.cache.clear();
        }
        drop(state);
        self.nudge();
    }

    /// SGLang's `retract`: back in line without KV of their own; what the prefix cache
    /// holds stays until it is flushed.
    pub(crate) fn pause_retract(&self) {
        let mut state = self.lock();
        state.pause = Some(Pause::Frozen);
        state.preempt_all();
        drop(state);
        self.nudge();
    }

    /// SGLang's `in_place`.
    pub(crate) fn pause_in_place(&self) {
        self.lock().pause = Some(Pause::InPlace);
        self.nudge();
    }

    /// Ends a pause. Without one, nothing happens but a violation.
    pub(crate) fn resume(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.weights.updating() {
            let detail = "resumed before the transfer of weights was finished".to_owned();
            state.ledger.violate(ViolationKind::ResumeDuringUpdate, None, detail.clone());
            return Err(Refusal::bad(detail));
        }
        if state.pause.take().is_none() {
            let detail = "resumed, but nothing had paused it".to_owned();
            state.ledger.violate(ViolationKind::ResumeWithoutPause, None, detail);
        }
        drop(state);
        self.nudge();
        Ok(())
    }

    /// Waits until all that is here now has ended.
    pub(crate) async fn drain(&self) {
        let before = self.lock().next;
        self.drained(before).await;
    }

    pub(crate) fn paused(&self) -> bool {
        self.lock().pause.is_some()
    }

    /// Aborts by the client's id or the answer's; returns how many that were.
    pub(crate) fn abort_ids(&self, ids: &[String], prefix: bool) -> usize {
        let hit = |id: &str| {
            ids.iter().any(|want| if prefix { id.starts_with(want.as_str()) } else { id == want })
        };
        let matches = |sequence: &Sequence| {
            hit(&sequence.request.id) || sequence.request.rid.as_deref().is_some_and(hit)
        };
        let count = self.lock().abort(matches);
        self.nudge();
        count
    }

    pub(crate) fn abort_all(&self) -> usize {
        let count = self.lock().abort(|_| true);
        self.nudge();
        count
    }

    /// Empties the prefix cache; refused while something runs on it.
    pub(crate) fn flush(&self) -> Result<(), Refusal> {
        self.lock().flush()
    }

    /// vLLM's `/sleep`: what runs is aborted first. With `discard`, the weights are lost,
    /// not kept in the host's memory (level 2).
    pub(crate) fn sleep(&self, request: SleepRequest, discard: bool) {
        let mut state = self.lock();
        state.abort(|_| true);
        state.release(request);
        if discard {
            state.weights.discard();
        }
        drop(state);
        self.nudge();
    }

    /// SGLang's `/release_memory_occupation`: asserts that nothing runs.
    pub(crate) fn release(&self, request: SleepRequest) -> Result<(), Refusal> {
        let mut state = self.lock();
        if !state.idle() {
            let detail = "release_memory_occupation while requests run or wait".to_owned();
            state.ledger.violate(ViolationKind::SleepWhileRunning, None, detail.clone());
            return Err(Refusal::bad(detail));
        }
        state.release(request);
        Ok(())
    }

    /// Brings back what is named; with nothing named, everything.
    pub(crate) fn wake_up(&self, request: SleepRequest) {
        let mut state = self.lock();
        state.residence.weights |= request.weights;
        state.residence.kv |= request.kv;
        // The scheduler goes on when all is back.
        state.residence.scheduling |=
            request.scheduling || (state.residence.weights && state.residence.kv);
        drop(state);
        self.nudge();
    }

    pub(crate) fn asleep(&self) -> bool {
        self.lock().residence.asleep()
    }

    /// vLLM's name of the state of sleep.
    pub(crate) fn sleep_state(&self) -> &'static str {
        let state = self.lock();
        match (state.residence.weights, state.weights.discarded()) {
            (true, _) => "awake",
            (false, false) => "weights_offloaded",
            (false, true) => "discard_all",
        }
    }
}

impl State {
    fn preempt_all(&mut self) {
        for sequence in std::mem::take(&mut self.running) {
            self.wait_again(sequence);
        }
    }

    fn release(&mut self, request: SleepRequest) {
        self.residence.weights &= !request.weights;
        self.residence.kv &= !request.kv;
        self.residence.scheduling &= !request.scheduling;
        if request.kv {
            self.cache.clear();
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), Refusal> {
        let waiting = !self.waiting.is_empty() && self.pause.is_none();
        if !self.running.is_empty() || waiting {
            let detail = "the cache was not flushed: requests run on it".to_owned();
            self.ledger.violate(ViolationKind::FlushWhileRunning, None, detail.clone());
            return Err(Refusal::bad(detail));
        }
        self.cache.clear();
        Ok(())
    }
}
