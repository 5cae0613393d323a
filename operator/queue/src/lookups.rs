//! The thread that looks up stored results, and what ends the queue with a thread.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::fault::{full, infrastructure};
use crate::mailbox::Budget;
use crate::scheduler::{self, Input, Lookup};
use crate::store::{Store, StoreError};

/// Repeated ids whose results may be looked up at once.
const LOOKUPS: usize = 4096;

/// Ends the queue when the thread that holds it panics: nobody else would notice.
pub(crate) struct LastWords {
    pub(crate) inbox: mpsc::Sender<Input>,
    pub(crate) thread: &'static str,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = StoreError::Panicked { thread: self.thread };
            // After a shutdown nobody needs to know.
            drop(self.inbox.blocking_send(Input::Stored(Err(error))));
        }
    }
}

/// The thread that looks up results of repeated ids.
pub(crate) fn spawn_lookups(
    store: Arc<Store>,
    clock: Clock,
    inbox: mpsc::Sender<Input>,
    budget: Arc<Budget>,
    most: usize,
) -> std::io::Result<std::sync::mpsc::SyncSender<Lookup>> {
    let (lookups_tx, lookups_rx) = std::sync::mpsc::sync_channel::<Lookup>(LOOKUPS);
    std::thread::Builder::new().name("store-reader".to_owned()).spawn(move || {
        let _guard = LastWords { inbox: inbox.clone(), thread: "store-reader" };
        for Lookup { caller, request, to } in lookups_rx {
            let result = if to.mailbox.is_closed() {
                // Nobody wants it any more.
                continue;
            } else if budget.used() > most {
                let message = format!("{most} bytes are held: ask for the result again later");
                Err(full(message))
            } else {
                let found = store.result(&request.action_id, clock.now());
                found.map_err(|error| infrastructure("StoreFailed", error.to_string()))
            };
            let events = result.as_ref().ok().and_then(Option::as_ref).map(|ended| &ended.events);
            let charged = events.map_or(0, |events| scheduler::weight(events));
            budget.add(charged);
            if inbox.blocking_send(Input::Found { caller, request, to, result, charged }).is_err() {
                return;
            }
        }
    })?;
    Ok(lookups_tx)
}
