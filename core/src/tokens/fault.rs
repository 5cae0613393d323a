//! Why tokens were not taken into a log.

use crate::fault::{Fault, FaultKind};

/// A refusal; the log is as it was before.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TokenFault {
    /// The prompt does not extend what was generated and seen before.
    #[error(
        "token {at} of the prompt is {}, but the trajectory has {expected} there: the history \
         was tokenised anew and differs, so nothing after it could be trained on. Send the \
         history as token ids, or use a chat template that keeps earlier turns as they were",
        shown(*.got)
    )]
    Retokenised {
        /// Index of the first token that differs.
        at: usize,
        /// What the log holds there.
        expected: u32,
        /// What the prompt holds there; `None`: it has ended.
        got: Option<u32>,
    },
    /// A turn needs at least one token to start from.
    #[error("the prompt is empty; a turn needs at least one token to start from")]
    EmptyPrompt,
    /// The tokens do not fit below the cap.
    #[error("{tokens} tokens do not fit: the trajectory may have {cap}, and {fits} more fit")]
    TooLong {
        /// Length that it would have.
        tokens: usize,
        /// The cap; a prompt must leave room for at least one token below it.
        cap: u32,
        /// How many of the tokens offered fit.
        fits: usize,
    },
    /// A turn is generated at this moment.
    #[error("a turn of this trajectory is being generated; end it before the next begins")]
    TurnOpen,
    /// No turn is generated at this moment.
    #[error("no turn of this trajectory is open; begin one with its prompt")]
    NoTurn,
    /// Each generated token has one log-probability.
    #[error("{ids} tokens came with {logprobs} log-probabilities; each token needs one")]
    Uneven {
        /// Token ids given.
        ids: usize,
        /// Log-probabilities given.
        logprobs: usize,
    },
    /// A log-probability is no number.
    #[error("log-probability {index} is {got}; it must be finite")]
    BadLogprob {
        /// Its index among those given.
        index: usize,
        /// What it was.
        got: f32,
    },
    /// A record does not describe a log.
    #[error("the record of a token log is damaged: {0}")]
    Damaged(&'static str),
}

fn shown(id: Option<u32>) -> String {
    id.map_or_else(|| "missing".into(), |id| id.to_string())
}

impl From<&TokenFault> for Fault {
    fn from(fault: &TokenFault) -> Self {
        use TokenFault::{
            BadLogprob, Damaged, EmptyPrompt, NoTurn, Retokenised, TooLong, TurnOpen, Uneven,
        };
        let (kind, reason) = match fault {
            Retokenised { .. } => (FaultKind::User, "Retokenised"),
            EmptyPrompt => (FaultKind::User, "EmptyPrompt"),
            TooLong { .. } => (FaultKind::User, "LengthCap"),
            TurnOpen => (FaultKind::User, "TurnOpen"),
            NoTurn => (FaultKind::User, "NoTurn"),
            Uneven { .. } => (FaultKind::Infrastructure, "UnevenLogprobs"),
            BadLogprob { .. } => (FaultKind::Infrastructure, "BadLogprob"),
            Damaged(_) => (FaultKind::Infrastructure, "DamagedRecord"),
        };
        Self::new(kind, reason, fault.to_string())
    }
}
