//! The token log of one trajectory: exactly what the engine saw and generated.
//!
//! # What a prompt may be
//! A token may be trained on only in the context in which it was generated. So the
//! prompt of a turn must be the whole log, token by token, and then anything: what
//! follows the log was observed, and is masked. Three cases need care.
//!
//! - *The template repeats the end token* that was generated: the repetition follows the
//!   log and counts as observed, because the engine saw it twice.
//! - *The template drops or replaces the end token*, as with `<|endoftext|>` generated
//!   where the template renders `<|im_end|>`: when the turn ended by itself, its last
//!   generated token, and no other, may differ or be missing. It is taken out of the
//!   log: one end token is not trained on, and all that remains is exact.
//! - *The same prompt again*, as by a client that repeats a call whose answer it did not
//!   get: the earlier answer is dropped, and the turn begins anew.
//!
//! Everything else is [`TokenFault::Retokenised`].

mod cap;
mod fault;
mod record;
mod view;

pub use cap::LengthCap;
pub use fault::TokenFault;
pub use record::Record;
pub use view::{TrainingView, VersionRange};

use crate::version::Version;

/// Token ids, log-probabilities and versions of one trajectory. Memory: 4 bytes a token,
/// 8 a generated one, at most the cap's tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLog {
    cap: LengthCap,
    ids: Vec<u32>,
    /// Of the generated tokens, in their order.
    logprobs: Vec<f32>,
    /// Where tokens were generated, in their order; not empty, disjoint.
    spans: Vec<VersionRange>,
    turns: u32,
    /// Where the last turn's generated tokens begin.
    last_start: Option<usize>,
    finish: Option<Finish>,
    open: Option<Undo>,
}

/// What the log was before the open turn.
#[derive(Debug, Clone, PartialEq)]
struct Undo {
    len: usize,
    turns: u32,
    last_start: Option<usize>,
    finish: Option<Finish>,
    end_token: Option<(u32, f32, Version)>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// By itself, with an end token or a stop word.
    Stop,
    /// By itself, in calls of tools.
    ToolCalls,
    /// At a limit of tokens.
    Length,
    /// It was aborted and what it had was kept.
    Abort,
    /// In another way.
    Other,
}

impl Finish {
    /// From an engine's `finish_reason`.
    pub fn parse(reason: &str) -> Self {
        match reason {
            "stop" | "eos_token" | "stop_sequence" => Self::Stop,
            "tool_calls" | "function_call" => Self::ToolCalls,
            "length" => Self::Length,
            "abort" => Self::Abort,
            _ => Self::Other,
        }
    }

    /// The word used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Other => "other",
        }
    }

    /// The last token is the model's own end of turn.
    const fn by_itself(self) -> bool {
        matches!(self, Self::Stop | Self::ToolCalls)
    }
}

impl TokenLog {
    /// An empty log that never grows beyond `cap`.
    pub const fn new(cap: LengthCap) -> Self {
        Self {
            cap,
            ids: Vec::new(),
            logprobs: Vec::new(),
            spans: Vec::new(),
            turns: 0,
            last_start: None,
            finish: None,
            open: None,
        }
    }

    /// Begins a turn: what of `prompt` goes beyond the log was observed. See the
    /// [module](self) for the prompts that are accepted.
    pub fn begin_turn(&mut self, prompt: &[u32]) -> Result<(), TokenFault> {
        if self.open.is_some() {
            return Err(TokenFault::TurnOpen);
        }
        if prompt.is_empty() {
            return Err(TokenFault::EmptyPrompt);
        }
        let cap = self.cap.tokens;
        if prompt.len() >= cap as usize {
            let fits = self.room().saturating_sub(1);
            return Err(TokenFault::TooLong { tokens: prompt.len(), cap, fits });
        }
        let common = self.common_with(prompt);
        let mut undo = self.undo();
        if let Some(&expected) = self.ids.get(common) {
            let got = prompt.get(common).copied();
            if got.is_none() && self.last_start == Some(common) {
                self.truncate(common);
                self.turns -= 1;
                self.last_start = None;
                undo = self.undo();
            } else if common + 1 == self.ids.len() && self.may_drop_end() {
                let end_token = self.pop_generated();
                undo = Undo { end_token, ..self.undo() };
            } else {
                return Err(TokenFault::Retokenised { at: common, expected, got });
            }
        }
        self.ids.extend_from_slice(&prompt[common..]);
        self.last_start = Some(self.ids.len());
        self.turns += 1;
        self.finish = None;
        self.open = Some(undo);
        Ok(())
    }

    /// Adds tokens that the open turn has generated under `version`.
    pub fn append(
        &mut self,
        ids: &[u32],
        logprobs: &[f32],
        version: Version,
    ) -> Result<(), TokenFault> {
        if self.open.is_none() {
            return Err(TokenFault::NoTurn);
        }
        if ids.len() != logprobs.len() {
            return Err(TokenFault::Uneven { ids: ids.len(), logprobs: logprobs.len() });
        }
        if let Some(index) = logprobs.iter().position(|logprob| !logprob.is_finite()) {
            return Err(TokenFault::BadLogprob { index, got: logprobs[index] });
        }
        let fits = self.room();
        if ids.len() > fits {
            let tokens = self.ids.len() + ids.len();
            return Err(TokenFault::TooLong { tokens, cap: self.cap.tokens, fits });
        }
        self.push(ids, logprobs, version);
        Ok(())
    }

    /// Ends the open turn: its tokens stay.
    pub fn end_turn(&mut self, finish: Finish) -> Result<(), TokenFault> {
        self.open.take().ok_or(TokenFault::NoTurn)?;
        self.finish = Some(finish);
        Ok(())
    }

    /// Drops what the open turn has generated; it generates again from its prompt.
    pub fn restart_turn(&mut self) -> Result<(), TokenFault> {
        match (&self.open, self.last_start) {
            (Some(_), Some(start)) => {
                self.truncate(start);
                Ok(())
            }
            _ => Err(TokenFault::NoTurn),
        }
    }

    /// Drops the open turn with its prompt: the log is as it was before the turn began,
    /// but for an earlier answer to the same prompt, which stays dropped.
    pub fn abandon_turn(&mut self) -> Result<(), TokenFault> {
        let undo = self.open.take().ok_or(TokenFault::NoTurn)?;
        self.truncate(undo.len);
        if let Some((id, logprob, version)) = undo.end_token {
            self.push(&[id], &[logprob], version);
        }
        self.turns = undo.turns;
        self.last_start = undo.last_start;
        self.finish = undo.finish;
        Ok(())
    }

    /// All tokens so far: what another worker is sent to go on with the open turn.
    pub fn context(&self) -> &[u32] {
        &self.ids
    }

    /// What the open turn has generated so far.
    pub fn turn_tokens(&self) -> &[u32] {
        match (&self.open, self.last_start) {
            (Some(_), Some(start)) => &self.ids[start..],
            _ => &[],
        }
    }

    /// Whether a turn is open.
    pub const fn in_turn(&self) -> bool {
        self.open.is_some()
    }

    /// Tokens in all.
    pub const fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether nothing was seen or generated yet.
    pub const fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Tokens that were generated.
    pub const fn generated(&self) -> usize {
        self.logprobs.len()
    }

    /// Tokens that still fit below the cap.
    pub const fn room(&self) -> usize {
        (self.cap.tokens as usize).saturating_sub(self.ids.len())
    }

    /// Turns begun and not abandoned.
    pub const fn turns(&self) -> u32 {
        self.turns
    }

    /// How the last turn ended; `None` while one is open and before the first.
    pub const fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Version of the first generated token.
    pub fn start_version(&self) -> Option<Version> {
        self.spans.first().map(|span| span.version)
    }

    /// Oldest version of a generated token.
    pub fn oldest_version(&self) -> Option<Version> {
        self.spans.iter().map(|span| span.version).min()
    }

    /// Newest version of a generated token: no older worker may go on with it.
    pub fn newest_version(&self) -> Option<Version> {
        self.spans.iter().map(|span| span.version).max()
    }

    /// What the length adds to the reward, from 0 to -1; that of an open turn does not count.
    pub fn penalty(&self) -> f64 {
        // An open turn is dropped when the trajectory ends before it.
        self.cap.penalty(self.open.as_ref().map_or(self.ids.len(), |undo| undo.len))
    }

    /// How many tokens the log and the prompt have in common. Mostly it is the whole log,
    /// which one comparison of memory tells.
    fn common_with(&self, prompt: &[u32]) -> usize {
        if prompt.starts_with(&self.ids) {
            return self.ids.len();
        }
        self.ids.iter().zip(prompt).take_while(|(have, got)| have == got).count()
    }

    fn undo(&self) -> Undo {
        Undo {
            len: self.ids.len(),
            turns: self.turns,
            last_start: self.last_start,
            finish: self.finish,
            end_token: None,
        }
    }

    /// The last token is the last turn's, and may be its end token.
    fn may_drop_end(&self) -> bool {
        let generated = self.last_start.is_some_and(|start| start < self.ids.len());
        generated && self.finish.is_some_and(Finish::by_itself)
    }

    fn push(&mut self, ids: &[u32], logprobs: &[f32], version: Version) {
        let start = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.logprobs.extend_from_slice(logprobs);
        let end = self.ids.len();
        match self.spans.last_mut() {
            Some(last) if last.end == start && last.version == version => last.end = end,
            _ if end > start => self.spans.push(VersionRange { start, end, version }),
            _ => {}
        }
    }

    fn pop_generated(&mut self) -> Option<(u32, f32, Version)> {
        let (id, logprob) = (*self.ids.last()?, *self.logprobs.last()?);
        let version = self.spans.last()?.version;
        self.truncate(self.ids.len() - 1);
        Some((id, logprob, version))
    }

    /// Keeps the first `len` tokens.
    fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        while let Some(last) = self.spans.last_mut() {
            let cut = last.end - last.end.min(len.max(last.start));
            self.logprobs.truncate(self.logprobs.len() - cut);
            last.end -= cut;
            if last.end > last.start {
                break;
            }
            self.spans.pop();
        }
    }
}

#[cfg(test)]
mod tests;
