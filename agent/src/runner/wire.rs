//! Between the queue's messages and the helper's. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use rollwright_core::fault::Fault;
use rollwright_init::protocol::{Output, Program, Start, StartFailure, StartFailureKind, Stream};
use rollwright_proto::v1::output::Stream as OutputStream;
use rollwright_proto::v1::{ActionOutput, Command, Output as WireOutput, StartAction, command};

use crate::cgroup::{CgroupError, CpuGrant};
use crate::fault;
use crate::session::SessionError;

/// What is remembered with an action inside the helper, to find it again.
pub(super) fn tag(start: &StartAction, cgroup: &str, deadline: Option<SystemTime>) -> Vec<u8> {
    let kept = StartAction { command: None, ..start.clone() };
    let millis = deadline.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let millis = millis.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let mut tag = millis.to_le_bytes().to_vec();
    tag.extend((cgroup.len() as u16).to_le_bytes());
    tag.extend(cgroup.as_bytes());
    kept.encode(&mut tag).map_or_else(|_| Vec::new(), |()| tag)
}

/// What [`tag`] wrote: the start, its cgroup's name, and when its time is over.
pub(super) fn untag(tag: &[u8]) -> Option<(StartAction, String, Option<SystemTime>)> {
    let (millis, rest) = tag.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (name, start) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let millis = u64::from_le_bytes(*millis);
    let deadline = UNIX_EPOCH.checked_add(Duration::from_millis(millis)).filter(|_| millis > 0);
    Some((StartAction::decode(start).ok()?, String::from_utf8(name.to_vec()).ok()?, deadline))
}

/// The helper's key of one try of an action.
pub(super) fn key(action_id: &str, attempt: u32) -> String {
    format!("{action_id}@{attempt}")
}

pub(super) fn message(
    start: &StartAction,
    command: Command,
    key: String,
    uid: u32,
    tag: Vec<u8>,
) -> Start {
    let program = match command.program {
        Some(command::Program::Shell(line)) => Program::Shell(line),
        Some(command::Program::Argv(argv)) => Program::Argv(argv.args),
        None => Program::Argv(Vec::new()),
    };
    Start {
        key,
        attempt: start.attempt,
        tag,
        program,
        env: command.env.into_iter().collect(),
        cwd: command.cwd,
        uid,
        gid: uid,
        output_limit: start.output_limit,
        stdin: !command.stdin.is_empty(),
    }
}

/// A start that failed: the program's fault, or ours. Ours may be tried again.
pub(super) fn not_started(failure: &StartFailure) -> (Fault, bool) {
    let message = failure.message.clone();
    match failure.kind {
        StartFailureKind::NotFound => (fault::action("CommandNotFound", message), false),
        StartFailureKind::PermissionDenied | StartFailureKind::BadExecutable => {
            (fault::action("NotExecutable", message), false)
        }
        StartFailureKind::BadCwd => (fault::action("NoSuchDirectory", message), false),
        StartFailureKind::BadArguments => (fault::user("InvalidCommand", message), false),
        StartFailureKind::NoProcess => (fault::action("NoProcess", message), false),
        StartFailureKind::Cgroup | StartFailureKind::Identity | StartFailureKind::Other => {
            (fault::infrastructure("StartFailed", message), true)
        }
    }
}

pub(super) fn wire_output(action_id: String, output: Output) -> ActionOutput {
    let stream = match output.stream {
        Stream::Stdout => OutputStream::Stdout,
        Stream::Stderr => OutputStream::Stderr,
    };
    ActionOutput {
        action_id,
        offset: output.offset,
        output: Some(WireOutput {
            stream: stream.into(),
            data: output.data.into(),
            dropped_before: output.dropped_before,
        }),
    }
}

/// What of a piece of output was not told yet, `told` bytes having been: a helper that
/// was connected again repeats itself, perhaps in other pieces.
pub(super) fn untold(mut output: Output, told: u64) -> Option<Output> {
    let end = output.offset + output.data.len() as u64;
    if output.offset >= told {
        return Some(output);
    }
    if end <= told {
        return None;
    }
    let cut = usize::try_from(told - output.offset).ok()?;
    output.data.drain(..cut);
    Some(Output { offset: told, dropped_before: 0, ..output })
}

/// The grant of an order of the queue.
pub(super) fn grant(cores: &[u32], units: f64) -> CpuGrant {
    CpuGrant { cores: cores.iter().copied().collect(), units }
}

pub(super) fn cgroup_fault(error: &CgroupError) -> Fault {
    match error {
        CgroupError::BadGrant { .. } | CgroupError::BadCoreList { .. } => {
            fault::user("InvalidGrant", error.to_string())
        }
        other => fault::infrastructure("CgroupFailed", other.to_string()),
    }
}

pub(super) fn not_sent(error: &SessionError) -> Fault {
    match error {
        SessionError::BadRequest(message) => fault::user("InvalidCommand", message.clone()),
        SessionError::Codec(error) => fault::user(
            "InvalidCommand",
            format!("command and environment together: {error}; put long input into a file"),
        ),
        other => gone(other),
    }
}

/// The fault of everything that was in a sandbox whose helper is gone.
pub(super) fn gone(error: &SessionError) -> Fault {
    fault::infrastructure("SandboxLost", format!("the sandbox ended under its actions: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_remembered_is_found_again(id in "[a-z]{1,9}", millis in 0u64..1 << 40, name in "[a-z0-9-]{0,9}") {
            let start = StartAction { action_id: id, cores: vec![1, 3], cpu_units: 2.0, ..Default::default() };
            let at = UNIX_EPOCH + Duration::from_millis(millis);
            let deadline = (millis > 0).then_some(at);
            let got = untag(&tag(&start, &name, deadline));
            prop_assert_eq!(got, Some((start, name, deadline)));
        }

        #[test]
        fn repeated_output_is_told_once(first in 1usize..30, second in 1usize..30, told in 0u64..60) {
            let all: Vec<u8> = (0..60).collect();
            let (mut got, mut offset) = (all[..told as usize].to_vec(), 0);
            for length in [first, second, 60] {
                let end = all.len().min(offset + length);
                let output = Output {
                    key: "a".into(),
                    stream: Stream::Stdout,
                    offset: offset as u64,
                    data: all[offset..end].to_vec(),
                    dropped_before: 0,
                };
                got.extend(untold(output, got.len() as u64).map_or_else(Vec::new, |o| o.data));
                offset = end;
            }
            prop_assert_eq!(got, all);
        }

        #[test]
        fn no_tag_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = untag(&bytes);
        }
    }
}
