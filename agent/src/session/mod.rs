//! The agent's side of the connection to a sandbox's helper.
//!
//! ```text
//! let mut connected = Session::connect(&socket).await?;
//! connected.session.start(start, stdin, action.procs_fds()?).await?;
//! loop { match connected.events.next().await? { ... } }
//! ```
//!
//! Every method is cancel-safe: a packet is sent whole or not at all. Nothing is
//! lost by a disconnection: connect again, and the helper reports every action
//! that it knows from the first byte on.

mod error;
mod events;
mod transfer;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rollwright_init::protocol::{
    self, FromInit, KnownAction, MAX_FDS, PROTOCOL_VERSION, Start, ToInit,
};
use tokio_seqpacket::UnixSeqpacket;
use tokio_seqpacket::ancillary::AncillaryMessageWriter;

pub use error::SessionError;
pub use events::{SessionEvent, SessionEvents};
pub use transfer::{FileReader, FileWriter, Target, Transfers};

/// Most bytes of standard input that an action is given.
pub const MAX_STDIN: usize = 1024 * 1024;

/// A connection to one sandbox's helper. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Session {
    path: Arc<Path>,
    /// The connection that stands, the same for all clones.
    socket: Arc<Mutex<Arc<UnixSeqpacket>>>,
    transfers: Arc<Transfers>,
}

/// What [`Session::connect`] gives.
#[derive(Debug)]
pub struct Connected {
    /// For requests.
    pub session: Session,
    /// Actions that the helper knew when it was connected. Each is reported again:
    /// `Started`, its output from offset 0, and `Ended` where it ended.
    pub known: Vec<KnownAction>,
    /// What the helper reports. Requests that wait for an answer (transfers) only
    /// proceed while someone takes events.
    pub events: SessionEvents,
}

impl Session {
    /// Connects and exchanges versions. A connection that another agent has is
    /// closed by it.
    ///
    /// # Errors
    /// [`SessionError::Connect`] when nothing listens (the sandbox is not up or is
    /// gone), [`SessionError::Version`], or a protocol error.
    pub async fn connect(socket: &Path) -> Result<Connected, SessionError> {
        let path = socket;
        let socket = UnixSeqpacket::connect(path)
            .await
            .map_err(|source| SessionError::Connect { path: path.to_path_buf(), source })?;
        let socket = Arc::new(Mutex::new(Arc::new(socket)));
        let session = Self { path: path.into(), socket, transfers: Arc::default() };
        session.send(&ToInit::Hello { version: PROTOCOL_VERSION }, &[]).await?;
        let mut events = SessionEvents::new(&session);
        match events.receive().await? {
            FromInit::Hello { version: PROTOCOL_VERSION } => {}
            FromInit::Hello { version: theirs } => {
                return Err(SessionError::Version { theirs, ours: PROTOCOL_VERSION });
            }
            other => return Err(SessionError::unexpected(&other, "hello")),
        }
        let mut known = Vec::new();
        loop {
            match events.receive().await? {
                FromInit::Known { actions, last } => {
                    known.extend(actions);
                    if last {
                        break;
                    }
                }
                other => return Err(SessionError::unexpected(&other, "the list of actions")),
            }
        }
        Ok(Connected { session, known, events })
    }

    /// Connects again, for all clones: what the helper knew then, and its events. The
    /// events of the broken connection must be dropped, which ends its transfers.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub async fn reconnect(&self) -> Result<(Vec<KnownAction>, SessionEvents), SessionError> {
        let Connected { session, known, mut events } = Self::connect(&self.path).await?;
        events.adopt_transfers(&self.transfers);
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = session.socket();
        Ok((known, events))
    }

    fn socket(&self) -> Arc<UnixSeqpacket> {
        Arc::clone(&self.socket.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for an action to be run in the cgroup whose `cgroup.procs` files are
    /// given; `Started` and `Ended` follow as events. A key that runs or ran is
    /// not run again but reported again. `start.stdin` is set from `stdin`, whose
    /// bytes (at most [`MAX_STDIN`]) are followed by the end of the file; without
    /// it the program reads `/dev/null`.
    ///
    /// # Errors
    /// [`SessionError::Codec`] when command, environment and tag exceed a packet,
    /// [`SessionError::BadRequest`], or the connection's failure.
    pub async fn start(
        &self,
        start: Start,
        stdin: Option<&[u8]>,
        cgroup: &[OwnedFd],
    ) -> Result<(), SessionError> {
        self.start_with(start, stdin, cgroup, ToInit::Start).await
    }

    /// As [`Session::start`], by the process that [`Session::prepare`] made under the
    /// name `slot`; where there is none, by a new one.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub async fn start_in(
        &self,
        slot: &str,
        start: Start,
        stdin: Option<&[u8]>,
        cgroup: &[OwnedFd],
    ) -> Result<(), SessionError> {
        let slot = slot.to_owned();
        self.start_with(start, stdin, cgroup, |start| ToInit::StartIn { slot, start }).await
    }

    /// Has a process made ahead for the next action, in its cgroup: entering one can
    /// wait for the kernel, some ten milliseconds on an idle machine. One is kept.
    ///
    /// # Errors
    /// The connection's failure.
    pub async fn prepare(&self, slot: &str, cgroup: &[OwnedFd]) -> Result<(), SessionError> {
        let fds: Vec<_> = cgroup.iter().map(AsFd::as_fd).collect();
        self.send(&ToInit::Prepare { slot: slot.to_owned() }, &fds).await
    }

    async fn start_with(
        &self,
        mut start: Start,
        stdin: Option<&[u8]>,
        cgroup: &[OwnedFd],
        message: impl FnOnce(Start) -> ToInit,
    ) -> Result<(), SessionError> {
        if start.uid == 0 || start.gid == 0 {
            return Err(SessionError::BadRequest("an action never runs as root".into()));
        }
        start.stdin = stdin.is_some();
        let stdin = stdin.map(transfer::sealed_file).transpose()?;
        let fds: Vec<BorrowedFd<'_>> =
            stdin.iter().chain(cgroup).map(std::os::fd::AsFd::as_fd).collect();
        self.send(&message(start), &fds).await
    }

    /// Sends a signal to the action's process group. What must die for certain is
    /// killed by its cgroup.
    ///
    /// # Errors
    /// The connection's failure.
    pub async fn kill(&self, key: &str, signal: i32) -> Result<(), SessionError> {
        self.send(&ToInit::Kill { key: key.to_owned(), signal }, &[]).await
    }

    /// Tells the helper to forget an action whose end is durable elsewhere.
    ///
    /// # Errors
    /// The connection's failure.
    pub async fn ack(&self, key: &str) -> Result<(), SessionError> {
        self.send(&ToInit::Ack { key: key.to_owned() }, &[]).await
    }

    async fn send(&self, message: &ToInit, fds: &[BorrowedFd<'_>]) -> Result<(), SessionError> {
        let packet = protocol::encode(message)?;
        if fds.is_empty() {
            self.socket().send(&packet).await?;
            return Ok(());
        }
        if fds.len() > MAX_FDS {
            return Err(SessionError::BadRequest(format!(
                "{} file descriptors beside one message, at most {MAX_FDS}",
                fds.len()
            )));
        }
        let mut buffer = [0; 128];
        let mut ancillary = AncillaryMessageWriter::new(&mut buffer);
        ancillary.add_fds(fds).map_err(|error| SessionError::BadRequest(error.to_string()))?;
        let parts = [std::io::IoSlice::new(&packet)];
        self.socket().send_vectored_with_ancillary(&parts, &mut ancillary).await?;
        Ok(())
    }
}
