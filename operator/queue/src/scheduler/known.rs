//! What is known of an action, or of a call of a reward service, by its id.

use rollwright_core::fault::Fault;
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;
use tokio::sync::oneshot;

use super::handle::Handle;
use super::input::{Input, Peek, State, Subscriber};
use crate::convert;
use crate::fault::{full, infrastructure, stopping, user};
use crate::gpu::{CallState, Looked};
use crate::mailbox::Reader;
use crate::store::Ended;
use rollwright_auth::Caller;

/// What an id stands for, and how far that is.
pub(crate) enum Known {
    Action { state: State, events: Vec<pb::ActionEvent> },
    Call(CallState),
}

impl Handle {
    /// What is known of an id, from memory or the store.
    pub(crate) async fn known(&self, caller: &Caller, id: &ActionId) -> Result<Known, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Peek { caller: caller.clone(), action: id.clone(), reply }).await?;
        if let Peek::Live { state, events } = answer.await.map_err(|_| stopping())? {
            return Ok(Known::Action { state, events });
        }
        match self.gpu.look(caller.clone(), id.clone(), false).await? {
            Looked::Live(call) => Ok(Known::Call(call)),
            Looked::Unknown | Looked::Ends(_) => self.stored(caller, id).await,
        }
    }

    /// The same, once it has ended.
    pub(crate) async fn result(&self, caller: &Caller, id: &ActionId) -> Result<Known, Fault> {
        let mailbox = self.mailbox();
        mailbox.expect(1);
        mailbox.complete();
        let to = Subscriber { mailbox: std::sync::Arc::clone(&mailbox), single: true };
        let (reply, answer) = oneshot::channel();
        let action = id.clone();
        self.send(Input::Attach { caller: caller.clone(), action, to, reply }).await?;
        if !answer.await.map_err(|_| stopping())? {
            if let Looked::Ends(ends) = self.gpu.look(caller.clone(), id.clone(), true).await? {
                let ended = ends.await.map_err(|_| stopping())?;
                // One that was refused is not stored.
                return self
                    .stored(caller, id)
                    .await
                    .map_err(|missing| ended.err().unwrap_or(missing));
            }
            return self.stored(caller, id).await;
        }
        let reader = Reader(mailbox);
        let mut events = Vec::new();
        while let Some(more) = reader.read().await {
            events.extend(more?);
        }
        Ok(Known::Action { state: State::Ended, events })
    }

    async fn stored(&self, caller: &Caller, id: &ActionId) -> Result<Known, Fault> {
        if self.budget.used() > self.max_buffered_bytes {
            let most = self.max_buffered_bytes;
            return Err(full(format!("{most} bytes are held: ask for the result again later")));
        }
        let (store, key, now) = (std::sync::Arc::clone(&self.store), id.clone(), self.clock.now());
        let read = tokio::task::spawn_blocking(move || store.result(key.as_str(), now)).await;
        let found = read
            .map_err(|_| stopping())?
            .map_err(|error| infrastructure("StoreFailed", error.to_string()))?;
        let mine = |ended: &Ended| convert::job(&ended.job).is_ok_and(|job| caller.may_use(&job));
        let ended = found.filter(mine).ok_or_else(|| {
            let message = format!("action `{id}` is not known, or its result is no longer kept");
            user("ActionNotFound", message)
        })?;
        Ok(match ended.call {
            Some(call) => Known::Call((*call).into()),
            None => Known::Action { state: State::Ended, events: ended.events },
        })
    }
}
