//! A request inside the engine, and the end of it that the handler holds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Engine, Handover, Refusal};
use crate::ledger::{Outcome, RequestRecord, ViolationKind};
use crate::policy::ContextHash;
use crate::script::Cue;
use crate::template;
use crate::tokenizer::{MESSAGE_END, Token, Tokenizer};

/// What is asked of the engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) rid: Option<String>,
    pub(crate) path: &'static str,
    pub(crate) trajectory: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) prompt: Vec<Token>,
    /// 0: the prompt is read, and nothing generated, as by a pooling model.
    pub(crate) max_tokens: usize,
    pub(crate) min_tokens: usize,
    pub(crate) ignore_end: bool,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<Token>,
    /// The sampling seed; 0 without one.
    pub(crate) seed: u64,
    /// As sent.
    pub(crate) priority: i64,
    /// Lower is earlier, whatever the dialect's polarity.
    pub(crate) rank: i64,
    pub(crate) handover: Handover,
}

/// A generated token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Generated {
    pub(crate) token: Token,
    pub(crate) logprob: f64,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The end token or a stop token.
    End(Token),
    /// One of the stop strings, by its place in the request.
    StopString(usize),
    Length,
    Abort,
    /// Its KV could not be handed over.
    Failed,
}

impl Finish {
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::End(_) | Self::StopString(_) => Outcome::Stop,
            Self::Length => Outcome::Length,
            Self::Abort => Outcome::Abort,
            Self::Failed => Outcome::Failed,
        }
    }
}

/// A sequence that waits or runs.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) number: u64,
    pub(super) record: u64,
    pub(super) request: Request,
    /// Prompt and what was generated.
    pub(super) context: Vec<Token>,
    pub(super) hash: ContextHash,
    /// The tokens of a scripted reply, from the start of the reply.
    pub(super) reply: Option<Vec<Token>>,
    /// Where the reply begins in the context.
    pub(super) reply_start: usize,
    /// When its prefill is done.
    pub(super) ready: Instant,
    /// The oldest weights that made its KV; none while it has none.
    pub(super) kv_version: Option<u64>,
    /// The version of which stale KV was reported already.
    pub(super) reported: Option<u64>,
    pub(super) output: Arc<Output>,
    /// The weights that made the KV that came from another instance.
    pub(super) remote: Option<u64>,
    /// Waits for the other instance.
    pub(super) _meeting: Option<AbortOnDropHandle<()>>,
}

/// What was generated so far: no more than the request's limit of tokens.
#[derive(Debug, Default)]
pub(super) struct Output {
    progress: Mutex<Progress>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Progress {
    tokens: Vec<Generated>,
    finish: Option<Finish>,
    cached: Option<usize>,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, token: Generated, finish: Option<Finish>) {
        let mut progress = self.lock();
        progress.tokens.push(token);
        progress.finish = finish;
        drop(progress);
        self.changed.notify_one();
    }

    pub(super) fn finish(&self, finish: Finish) {
        self.lock().finish = Some(finish);
        self.changed.notify_one();
    }

    /// What the prefix cache held at the first admission.
    pub(super) fn admitted(&self, cached: usize) {
        self.lock().cached.get_or_insert(cached);
    }
}

impl Sequence {
    pub(super) fn generated(&self) -> usize {
        self.context.len() - self.request.prompt.len()
    }
}

/// The handler's end of a sequence. Dropping it before its end aborts the sequence, as a
/// closed connection does in real engines.
#[derive(Debug)]
pub(crate) struct Generation {
    engine: Arc<Engine>,
    number: u64,
    output: Arc<Output>,
    seen: usize,
    done: bool,
}

impl Generation {
    /// Waits for something new: tokens since the last call, and the finish at the end.
    pub(crate) async fn next(&mut self) -> (Vec<Generated>, Option<Finish>) {
        loop {
            {
                let progress = self.output.lock();
                if progress.tokens.len() > self.seen || progress.finish.is_some() {
                    let tokens = progress.tokens[self.seen..].to_vec();
                    self.seen = progress.tokens.len();
                    self.done = progress.finish.is_some();
                    return (tokens, progress.finish);
                }
            }
            self.output.changed.notified().await;
        }
    }

    /// Waits for the end.
    pub(crate) async fn all(mut self) -> (Vec<Generated>, Finish, usize) {
        let mut tokens = Vec::new();
        loop {
            let (new, finish) = self.next().await;
            tokens.extend(new);
            if let Some(finish) = finish {
                return (tokens, finish, self.cached());
            }
        }
    }

    /// Prompt tokens found in the prefix cache.
    pub(crate) fn cached(&self) -> usize {
        self.output.lock().cached.unwrap_or(0)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.done {
            self.engine.close(self.number);
        }
    }
}

impl Engine {
    /// Takes a request in. It waits for its turn, also while the engine is paused.
    pub(crate) fn submit(self: &Arc<Self>, request: Request) -> Result<Generation, Refusal> {
        let longest = self.config.capacity.longest();
        if request.prompt.is_empty() {
            return Err(Refusal::bad("the prompt is empty"));
        }
        if request.prompt.len() >= longest {
            return Err(Refusal::bad(format!(
                "This model's maximum context length is {longest} tokens. However, your request \
                 has {} input tokens.",
                request.prompt.len()
            )));
        }
        let mut state = self.lock();
        if state.waiting.len() >= self.config.capacity.waiting {
            return Err(Refusal::full("the waiting queue is full"));
        }
        if state.residence.asleep() {
            let detail = "a request for generation while the engine sleeps".to_owned();
            state.ledger.violate(ViolationKind::RequestWhileAsleep, Some(&request.id), detail);
        }
        let turn = template::parse(&request.prompt);
        let cue = Cue {
            turn: &turn,
            task: request.task.as_deref(),
            trajectory: request.trajectory.as_deref(),
            seed: request.seed,
        };
        let script = self.config.script.as_ref();
        let reply = turn.reply_start.and(script).and_then(|script| script.reply(cue)).map(|text| {
            let mut tokens = Tokenizer.encode(&text);
            tokens.push(MESSAGE_END);
            tokens
        });
        let record = state.ledger.open(RequestRecord {
            id: request.id.clone(),
            rid: request.rid.clone(),
            path: request.path.into(),
            trajectory: request.trajectory.clone(),
            priority: request.priority,
            aborted: false,
            outcome: Outcome::Running,
            prompt_tokens: request.prompt.len(),
            cached_tokens: 0,
            transferred_tokens: 0,
            tokens: 0,
            versions: Vec::new(),
            preemptions: 0,
        });
        let number = state.next;
        state.next += 1;
        state.totals.requests += 1;
        state.totals.prompt_tokens += request.prompt.len() as u64;
        let output = Arc::new(Output::default());
        state.waiting.push(Sequence {
            number,
            record,
            hash: ContextHash::of(&request.prompt),
            context: request.prompt.clone(),
            reply,
            reply_start: turn.reply_start.unwrap_or(0),
            ready: Instant::now(),
            kv_version: None,
            reported: None,
            output: Arc::clone(&output),
            remote: None,
            _meeting: self.meet(number, &request.handover),
            request,
        });
        drop(state);
        self.nudge();
        Ok(Generation { engine: Arc::clone(self), number, output, seen: 0, done: false })
    }

    /// The client is gone.
    fn close(&self, number: u64) {
        let mut state = self.lock();
        if let Some(sequence) = state.take(|sequence| sequence.number == number).pop()
            && let Some(record) = state.ledger.request(sequence.record)
        {
            record.aborted = true;
            record.outcome = Outcome::Closed;
        }
        drop(state);
        self.nudge();
    }
}
