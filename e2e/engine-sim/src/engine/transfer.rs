//! KV that goes from an instance that prefills to one that decodes.
//!
//! vLLM keeps it until the decode instance reads it by the request's id; SGLang's instances
//! meet in a room, and the prefill begins when both are there. The KV itself is simulated: its
//! context's hash, and the weights that made it.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::sequence::{Finish, Sequence};
use super::{Engine, State};
use crate::config::Disaggregation;
use crate::ledger::{Outcome, ViolationKind};
use crate::policy::ContextHash;
use crate::side_channel;

/// What becomes of a request's KV, or where it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Handover {
    /// It is made and used here.
    #[default]
    None,
    /// vLLM: it is kept for another instance.
    Keep,
    /// SGLang: it goes to whoever is in this room.
    Give { room: u64 },
    /// It comes from there.
    Take { from: String, wanted: Wanted },
}

/// What a decode instance asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    /// What was kept of a request.
    Kept { engine: String, request: String },
    /// What comes into a room.
    Room(u64),
}

/// KV of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kv {
    context: ContextHash,
    version: u64,
}

/// The prefill instance's part.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    /// Until when it is kept.
    kept: HashMap<String, (Kv, Instant)>,
    /// Who waits in a room.
    rooms: HashMap<u64, oneshot::Sender<Kv>>,
}

impl State {
    /// The other side is there, or there is none.
    pub(super) fn may_start(&self, sequence: &Sequence) -> bool {
        match &sequence.request.handover {
            Handover::Give { room } => self.transfers.rooms.contains_key(room),
            Handover::Take { .. } => sequence.remote.is_some(),
            Handover::None | Handover::Keep => true,
        }
    }

    /// A sequence is prefilled; false when its KV cannot be handed over.
    pub(super) fn hand_over(
        transfers: &mut Transfers,
        sequence: &Sequence,
        limit: Option<Disaggregation>,
    ) -> bool {
        let Some(version) = sequence.kv_version else { return false };
        let kv = Kv { context: ContextHash::of(&sequence.request.prompt), version };
        match &sequence.request.handover {
            Handover::Keep => {
                let now = Instant::now();
                transfers.kept.retain(|_, (_, until)| *until > now);
                let until = now + limit.map(|limit| limit.timeout).unwrap_or_default();
                transfers.kept.insert(sequence.request.id.clone(), (kv, until));
                true
            }
            Handover::Give { room } => {
                transfers.rooms.remove(room).is_some_and(|decode| decode.send(kv).is_ok())
            }
            Handover::None | Handover::Take { .. } => true,
        }
    }

    /// Ends a sequence that waits for its KV or for whoever takes it.
    fn give_up(&mut self, number: u64, why: &str) {
        let Some(index) = self.waiting.iter().position(|sequence| sequence.number == number) else {
            return;
        };
        let sequence = self.waiting.remove(index);
        if let Some(record) = self.ledger.request(sequence.record) {
            record.outcome = Outcome::Failed;
        }
        eprintln!("engine-sim: request {}: {why}", sequence.request.id);
        sequence.output.finish(Finish::Failed);
    }
}

impl Engine {
    /// This process, as its KV names it.
    fn engine_id(&self, state: &State) -> String {
        format!("{}-{}", self.side.map_or(0, |side| side.port()), state.started)
    }

    /// `kv_transfer_params` of the answer to a request whose KV is kept.
    pub(crate) fn kept_params(&self, request: &str) -> Value {
        let state = self.lock();
        if !state.transfers.kept.contains_key(request) {
            return Value::Null;
        }
        json!({
            "do_remote_prefill": true, "do_remote_decode": false,
            "remote_block_ids": [[1]], "remote_engine_id": self.engine_id(&state),
            "remote_request_id": request, "remote_host": "127.0.0.1",
            "remote_port": self.side.map(|side| side.port()), "tp_size": 1,
        })
    }

    /// Reads what was kept; it is kept no longer.
    pub(crate) fn read_kept(&self, engine: &str, request: &str) -> Result<Kv, String> {
        let mut state = self.lock();
        if self.engine_id(&state) != engine {
            return Err(format!("engine {engine} is not here any more"));
        }
        let kept = state.transfers.kept.remove(request);
        match kept.filter(|(_, until)| *until > Instant::now()) {
            Some((kv, _)) => Ok(kv),
            None => Err(format!("no KV is kept of request {request}")),
        }
    }

    /// A decode instance has come into a room.
    pub(crate) fn enter(&self, room: u64) -> oneshot::Receiver<Kv> {
        let (kv_tx, kv) = oneshot::channel();
        self.lock().transfers.rooms.insert(room, kv_tx);
        self.nudge();
        kv
    }

    /// It has left without anything.
    pub(crate) fn leave(&self, room: u64) {
        self.lock().transfers.rooms.remove(&room);
    }

    /// Waits for the other side of a sequence, within the limit.
    pub(super) fn meet(
        self: &Arc<Self>,
        number: u64,
        handover: &Handover,
    ) -> Option<AbortOnDropHandle<()>> {
        let limit = self.config.disaggregation?;
        let (engine, handover) = (Arc::clone(self), handover.clone());
        let task = match handover {
            Handover::None | Handover::Keep => return None,
            Handover::Give { room } => tokio::spawn(async move {
                sleep(limit.timeout).await;
                engine.lock().give_up(number, &format!("nobody came into room {room}"));
                engine.nudge();
            }),
            Handover::Take { from, wanted } => tokio::spawn(async move {
                let taken = tokio::time::timeout(limit.timeout, side_channel::take(&from, &wanted));
                let taken = taken.await.unwrap_or_else(|_| Err("no KV came in time".into()));
                engine.taken(number, taken, limit.recompute);
            }),
        };
        Some(AbortOnDropHandle::new(task))
    }

    /// KV has come from another instance, or not.
    fn taken(&self, number: u64, taken: Result<Kv, String>, recompute: bool) {
        let mut state = self.lock();
        let state = &mut *state;
        let waiting = state.waiting.iter_mut().find(|sequence| sequence.number == number);
        if let Some(sequence) = waiting {
            match taken {
                Ok(kv) if kv.context == ContextHash::of(&sequence.request.prompt) => {
                    sequence.remote = Some(kv.version);
                }
                Ok(_) => {
                    let id = sequence.request.id.clone();
                    let detail = "the KV that came is another prompt's".to_owned();
                    state.ledger.violate(ViolationKind::WrongKv, Some(&id), detail);
                    state.give_up(number, "the KV of another prompt");
                }
                Err(_) if recompute => sequence.request.handover = Handover::None,
                Err(why) => state.give_up(number, &why),
            }
        }
        self.wake.notify_one();
        self.left.notify_waiters();
    }
}
