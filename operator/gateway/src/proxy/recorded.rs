//! Recorded turns: the engine is asked for its tokens as well, they go to the trajectory's
//! log, and a turn that breaks off is gone on with elsewhere, token by token.
//!
//! Nothing is retried once the client has seen a byte, unless the turn can be continued
//! from exactly the tokens that are in the log.

mod attempt;
mod stream;
mod whole;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use rollwright_core::fault::Fault;
use rollwright_core::rollout::Ask;
use rollwright_core::tokens::Finish;
use rollwright_crds::engine::EngineType;

use super::Shard;
use super::body::Body;
use super::reply::json;
use crate::dispatch::Slot;
use crate::engine::dialect::Api;
use crate::engine::turn::{Made, Piece, Rejoin, TurnAsk};
use crate::fault::{infrastructure, user};

/// How often one turn may be taken back or fail before its client is told.
const ATTEMPTS: u32 = 32;

/// Why a turn has no (further) reply.
enum Ended {
    Fault(Fault),
    /// The engine refused the request: its own words.
    Engine(StatusCode, Bytes),
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Ended {
    fn into_fault(self) -> Fault {
        match self {
            Self::Fault(fault) => fault,
            Self::Engine(status, body) => {
                let shown: String = String::from_utf8_lossy(&body).chars().take(300).collect();
                let message = format!("the engine that was to go on answered {status}: {shown}");
                infrastructure("EngineError", message)
            }
        }
    }
}

/// A recorded turn on its way.
struct Turn {
    shard: Arc<Shard>,
    ask: TurnAsk,
    headers: HeaderMap,
    made: Made,
    /// The form of the first engine's reply, once another one goes on.
    rejoin: Option<Rejoin>,
    /// The first event, or the whole reply, of the first engine.
    first: Option<Bytes>,
    slot: Option<Slot>,
    attempts: u32,
    /// The client has seen a byte.
    sent: bool,
    /// A reply held calls of tools or reasoning: its text is not all that it said.
    structured: bool,
}

/// Answers the request of a recorded turn.
pub(crate) async fn recorded(
    shard: &Arc<Shard>,
    core_ask: Ask,
    ask: TurnAsk,
    mut headers: HeaderMap,
) -> Result<Response<Body>, Fault> {
    // It is read here, so it must be plain.
    headers.remove(ACCEPT_ENCODING);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let slot = shard.parts().dispatch.place(core_ask).await?;
    if slot.placement().endpoint.kind == EngineType::SGLang && ask.api() != Api::Generate {
        let message = "SGLang does not say which tokens its OpenAI interface reads and makes: send recorded turns to /generate as `input_ids`, or open the group with `\"tokens\": \"none\"`";
        return Err(user("TokensRequired", message));
    }
    let mut made = Made::default();
    if let Some(prompt) = &ask.prompt {
        if let Err(fault) = slot.prompted(prompt.clone()) {
            slot.failed(fault.clone());
            return Err(fault);
        }
        made.prompt.clone_from(prompt);
    }
    let turn = Turn {
        shard: Arc::clone(shard),
        ask,
        headers,
        made,
        rejoin: None,
        first: None,
        slot: Some(slot),
        attempts: 0,
        sent: false,
        structured: false,
    };
    let reply =
        if turn.ask.stream { stream::answer(turn).await } else { whole::answer(turn).await };
    match reply {
        Ok(response) => Ok(response),
        Err(Ended::Fault(fault)) => Err(fault),
        Err(Ended::Engine(status, body)) => Ok(json(status, body)),
    }
}

/// Why an attempt did not bring the turn to its end.
enum Break {
    /// The engine failed.
    Failed(Fault),
    /// The engine failed that was to do the prefill.
    PrefillFailed(Fault),
    /// The engine or the core ended it before its time. `restart`: by the core's wish its
    /// tokens do not count.
    Back { restart: bool },
}

impl Turn {
    /// Takes a piece into the log; it holds what is new afterwards. An infrastructure fault
    /// leaves the turn as it was.
    fn take(&mut self, piece: &mut Piece) -> Result<(), Fault> {
        let Some(slot) = &self.slot else { return Ok(()) };
        if let Some(prompt) = piece.prompt.take() {
            slot.prompted(prompt.clone())?;
            if self.made.prompt.is_empty() {
                self.made.prompt = prompt;
            }
        }
        let nothing = piece.ids.is_empty() && piece.text.is_empty() && !piece.structured;
        if nothing {
            return Ok(());
        }
        let tokens = !piece.ids.is_empty() || !self.made.ids.is_empty();
        if self.made.prompt.is_empty() || !tokens {
            let message = "the engine does not say which tokens it reads and makes: recorded turns need vLLM with `return_token_ids`, SGLang's /generate, or a group that is opened with `\"tokens\": \"none\"`";
            return Err(infrastructure("TokensUnavailable", message));
        }
        self.made.trim(self.ask.api(), piece);
        slot.generated(piece.ids.clone(), piece.logprobs.clone(), piece.said)?;
        self.made.add(piece);
        self.structured |= piece.structured;
        Ok(())
    }

    /// Whether another engine can go on from the tokens, with the text that this one held
    /// back.
    fn exact(&self) -> Option<String> {
        let exact = self.ask.continuable && !self.structured && !self.made.ids.is_empty();
        if exact { self.made.held_back(&self.ask.stops) } else { None }
    }

    /// Whether the end of a reply that was broken off may be half a stop string.
    fn cuts_stop(&self, piece: &Piece) -> bool {
        let mut made = Made::default();
        made.add(piece);
        made.held_back(&self.ask.stops).is_none()
    }

    /// As many tokens as the request allows are there.
    fn spent(&self) -> bool {
        let made = &self.made.ids;
        !made.is_empty() && self.ask.left(made.len()) == Some(0)
    }

    /// Brings the turn to another engine: with its tokens, else from its beginning if the
    /// client has seen nothing. Returns text that the last engine held back.
    async fn resume(&mut self, why: Break) -> Result<String, Ended> {
        self.attempts += 1;
        let restart = matches!(why, Break::Back { restart: true });
        let go_on = if restart { None } else { self.exact() };
        let begun = self.sent || (!restart && !self.made.ids.is_empty());
        let Some(slot) = self.slot.take() else { return Ok(String::new()) };
        if (go_on.is_none() && begun) || self.attempts >= ATTEMPTS {
            let fault = match why {
                Break::Failed(fault) | Break::PrefillFailed(fault) => fault,
                Break::Back { .. } => {
                    let message = "the turn was taken back and cannot be gone on with from its tokens: send the request again";
                    infrastructure("TakenBack", message)
                }
            };
            slot.failed(fault.clone());
            return Err(fault.into());
        }
        let metrics = &self.shard.parts().metrics;
        let held = if let Some(held) = go_on {
            metrics.continued.inc();
            if let (None, Some(first)) = (&self.rejoin, &self.first) {
                self.rejoin = Some(Rejoin::new(self.ask.api(), self.ask.shown, first)?);
            }
            self.made.attempt(&held);
            held
        } else {
            metrics.restarted.inc();
            // The core drops what its log has of it.
            self.made.restart();
            (self.rejoin, self.first, self.structured) = (None, None, false);
            String::new()
        };
        self.slot = Some(match why {
            Break::Failed(fault) => slot.retry(fault, false).await?,
            Break::PrefillFailed(fault) => slot.retry(fault, true).await?,
            Break::Back { .. } => slot.back().await?,
        });
        Ok(held)
    }

    /// The turn has ended: its log is closed before the client hears of it, so that a client
    /// that goes on at once finds it closed.
    fn end(&mut self, last: &Piece, finish: &str) {
        if let Some(slot) = self.slot.take() {
            let mut usage = last.usage;
            usage.prompt_tokens = self.made.prompt.len() as u32;
            usage.output_tokens = self.made.ids.len() as u32;
            slot.done(usage, Some(Finish::parse(finish)));
        }
    }

    /// A fault that no other engine would mend.
    fn refuse(&mut self, fault: Fault) -> Ended {
        if let Some(slot) = self.slot.take() {
            slot.failed(fault.clone());
        }
        fault.into()
    }
}
