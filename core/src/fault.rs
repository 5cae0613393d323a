//! Why something did not happen: the same six kinds in every layer.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The family of a fault. An infrastructure fault never becomes an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The request was wrong.
    User,
    /// The program could not be started or failed as a program.
    Action,
    /// A time limit passed.
    Timeout,
    /// A node, Docker, an engine or the network failed.
    Infrastructure,
    /// Somebody cancelled it.
    Cancelled,
    /// It belongs to a policy version that is too old.
    Stale,
}

impl FaultKind {
    /// The word used in metrics and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Action => "action",
            Self::Timeout => "timeout",
            Self::Infrastructure => "infrastructure",
            Self::Cancelled => "cancelled",
            Self::Stale => "stale",
        }
    }
}

/// A fault as it reaches the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Its family.
    pub kind: FaultKind,
    /// A stable `CamelCase` word for programs.
    pub reason: Cow<'static, str>,
    /// One sentence: what was wrong and what would be right.
    pub message: String,
    /// When it is worth trying again.
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A fault without a time to retry.
    pub fn new(kind: FaultKind, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), message: message.into(), retry_after: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.reason, self.kind.as_str(), self.message)
    }
}

impl std::error::Error for Fault {}
