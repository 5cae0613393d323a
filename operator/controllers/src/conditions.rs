//! Builds `status.conditions`: pure, with the transition time kept while the status stands.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use rollwright_crds::conditions::{Condition, reasons, types};

use crate::error::CallError;

/// Longest message, in characters; the API server takes 32,768.
const LONGEST_MESSAGE: usize = 1024;

/// A condition as a controller sees it now, without its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Wish {
    /// It holds.
    pub fn is_true(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, status: "True", reason, message: message.into() }
    }

    /// It does not hold.
    pub fn is_false(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, status: "False", reason, message: message.into() }
    }

    /// Nobody can tell.
    pub fn unknown(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, status: "Unknown", reason, message: message.into() }
    }

    /// Not ready, since a request to the API server was refused; none where it failed otherwise
    /// and may do next time.
    pub fn rejected(error: &CallError) -> Option<Self> {
        let says = || Self::is_false(types::READY, reasons::API_REFUSED, error.to_string());
        error.is_rejected().then(says)
    }

    /// One of `rollwright_crds::conditions::types`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether it holds.
    pub fn holds(&self) -> bool {
        self.status == "True"
    }

    /// One of `rollwright_crds::conditions::reasons`.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// For people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// The wished conditions in their order, of one each, with the transition times of `old` where
/// the status is the same. Conditions that are not wished are gone.
pub fn merge(
    old: &[Condition],
    wished: Vec<Wish>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut merged: Vec<Condition> = Vec::with_capacity(wished.len());
    for wish in wished {
        if merged.iter().any(|condition| condition.type_ == wish.kind) {
            continue;
        }
        let before = old.iter().find(|condition| condition.type_ == wish.kind);
        let unchanged = before.filter(|condition| condition.status == wish.status);
        merged.push(Condition {
            type_: wish.kind.to_owned(),
            status: wish.status.to_owned(),
            reason: wish.reason.to_owned(),
            message: shortened(wish.message),
            observed_generation: generation,
            last_transition_time: unchanged
                .map_or_else(|| Time(whole_seconds(now)), |c| c.last_transition_time.clone()),
        });
    }
    merged
}

/// One condition made as wished, and the others as they are.
pub fn replace(
    old: &[Condition],
    wish: Wish,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut merged = merge(old, vec![wish], generation, now);
    let others = old.iter().filter(|condition| merged.iter().all(|of| of.type_ != condition.type_));
    let others: Vec<Condition> = others.cloned().collect();
    merged.extend(others);
    merged
}

/// Those of the wished that differ from `old` in status or reason: what is worth an Event.
pub fn changed<'a>(
    old: &'a [Condition],
    wished: &'a [Wish],
) -> impl Iterator<Item = &'a Wish> + 'a {
    wished.iter().filter(|wish| {
        let before = old.iter().find(|condition| condition.type_ == wish.kind);
        before.is_none_or(|before| before.status != wish.status || before.reason != wish.reason)
    })
}

/// The API server keeps whole seconds; with a fraction no read-back would ever be equal.
fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn shortened(message: String) -> String {
    match message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message,
    }
}

#[cfg(test)]
mod tests;
