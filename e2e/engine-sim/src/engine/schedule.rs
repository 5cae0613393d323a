//! One step of continuous batching: admit, preempt, decode.

use std::time::Duration;

use tokio::time::Instant;

use super::sequence::{Finish, Generated, Sequence};
use super::{Pause, State};
use crate::config::Config;
use crate::kv::Hit;
use crate::ledger::{Outcome, ViolationKind};
use crate::policy::{Sample, logprob};
use crate::tokenizer::MESSAGE_END;

/// When the next step is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// When something comes.
    Idle,
    /// When a prefill ends, or something comes.
    Prefill(Instant),
    /// After the decode step that was made.
    Step(Duration),
}

impl State {
    /// Admits what fits, and decodes one token of each sequence that is prefilled.
    pub(super) fn step(&mut self, config: &Config, now: Instant) -> Next {
        if !self.decodes() {
            return Next::Idle;
        }
        self.admit(config, now);
        self.make_room(config, now);
        let mut batch = 0u32;
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].ready > now {
                index += 1;
                continue;
            }
            batch += 1;
            if let Some(finish) = self.decode(config, index) {
                let sequence = self.running.remove(index);
                self.retire(config, &sequence, finish);
            } else {
                index += 1;
            }
        }
        if batch > 0 {
            return Next::Step(config.latency.step + config.latency.step_per_sequence * batch);
        }
        self.running.iter().map(|sequence| sequence.ready).min().map_or(Next::Idle, Next::Prefill)
    }

    /// Whether the scheduler may decode at all.
    fn decodes(&self) -> bool {
        !self.residence.asleep() && matches!(self.pause, None | Some(Pause::Wait { .. }))
    }

    /// Gives slots and KV to the first in line, as long as the first fits.
    fn admit(&mut self, config: &Config, now: Instant) {
        while self.running.len() < config.capacity.slots {
            let until = match self.pause {
                Some(Pause::Wait { before }) => before,
                _ => u64::MAX,
            };
            let key = |sequence: &Sequence| {
                let rank = if config.priority_scheduling { sequence.request.rank } else { 0 };
                (rank, sequence.number)
            };
            let first = (0..self.waiting.len())
                .filter(|&index| self.waiting[index].number < until)
                .filter(|&index| self.may_start(&self.waiting[index]))
                .min_by_key(|&index| key(&self.waiting[index]));
            let Some(first) = first else { return };
            let need = self.waiting[first].context.len() + 1;
            let capacity = config.capacity.kv_tokens;
            if capacity > 0 && self.used_tokens() + self.running.len() + need > capacity {
                return;
            }
            let sequence = self.waiting.remove(first);
            self.start(config, sequence, now);
        }
    }

    /// Prefills a sequence.
    fn start(&mut self, config: &Config, mut sequence: Sequence, now: Instant) {
        let mut hit = self.cache.lookup(&sequence.context);
        let remote = sequence.remote.take();
        if let Some(version) = remote {
            // All but the last token, which is always computed.
            let tokens = sequence.context.len().saturating_sub(1);
            hit = Hit { tokens, oldest: Some(version) };
        }
        self.totals.cache_queries += sequence.context.len() as u64;
        self.totals.cache_hits += hit.tokens as u64;
        sequence.output.admitted(hit.tokens);
        if let Some(record) = self.ledger.request(sequence.record)
            && record.tokens == 0
        {
            record.cached_tokens = hit.tokens;
            record.transferred_tokens = remote.map_or(0, |_| hit.tokens);
        }
        let version = self.weights.version();
        sequence.kv_version = Some(hit.oldest.map_or(version, |oldest| oldest.min(version)));
        let mut prefill = Duration::ZERO;
        // What is left of a prompt whose KV has come is a decode step.
        if config.latency.prefill_rate > 0.0 && remote.is_none() {
            let tokens = (sequence.context.len() - hit.tokens) as f64;
            prefill = Duration::from_secs_f64(tokens / config.latency.prefill_rate);
        }
        self.prefill_free = self.prefill_free.max(now) + prefill;
        sequence.ready = self.prefill_free + config.latency.base;
        self.cache.insert(&sequence.context, version, None);
        self.running.push(sequence);
        self.cache.shrink(self.free_tokens(config));
    }

    /// Takes KV from the last in line until every running sequence can grow by a token.
    fn make_room(&mut self, config: &Config, now: Instant) {
        let capacity = config.capacity.kv_tokens;
        if capacity == 0 {
            return;
        }
        loop {
            let growing = self.running.iter().filter(|sequence| sequence.ready <= now).count();
            if self.used_tokens() + growing <= capacity || self.running.len() < 2 {
                break;
            }
            let key = |sequence: &Sequence| {
                let rank = if config.priority_scheduling { sequence.request.rank } else { 0 };
                (rank, sequence.number)
            };
            let last = (0..self.running.len()).max_by_key(|&index| key(&self.running[index]));
            let Some(last) = last else { break };
            let sequence = self.running.remove(last);
            self.totals.preemptions += 1;
            if let Some(record) = self.ledger.request(sequence.record) {
                record.preemptions += 1;
            }
            self.hold(config, &sequence);
            self.wait_again(sequence);
        }
        self.cache.shrink(self.free_tokens(config));
    }

    /// Back in line without KV: it will be computed again.
    pub(super) fn wait_again(&mut self, mut sequence: Sequence) {
        sequence.kv_version = None;
        self.waiting.push(sequence);
    }

    /// Generates a token of `running[index]`; tells whether that was the last.
    fn decode(&mut self, config: &Config, index: usize) -> Option<Finish> {
        let version = self.weights.version();
        let sequence = &mut self.running[index];
        if let Some(made) = sequence.kv_version
            && made < version
            && sequence.reported != Some(version)
        {
            sequence.reported = Some(version);
            let detail = format!("weights {version} go on from KV that weights {made} made");
            let id = Some(sequence.request.id.as_str());
            self.ledger.violate(ViolationKind::StaleKv, id, detail);
        }
        self.weights.check_generation(&mut self.ledger, &sequence.request.id);
        let request = &sequence.request;
        if request.max_tokens == 0 {
            return Some(Finish::Length);
        }
        let position = sequence.context.len() - sequence.reply_start;
        let begun = &sequence.context[sequence.reply_start..];
        let scripted = sequence
            .reply
            .as_ref()
            .filter(|reply| reply.starts_with(begun))
            .and_then(|reply| reply.get(position).copied());
        let mut sample = match scripted {
            Some(token) => Sample { token, logprob: logprob(sequence.hash, token, version) },
            None => self.policy.next(sequence.hash, request.seed, version),
        };
        let generated = sequence.generated() + 1;
        if sample.token == MESSAGE_END && (request.ignore_end || generated <= request.min_tokens) {
            let token = u32::from(b' ');
            sample = Sample { token, logprob: logprob(sequence.hash, token, version) };
        }
        sequence.hash.push(sample.token);
        sequence.context.push(sample.token);
        self.totals.generated_tokens += 1;
        self.ledger.made(sequence.record, version);
        let mut finish = finish(config, sequence);
        if finish.is_some()
            && !Self::hand_over(&mut self.transfers, sequence, config.disaggregation)
        {
            finish = Some(Finish::Failed);
        }
        let Sample { token, logprob } = sample;
        sequence.output.push(Generated { token, logprob }, finish);
        finish
    }

    /// Ends a sequence; its KV stays in the prefix cache while there is room.
    fn retire(&mut self, config: &Config, sequence: &Sequence, finish: Finish) {
        self.hold(config, sequence);
        if let Some(record) = self.ledger.request(sequence.record) {
            record.outcome = finish.outcome();
        }
        sequence.output.finish(finish);
    }

    /// Takes out the sequences that match, and marks nothing.
    pub(super) fn take(&mut self, matches: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let mut taken: Vec<_> = self.running.extract_if(.., |s| matches(s)).collect();
        taken.extend(self.waiting.extract_if(.., |s| matches(s)));
        taken
    }

    /// Aborts the sequences that match: they return what they have.
    pub(super) fn abort(&mut self, matches: impl Fn(&Sequence) -> bool) -> usize {
        let taken = self.take(matches);
        for sequence in &taken {
            if let Some(record) = self.ledger.request(sequence.record) {
                record.outcome = Outcome::Abort;
            }
            sequence.output.finish(Finish::Abort);
        }
        taken.len()
    }

    fn hold(&mut self, config: &Config, sequence: &Sequence) {
        if let Some(version) = sequence.kv_version {
            self.cache.insert(&sequence.context, version, self.free_tokens(config));
        }
    }

    /// KV tokens beside those of the running sequences; none where there is no limit.
    fn free_tokens(&self, config: &Config) -> Option<usize> {
        let capacity = config.capacity.kv_tokens;
        (capacity > 0).then(|| capacity.saturating_sub(self.used_tokens()))
    }
}

/// Whether the token just made ends the sequence.
fn finish(config: &Config, sequence: &Sequence) -> Option<Finish> {
    let request = &sequence.request;
    let token = *sequence.context.last()?;
    let generated = &sequence.context[request.prompt.len()..];
    if generated.len() >= request.min_tokens {
        if (token == MESSAGE_END && !request.ignore_end) || request.stop_tokens.contains(&token) {
            return Some(Finish::End(token));
        }
        let ends_with = |stop: &String| {
            let stop = stop.as_bytes();
            let tail = generated.len().checked_sub(stop.len()).map(|start| &generated[start..]);
            tail.is_some_and(|tail| tail.iter().zip(stop).all(|(&t, &b)| t == u32::from(b)))
        };
        if let Some(index) = request.stop.iter().position(ends_with) {
            return Some(Finish::StopString(index));
        }
    }
    let longest = config.capacity.longest();
    (generated.len() >= request.max_tokens || sequence.context.len() >= longest)
        .then_some(Finish::Length)
}
