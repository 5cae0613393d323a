//! What the agent and the helper say to each other.
//!
//! Messages are postcard-encoded enums, one in a packet of a `SOCK_SEQPACKET`
//! socket. File descriptors travel beside [`ToInit::Start`] and [`ToInit::File`].
//! After [`ToInit::Hello`] the helper answers with its [`FromInit::Known`] list
//! and then reports every action that it knows again, from the first byte: an
//! agent that reconnects misses nothing.

use serde::{Deserialize, Serialize};

/// Grows with every incompatible change.
pub const PROTOCOL_VERSION: u32 = 1;
/// Largest packet in bytes, either way. A start whose environment, command and
/// tag together are larger is refused by the sender.
pub const MAX_PACKET: usize = 160 * 1024;
/// Largest piece of output in one packet, in bytes.
pub const MAX_PIECE: usize = 64 * 1024;
/// Most file descriptors beside one packet.
pub const MAX_FDS: usize = 16;
/// Largest bound on kept output that the helper takes, in bytes; more is cut to it.
pub const MAX_OUTPUT_LIMIT: u64 = 16 * 1024 * 1024;

/// Agent to helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// First message of a connection.
    Hello {
        /// [`PROTOCOL_VERSION`] of the agent.
        version: u32,
    },
    /// Runs an action, or reports the one of this key again.
    Start(Start),
    /// Makes a process ahead, in the cgroup whose `cgroup.procs` files come beside it:
    /// entering one can take the kernel ten milliseconds. One is kept; a newer replaces it.
    Prepare {
        /// Names it for [`ToInit::StartIn`].
        slot: String,
    },
    /// As [`ToInit::Start`], by the process made ahead under this name where there is
    /// one, which is in its cgroup already; else by a new one, as the descriptors say.
    StartIn {
        /// Name given to [`ToInit::Prepare`].
        slot: String,
        /// The action.
        start: Start,
    },
    /// Sends a signal to the action's process group.
    Kill {
        /// Action.
        key: String,
        /// Signal number.
        signal: i32,
    },
    /// The end of this action is known for good: forget it.
    Ack {
        /// Action.
        key: String,
    },
    /// Asks for the [`FromInit::Known`] list.
    List,
    /// Moves a file or tar. Beside it: the data's pipe, then `cgroup.procs` files.
    File(FileOpen),
}

/// An action to run. File descriptors beside it: first the standard input when
/// `stdin` is set, then the `cgroup.procs` files that the process enters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Idempotency key: one key never runs twice.
    pub key: String,
    /// The queue's count of tries, reported back.
    pub attempt: u32,
    /// Anything the agent wants to find again after a restart, reported back.
    pub tag: Vec<u8>,
    /// What to run.
    pub program: Program,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory; it must exist.
    pub cwd: String,
    /// User, never 0.
    pub uid: u32,
    /// Group, never 0.
    pub gid: u32,
    /// Bytes of output kept of each of head and tail.
    pub output_limit: u64,
    /// The first file descriptor is the standard input; else it is `/dev/null`.
    pub stdin: bool,
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// By `/bin/sh -c`.
    Shell(String),
    /// As it is; the first is searched in the environment's `PATH`.
    Argv(Vec<String>),
}

/// A transfer, done by a process of the given user, so that it can reach only
/// what that user can, whatever links lie in the way.
///
/// Data *into* the sandbox comes in frames: a little-endian `u32` length and so
/// many bytes; length 0 ends it, and an end without that is a cut transfer, of
/// which no file appears. Data *out of* it is raw, and complete when
/// [`FromInit::FileDone`] says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOpen {
    /// Number of the transfer in this connection.
    pub transfer: u64,
    /// True: into the sandbox.
    pub put: bool,
    /// Absolute path: the file, or the directory that a tar is unpacked in or made of.
    pub path: String,
    /// The data is a tar archive.
    pub tar: bool,
    /// Permission bits of a written file.
    pub mode: u32,
    /// User, never 0.
    pub uid: u32,
    /// Group, never 0.
    pub gid: u32,
}

/// Helper to agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// Answer to [`ToInit::Hello`].
    Hello {
        /// [`PROTOCOL_VERSION`] of the helper.
        version: u32,
    },
    /// Some of the actions that the helper knows.
    Known {
        /// Actions.
        actions: Vec<KnownAction>,
        /// No more follow.
        last: bool,
    },
    /// The program runs.
    Started {
        /// Action.
        key: String,
        /// Of the start that ran.
        attempt: u32,
    },
    /// A piece of output, in the order it was read.
    Output(Output),
    /// The action's process ended, or could not be started.
    Ended(Ended),
    /// A transfer ended.
    FileDone {
        /// Number of the transfer.
        transfer: u64,
        /// Bytes of content moved, or why it failed.
        result: Result<u64, FileFailure>,
    },
    /// A message was wrong and had no effect.
    Refused {
        /// The action, or empty.
        key: String,
        /// Why, and what would be right.
        reason: String,
    },
}

/// An action that the helper knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownAction {
    /// Action.
    pub key: String,
    /// Of the start that ran.
    pub attempt: u32,
    /// As it was given.
    pub tag: Vec<u8>,
    /// It ended and was not acknowledged.
    pub ended: bool,
}

/// Where output was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Action.
    pub key: String,
    /// Stream.
    pub stream: Stream,
    /// Offset of its first byte in the kept output of both streams.
    pub offset: u64,
    /// Raw bytes; empty where only a loss is stated.
    pub data: Vec<u8>,
    /// Bytes of this stream that were dropped just before this piece.
    pub dropped_before: u64,
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Action.
    pub key: String,
    /// Of the start that ran.
    pub attempt: u32,
    /// How.
    pub end: End,
    /// Start of the program to its exit, in nanoseconds of the monotonic clock.
    pub exec_ns: u64,
    /// Bytes written to both streams, kept or not.
    pub output_bytes: u64,
    /// Bytes of those that were dropped.
    pub dropped_bytes: u64,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// By itself.
    Exited {
        /// Exit code.
        code: i32,
    },
    /// By a signal.
    Signaled {
        /// Signal number.
        signal: i32,
    },
    /// The program was never started.
    NotStarted(StartFailure),
}

/// Why a program was not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// What failed.
    pub kind: StartFailureKind,
    /// The system's error number, 0 where there is none.
    pub errno: i32,
    /// One sentence with the system's words.
    pub message: String,
}

/// What failed before the program ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StartFailureKind {
    /// No such program, or its interpreter is missing.
    NotFound,
    /// The program may not be executed.
    PermissionDenied,
    /// The working directory does not exist or may not be entered.
    BadCwd,
    /// The program is no executable of this machine.
    BadExecutable,
    /// Arguments and environment are too large, or hold a zero byte.
    BadArguments,
    /// No process could be made: the sandbox's bound on processes or memory.
    NoProcess,
    /// The process could not enter the action's cgroup.
    Cgroup,
    /// The user could not be changed.
    Identity,
    /// Anything else.
    Other,
}

/// Why a transfer failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFailure {
    /// What failed.
    pub kind: FileFailureKind,
    /// One sentence.
    pub message: String,
}

/// Classes of failed transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileFailureKind {
    /// The path does not exist.
    NotFound,
    /// The user may not.
    PermissionDenied,
    /// It is a directory where a file is wanted, or the other way round.
    WrongType,
    /// The file system is full, or a quota.
    NoSpace,
    /// The data is no tar archive, or one that leads out of the directory.
    BadArchive,
    /// The sender ended before its data did.
    Cut,
    /// The sandbox could not make the process for it.
    NoProcess,
    /// Anything else.
    Other,
}

/// A message that cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// It would not fit in one packet.
    #[error("a message of {size} bytes does not fit in a packet of {MAX_PACKET}")]
    TooLarge {
        /// Encoded size, or the part of it that was made.
        size: usize,
    },
    /// Not this protocol.
    #[error("not a message of this protocol: {0}")]
    Malformed(#[from] postcard::Error),
}

/// Encodes one message.
///
/// # Errors
/// [`CodecError::TooLarge`] above [`MAX_PACKET`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let packet = postcard::to_stdvec(message)?;
    if packet.len() > MAX_PACKET {
        return Err(CodecError::TooLarge { size: packet.len() });
    }
    Ok(packet)
}

/// Decodes one message.
///
/// # Errors
/// [`CodecError::Malformed`] for anything that [`encode`] did not write.
pub fn decode<'a, T: Deserialize<'a>>(packet: &'a [u8]) -> Result<T, CodecError> {
    Ok(postcard::from_bytes(packet)?)
}
