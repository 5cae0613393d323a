//! One action: its process, its pipes, its output, and what was reported of it.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitStatus};
use rustix::time::{ClockId, clock_gettime};

use crate::output::{Cursor, OutputBuffer};
use crate::prepared::Prepared;
use crate::protocol::{
    End, Ended, FromInit, KnownAction, MAX_OUTPUT_LIMIT, Output, Program, Start, StartFailureKind,
    Stream,
};
use crate::spawn::{self, Failure, Identity};
use crate::subject::{Subject, search_path};

/// Most read from a pipe at once, so that one action does not hold up the others.
const READ_SIZE: usize = 64 * 1024;

/// An action that runs or ran.
pub(crate) struct Action {
    pub(crate) key: String,
    attempt: u32,
    tag: Vec<u8>,
    pub(crate) pid: Option<Pid>,
    /// Reads the child's start time, or why there was no start; ends at exec.
    status: Option<OwnedFd>,
    status_bytes: Vec<u8>,
    pipes: [Option<OwnedFd>; 2],
    output: OutputBuffer,
    /// Monotonic time of the program's start, in nanoseconds.
    started_ns: Option<u64>,
    subject: Subject,
    ended: Option<(End, u64)>,
    report: Report,
}

/// What was reported in this connection.
#[derive(Default)]
struct Report {
    started: bool,
    cursor: Cursor,
    ended: bool,
}

/// Which of an action's descriptors is ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Status,
    Output(Stream),
}

impl Action {
    /// Starts it, by the process made ahead if there is one. A start that fails is an
    /// action that ended.
    pub(crate) fn start(
        start: &Start,
        mut fds: Vec<OwnedFd>,
        null: &OwnedFd,
        ready: Option<Prepared>,
    ) -> Self {
        let limit = start.output_limit.min(MAX_OUTPUT_LIMIT);
        let mut action = Self {
            key: start.key.clone(),
            attempt: start.attempt,
            tag: start.tag.clone(),
            pid: None,
            status: None,
            status_bytes: Vec::new(),
            pipes: [None, None],
            output: OutputBuffer::new(usize::try_from(limit).unwrap_or(usize::MAX)),
            started_ns: None,
            subject: Subject::of(start),
            ended: None,
            report: Report::default(),
        };
        if let Some(ready) = ready {
            let stdin = if start.stdin { fds.first().unwrap_or(null) } else { null };
            // One that cannot take it has died: a new process does it.
            if let Ok(begun) = ready.begin(start, stdin) {
                action.pid = Some(begun.pid);
                action.status = Some(begun.status);
                action.pipes = begun.pipes.map(Some);
                return action;
            }
        }
        if let Err(failure) = action.spawn(start, std::mem::take(&mut fds), null) {
            action.ended = Some((action.subject.not_started(failure), 0));
        }
        action
    }

    fn spawn(
        &mut self,
        start: &Start,
        mut fds: Vec<OwnedFd>,
        null: &OwnedFd,
    ) -> Result<(), Failure> {
        let plan = Plan::of(start)?;
        let stdin = (start.stdin && !fds.is_empty()).then(|| fds.remove(0));
        let cgroups = fds;
        let no_process = |error| (StartFailureKind::NoProcess, error);
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(no_process);
        let (status_rx, status_tx) = pipe()?;
        let (stdout_rx, stdout_tx) = pipe()?;
        let (stderr_rx, stderr_tx) = pipe()?;
        let child = || {
            let stdin = stdin.as_ref().unwrap_or(null);
            let streams = [stdin.as_fd(), stdout_tx.as_fd(), stderr_tx.as_fd()];
            let identity = Identity { uid: start.uid, gid: start.gid, cgroups: &cgroups };
            report_failure(&status_tx, plan.run(&identity, streams, &status_tx))
        };
        self.pid = Some(spawn::fork(child).map_err(no_process)?);
        for fd in [&status_rx, &stdout_rx, &stderr_rx] {
            rustix::io::ioctl_fionbio(fd, true).map_err(no_process)?;
        }
        self.status = Some(status_rx);
        self.pipes = [Some(stdout_rx), Some(stderr_rx)];
        Ok(())
    }

    /// Descriptors to wait for.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (Source, &OwnedFd)> {
        let [stdout, stderr] = &self.pipes;
        [
            (Source::Status, &self.status),
            (Source::Output(Stream::Stdout), stdout),
            (Source::Output(Stream::Stderr), stderr),
        ]
        .into_iter()
        .filter_map(|(source, fd)| Some((source, fd.as_ref()?)))
    }

    /// Reads what is there.
    pub(crate) fn read(&mut self, source: Source, scratch: &mut [u8]) {
        match source {
            Source::Status => self.read_status(scratch),
            Source::Output(stream) => {
                self.read_output(stream, scratch, READ_SIZE);
            }
        }
    }

    fn read_status(&mut self, scratch: &mut [u8]) {
        while let Some(pipe) = &self.status {
            match rustix::io::read(pipe, &mut *scratch) {
                Ok(0) => self.status = None,
                Ok(count) => {
                    self.status_bytes.extend_from_slice(&scratch[..count]);
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => self.status = None,
            }
            let mut bytes = self.status_bytes.iter().copied();
            let time: Vec<u8> = bytes.by_ref().take(8).collect();
            if let Ok(time) = <[u8; 8]>::try_from(time)
                && self.status_bytes.len() == 8
            {
                self.started_ns = Some(u64::from_le_bytes(time));
            }
        }
    }

    /// Reads up to `limit` bytes; closes the pipe at its end.
    fn read_output(&mut self, stream: Stream, scratch: &mut [u8], limit: usize) {
        let slot = &mut self.pipes[stream as usize];
        let mut left = limit;
        while let Some(pipe) = slot.as_ref().filter(|_| left > 0) {
            let want = left.min(scratch.len());
            match rustix::io::read(pipe, &mut scratch[..want]) {
                Ok(0) => *slot = None,
                Ok(count) => {
                    self.output.push(stream, &scratch[..count]);
                    left -= count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => *slot = None,
            }
        }
    }

    /// Its process ended: takes what its pipes hold at this moment. Returns the pipes
    /// that others of its processes still have open.
    pub(crate) fn exited(&mut self, status: WaitStatus, scratch: &mut [u8]) -> Vec<OwnedFd> {
        let now = monotonic_ns();
        self.pid = None;
        self.read_status(scratch);
        for stream in [Stream::Stdout, Stream::Stderr] {
            let held = self.pipes[stream as usize].as_ref().map_or(0, spawn::readable);
            // One read more than is held, to see the end.
            self.read_output(stream, scratch, held);
        }
        let end = match (self.started_ns, self.status_bytes.get(8..).unwrap_or_default()) {
            (None, []) if self.status_bytes.len() == 3 => {
                self.subject.not_started(failure_of(&self.status_bytes))
            }
            (None, failure) if failure.len() == 3 => self.subject.not_started(failure_of(failure)),
            // It died on the way: killed for memory, say. No program has run.
            (None, _) => self.subject.not_started((StartFailureKind::Other, Errno::SRCH)),
            (Some(_), _) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => End::Exited { code },
                (_, signal) => End::Signaled { signal: signal.unwrap_or(0) },
            },
        };
        let exec_ns = self.started_ns.map_or(0, |started| now.saturating_sub(started));
        self.ended = Some((end, exec_ns));
        self.status = None;
        self.pipes.iter_mut().filter_map(Option::take).collect()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Bytes that it keeps.
    pub(crate) fn kept(&self) -> usize {
        self.output.kept() + self.tag.len()
    }

    /// Reports it from the beginning again.
    pub(crate) fn rewind(&mut self) {
        self.report = Report::default();
    }

    pub(crate) fn known(&self) -> KnownAction {
        KnownAction {
            key: self.key.clone(),
            attempt: self.attempt,
            tag: self.tag.clone(),
            ended: self.has_ended(),
        }
    }

    /// The next thing to report. It counts as reported when [`Action::reported`] is
    /// given the cursor that came with it.
    pub(crate) fn next_report(&self) -> Option<(FromInit, Reported)> {
        if self.report.ended {
            return None;
        }
        let complete = self.has_ended();
        if !self.report.started && self.started_ns.is_some() {
            let started = FromInit::Started { key: self.key.clone(), attempt: self.attempt };
            return Some((started, Reported::Started));
        }
        if self.report.started {
            let mut cursor = self.report.cursor.clone();
            if let Some(piece) = self.output.next(&mut cursor, complete) {
                let output = Output {
                    key: self.key.clone(),
                    stream: piece.stream,
                    offset: piece.offset,
                    data: piece.data,
                    dropped_before: piece.dropped_before,
                };
                return Some((FromInit::Output(output), Reported::Output(cursor)));
            }
        }
        let (end, exec_ns) = self.ended.clone()?;
        let ended = Ended {
            key: self.key.clone(),
            attempt: self.attempt,
            end,
            exec_ns,
            output_bytes: self.output.total(),
            dropped_bytes: self.output.dropped(),
        };
        Some((FromInit::Ended(ended), Reported::Ended))
    }

    pub(crate) fn reported(&mut self, what: Reported) {
        match what {
            Reported::Started => self.report.started = true,
            Reported::Output(cursor) => self.report.cursor = cursor,
            Reported::Ended => self.report.ended = true,
        }
    }
}

/// What was sent.
pub(crate) enum Reported {
    Started,
    Output(Cursor),
    Ended,
}

/// Everything that the child needs, made before the fork.
pub(crate) struct Plan {
    paths: Vec<CString>,
    args: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
}

impl Plan {
    pub(crate) fn of(start: &Start) -> Result<Self, Failure> {
        let bad = |_| (StartFailureKind::BadArguments, Errno::INVAL);
        let args: Vec<&str> = match &start.program {
            Program::Shell(command) => vec!["/bin/sh", "-c", command],
            Program::Argv(args) => args.iter().map(String::as_str).collect(),
        };
        let Some(program) = args.first().filter(|program| !program.is_empty()) else {
            return Err((StartFailureKind::NotFound, Errno::NOENT));
        };
        let paths: Vec<String> = if program.contains('/') {
            vec![(*program).to_owned()]
        } else {
            search_path(start)
                .split(':')
                .map(|dir| format!("{}/{program}", if dir.is_empty() { "." } else { dir }))
                .collect()
        };
        let c = |text: &str| CString::new(text).map_err(bad);
        Ok(Self {
            paths: paths.iter().map(|path| c(path)).collect::<Result<_, _>>()?,
            args: args.iter().map(|arg| c(arg)).collect::<Result<_, _>>()?,
            env: start
                .env
                .iter()
                .map(|(name, value)| c(&format!("{name}={value}")))
                .collect::<Result<_, _>>()?,
            cwd: c(&start.cwd)?,
        })
    }

    /// In the child; returns only where the program cannot be run.
    pub(crate) fn run(
        &self,
        identity: &Identity<'_>,
        streams: [std::os::fd::BorrowedFd<'_>; 3],
        status: &OwnedFd,
    ) -> Failure {
        if let Err(failure) = spawn::become_user(identity) {
            return failure;
        }
        if let Err(error) = rustix::process::chdir(&self.cwd) {
            return (StartFailureKind::BadCwd, error);
        }
        if let Err(error) = spawn::set_standard_streams(streams) {
            return (StartFailureKind::Other, error);
        }
        if let Err(error) = rustix::io::write(status, &monotonic_ns().to_le_bytes()) {
            return (StartFailureKind::Other, error);
        }
        spawn::execute(&self.paths, &self.args, &self.env)
    }
}

/// In a child: says why it runs no program; its exit code.
pub(crate) fn report_failure(status: &OwnedFd, (kind, error): Failure) -> i32 {
    let [low, high] = (error.raw_os_error() as u16).to_le_bytes();
    // The parent sees the pipe end in any case.
    let _ = rustix::io::write(status, &[kind as u8, low, high]);
    127
}

/// What the child wrote instead of running the program.
fn failure_of(bytes: &[u8]) -> Failure {
    use StartFailureKind as Kind;
    let kinds = [
        Kind::NotFound,
        Kind::PermissionDenied,
        Kind::BadCwd,
        Kind::BadExecutable,
        Kind::BadArguments,
        Kind::NoProcess,
        Kind::Cgroup,
        Kind::Identity,
    ];
    let kind = bytes.first().and_then(|kind| kinds.get(usize::from(*kind))).copied();
    let errno = match bytes {
        [_, low, high] => i32::from(u16::from_le_bytes([*low, *high])),
        _ => 0,
    };
    (kind.unwrap_or(Kind::Other), Errno::from_raw_os_error(errno))
}

/// Nanoseconds of the monotonic clock.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
