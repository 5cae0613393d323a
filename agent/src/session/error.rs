use std::io;
use std::path::PathBuf;

use rollwright_init::protocol::{CodecError, FileFailure};

/// Why talking to a sandbox's helper failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The helper's socket cannot be connected.
    #[error("cannot connect to the helper at {path}: {source}", path = path.display())]
    Connect {
        /// Socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The socket failed.
    #[error("the connection to the helper failed: {0}")]
    Io(#[from] io::Error),
    /// The helper closed the connection: it ended, or a newer agent replaced this one.
    #[error("the helper closed the connection")]
    Closed,
    /// The helper speaks another version.
    #[error("the helper speaks protocol {theirs}, this agent {ours}; make the sandbox anew")]
    Version {
        /// The helper's.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// A message cannot be encoded or decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Something was sent that does not belong there.
    #[error("the helper sent {found} where {wanted} was due")]
    Unexpected {
        /// What came.
        found: String,
        /// What was due.
        wanted: &'static str,
    },
    /// A request that the helper would refuse.
    #[error("{0}")]
    BadRequest(String),
    /// A transfer failed inside the sandbox.
    #[error("{}", .0.message)]
    File(FileFailure),
    /// More transfers at once than allowed.
    #[error("{limit} transfers run in this sandbox already; wait for one to end")]
    TooManyTransfers {
        /// The bound.
        limit: usize,
    },
}
