use std::sync::Arc;

use rollwright_init::protocol::{self, Ended, FromInit, KnownAction, MAX_PACKET, Output};
use tokio_seqpacket::UnixSeqpacket;

use super::{Session, SessionError, Transfers};

/// What the helper reports. The order holds within an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// The action's program runs.
    Started {
        /// Action.
        key: String,
        /// Of the start that ran.
        attempt: u32,
    },
    /// A piece of its output. Pieces are repeated after a reconnection or a
    /// repeated start; `offset` tells which.
    Output(Output),
    /// It ended, or was never started.
    Ended(Ended),
    /// Answer to a list request: some of the actions that the helper knows.
    Known(Vec<KnownAction>),
    /// The helper refused a message.
    Refused {
        /// Action, or empty.
        key: String,
        /// Why, and what would be right.
        reason: String,
    },
}

/// Stream of [`SessionEvent`]s. Not taking them holds nothing up in the sandbox:
/// the helper keeps head and tail of each output itself.
#[derive(Debug)]
pub struct SessionEvents {
    socket: Arc<UnixSeqpacket>,
    transfers: Arc<Transfers>,
    buffer: Vec<u8>,
}

impl SessionEvents {
    pub(super) fn new(session: &Session) -> Self {
        Self {
            socket: session.socket(),
            transfers: Arc::clone(&session.transfers),
            buffer: vec![0; MAX_PACKET],
        }
    }

    /// Ends of transfers go to another session's.
    pub(super) fn adopt_transfers(&mut self, transfers: &Arc<Transfers>) {
        self.transfers = Arc::clone(transfers);
    }

    /// The next event. Cancel-safe.
    ///
    /// # Errors
    /// [`SessionError::Closed`] when the helper is gone or has a newer agent; any
    /// error ends the connection.
    pub async fn next(&mut self) -> Result<SessionEvent, SessionError> {
        loop {
            return Ok(match self.receive().await? {
                FromInit::Started { key, attempt } => SessionEvent::Started { key, attempt },
                FromInit::Output(output) => SessionEvent::Output(output),
                FromInit::Ended(ended) => SessionEvent::Ended(ended),
                FromInit::Known { actions, .. } => SessionEvent::Known(actions),
                FromInit::Refused { key, reason } => SessionEvent::Refused { key, reason },
                FromInit::FileDone { transfer, result } => {
                    self.transfers.done(transfer, result);
                    continue;
                }
                other @ FromInit::Hello { .. } => {
                    return Err(SessionError::unexpected(&other, "an event"));
                }
            });
        }
    }

    pub(super) async fn receive(&mut self) -> Result<FromInit, SessionError> {
        let received = match self.socket.recv(&mut self.buffer).await {
            Ok(info) => info.bytes_read(),
            // The peer may have died with our packets unread.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error.into()),
        };
        if received == 0 {
            return Err(SessionError::Closed);
        }
        Ok(protocol::decode(&self.buffer[..received])?)
    }
}

impl Drop for SessionEvents {
    fn drop(&mut self) {
        // Nobody would deliver the ends of transfers any more.
        self.transfers.abandon();
    }
}

impl SessionError {
    pub(super) fn unexpected(found: &FromInit, wanted: &'static str) -> Self {
        let found = match found {
            FromInit::Hello { .. } => "hello",
            FromInit::Known { .. } => "a list of actions",
            FromInit::Started { .. } => "a start",
            FromInit::Output(_) => "output",
            FromInit::Ended(_) => "an end",
            FromInit::FileDone { .. } => "the end of a transfer",
            FromInit::Refused { .. } => "a refusal",
        };
        Self::Unexpected { found: found.to_owned(), wanted }
    }
}
