//! The loop: waits for the agent, for output and for children that end.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::action::{Action, Source};
use crate::connection::{self, Connection, Received};
use crate::options::Options;
use crate::prepared::{Prepared, Slot};
use crate::protocol::{
    FileFailure, FileFailureKind, FromInit, MAX_PACKET, PROTOCOL_VERSION, Start, ToInit,
};
use crate::spawn;
use crate::transfer::Transfer;

/// Most ended actions that wait to be acknowledged, and bytes that they keep; the
/// oldest are forgotten beyond.
const MAX_ENDED: usize = 1024;
const MAX_ENDED_BYTES: usize = 64 * 1024 * 1024;
/// Most actions that run at once.
const MAX_RUNNING: usize = 256;
/// Most transfers at once.
const MAX_TRANSFERS: usize = 32;
/// Most pipes of processes that outlived their action, read and thrown away so that
/// they neither block nor break. The oldest is closed beyond.
const MAX_ORPHAN_PIPES: usize = 64;
/// Bytes of tags and keys in one list of actions.
const MAX_LIST_BYTES: usize = 64 * 1024;
/// Refusals and ends of transfers that wait to be sent.
const MAX_REPLIES: usize = 64;

/// Why the helper cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be made.
    #[error("cannot listen on {path}: {source}", path = path.display())]
    Listen {
        /// Socket.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
    /// The working directory cannot be made.
    #[error("cannot make the working directory {path}: {source}", path = path.display())]
    Workdir {
        /// Directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Something else that the helper cannot do without.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// The system's error.
        source: Errno,
    },
}

/// Serves until it is told to end by SIGTERM or SIGINT.
///
/// # Errors
/// Only before it serves, and when waiting itself fails.
pub fn serve(options: &Options) -> Result<(), ServeError> {
    let system = |what| move |source| ServeError::System { what, source };
    if rustix::process::getpid() != Pid::INIT {
        // As process 1 it reaps orphans anyway.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(system("become a reaper"))?;
    }
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(hidden).map_err(system("hide from tracing"))?;
    spawn::keep_inherited_descriptors().map_err(system("keep descriptors from programs"))?;
    if let Some(path) = &options.workdir {
        make_workdir(path, options.uid, options.gid)
            .map_err(|source| ServeError::Workdir { path: path.clone(), source })?;
    }
    let signals = spawn::signal_descriptor().map_err(system("read signals"))?;
    let null = null_device().map_err(system("open /dev/null"))?;
    let listener = connection::listen(&options.socket)
        .map_err(|source| ServeError::Listen { path: options.socket.clone(), source })?;
    let mut server = Server {
        listener,
        signals,
        null,
        connection: None,
        actions: BTreeMap::new(),
        ended: VecDeque::new(),
        transfers: Vec::new(),
        ready: None,
        orphan_pipes: VecDeque::new(),
        replies: VecDeque::new(),
        scratch: vec![0; MAX_PACKET],
    };
    while server.turn().map_err(system("wait"))? {}
    Ok(())
}

fn make_workdir(path: &Path, uid: u32, gid: u32) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    std::os::unix::fs::chown(path, Some(uid), Some(gid))
}

/// `/dev/null`, or in an image without it a pipe that is at its end.
fn null_device() -> Result<OwnedFd, Errno> {
    match rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?.0),
        other => other,
    }
}

struct Server {
    listener: OwnedFd,
    signals: nix::sys::signalfd::SignalFd,
    null: OwnedFd,
    connection: Option<Connection>,
    actions: BTreeMap<String, Action>,
    /// Keys of ended actions, oldest first.
    ended: VecDeque<String>,
    transfers: Vec<Transfer>,
    /// The next action's cgroup, with a process made ahead.
    ready: Option<Slot>,
    orphan_pipes: VecDeque<OwnedFd>,
    replies: VecDeque<FromInit>,
    scratch: Vec<u8>,
}

/// What is ready.
enum Ready {
    Signals,
    Listener,
    Connection,
    Action(String, Source),
    Transfer(usize),
    OrphanPipe(usize),
}

impl Server {
    /// Waits and handles what is ready; false when told to end.
    fn turn(&mut self) -> Result<bool, Errno> {
        let mut go_on = true;
        // Later sources have smaller numbers removed last: handle them in reverse.
        let mut ready = self.wait()?;
        let mut children = false;
        ready.sort_by_key(|ready| match ready {
            Ready::OrphanPipe(index) | Ready::Transfer(index) => std::cmp::Reverse(*index),
            _ => std::cmp::Reverse(usize::MAX),
        });
        for ready in ready {
            match ready {
                Ready::Signals => {
                    children = true;
                    go_on = self.read_signals();
                }
                Ready::Listener => self.accept(),
                Ready::Connection => self.receive_all(),
                Ready::Action(key, source) => {
                    if let Some(action) = self.actions.get_mut(&key) {
                        action.read(source, &mut self.scratch);
                    }
                }
                Ready::Transfer(index) => self.read_transfer(index),
                Ready::OrphanPipe(index) => self.read_orphan_pipe(index),
            }
        }
        // Last, so that what a child wrote before it ended was read.
        if children {
            self.reap();
        }
        self.report();
        Ok(go_on)
    }

    fn wait(&self) -> Result<Vec<Ready>, Errno> {
        let mut sources = Vec::new();
        let mut polls = Vec::new();
        let mut add = |source, fd, flags| {
            sources.push(Some(source));
            polls.push(PollFd::from_borrowed_fd(fd, flags));
        };
        add(Ready::Signals, self.signals.as_fd(), PollFlags::IN);
        add(Ready::Listener, self.listener.as_fd(), PollFlags::IN);
        if let Some(connection) = &self.connection {
            let out = if connection.blocked { PollFlags::OUT } else { PollFlags::empty() };
            add(Ready::Connection, connection.socket.as_fd(), PollFlags::IN | out);
        }
        for (key, action) in &self.actions {
            for (source, fd) in action.sources() {
                add(Ready::Action(key.clone(), source), fd.as_fd(), PollFlags::IN);
            }
        }
        for (index, transfer) in self.transfers.iter().enumerate() {
            add(Ready::Transfer(index), transfer.source().as_fd(), PollFlags::IN);
        }
        for (index, pipe) in self.orphan_pipes.iter().enumerate() {
            add(Ready::OrphanPipe(index), pipe.as_fd(), PollFlags::IN);
        }
        match rustix::event::poll(&mut polls, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let ready = sources
            .iter_mut()
            .zip(&polls)
            .filter(|(_, poll)| !poll.revents().is_empty())
            .filter_map(|(source, _)| source.take())
            .collect();
        Ok(ready)
    }

    fn read_signals(&mut self) -> bool {
        let mut go_on = true;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            go_on &= signal.ssi_signo == Signal::CHILD.as_raw() as u32;
        }
        go_on
    }

    fn accept(&mut self) {
        // A connection that fails here is the agent's to try again.
        if let Ok(Some(connection)) = Connection::accept(&self.listener) {
            self.connection = Some(connection);
            self.replies.clear();
            // Their ends are for the agent that asked.
            self.transfers.clear();
            self.end_ready();
        }
    }

    fn receive_all(&mut self) {
        /// Messages taken before others have their turn.
        const ROUNDS: usize = 16;
        for _ in 0..ROUNDS {
            let Some(connection) = &mut self.connection else { return };
            connection.blocked = false;
            match connection.receive(&mut self.scratch) {
                Received::Message(message, fds) => self.handle(message, fds),
                Received::Malformed(reason) => self.reply_refused(String::new(), reason),
                Received::Nothing => return,
                Received::Closed => {
                    self.connection = None;
                    return;
                }
            }
        }
    }

    fn handle(&mut self, message: ToInit, fds: Vec<OwnedFd>) {
        match message {
            ToInit::Hello { .. } => self.greet(),
            ToInit::List => self.list(),
            ToInit::Start(start) => self.start(None, start, fds),
            ToInit::StartIn { slot, start } => self.start(Some(&slot), start, fds),
            ToInit::Prepare { slot } => {
                self.end_ready();
                // Without a process the action is started in the ordinary way.
                let process = Prepared::make(&fds).ok();
                self.ready = Some(Slot { name: slot, cgroups: fds, process });
            }
            ToInit::Kill { key, signal } => self.kill(key, signal),
            ToInit::Ack { key } => {
                if self.actions.get(&key).is_some_and(Action::has_ended) {
                    self.actions.remove(&key);
                    self.ended.retain(|ended| *ended != key);
                }
            }
            ToInit::File(open) => {
                let started = if open.uid == 0 || open.gid == 0 {
                    Err(refused_transfer("a transfer never runs as root"))
                } else if self.transfers.len() >= MAX_TRANSFERS {
                    Err(refused_transfer("too many transfers run; wait for one to end"))
                } else {
                    Transfer::start(&open, fds)
                };
                match started {
                    Ok(transfer) => self.transfers.push(transfer),
                    Err(failure) => self.reply(FromInit::FileDone {
                        transfer: open.transfer,
                        result: Err(failure),
                    }),
                }
            }
        }
    }

    fn greet(&mut self) {
        self.reply(FromInit::Hello { version: PROTOCOL_VERSION });
        self.list();
        self.actions.values_mut().for_each(Action::rewind);
        if let Some(connection) = &mut self.connection {
            connection.greeted = true;
        }
    }

    fn list(&mut self) {
        let mut list = Vec::new();
        let mut bytes = 0;
        let known: Vec<_> = self.actions.values().map(Action::known).collect();
        for action in known {
            bytes += action.key.len() + action.tag.len() + 16;
            list.push(action);
            if bytes >= MAX_LIST_BYTES {
                bytes = 0;
                self.replies
                    .push_back(FromInit::Known { actions: std::mem::take(&mut list), last: false });
            }
        }
        self.replies.push_back(FromInit::Known { actions: list, last: true });
    }

    fn end_ready(&mut self) {
        if let Some(process) = self.ready.take().and_then(|slot| slot.process) {
            process.end();
        }
    }

    fn start(&mut self, slot: Option<&str>, start: Start, mut fds: Vec<OwnedFd>) {
        if let Some(action) = self.actions.get_mut(&start.key) {
            action.rewind();
            return;
        }
        if start.uid == 0 || start.gid == 0 {
            return self.reply_refused(start.key, "an action never runs as root".into());
        }
        if self.actions.len() - self.ended.len() >= MAX_RUNNING {
            return self.reply_refused(start.key, format!("{MAX_RUNNING} actions run already"));
        }
        let ready = self.ready.take_if(|ready| Some(ready.name.as_str()) == slot);
        let ready = ready.and_then(|ready| {
            // Only standard input comes with a start in a cgroup that is known here.
            if fds.len() <= usize::from(start.stdin) {
                fds.extend(ready.cgroups);
            }
            ready.process
        });
        if slot.is_some() && fds.len() <= usize::from(start.stdin) {
            return self.reply_refused(start.key, "its cgroup was not made ahead here".into());
        }
        let action = Action::start(&start, fds, &self.null, ready);
        if action.has_ended() {
            self.ended.push_back(start.key.clone());
        }
        self.actions.insert(start.key, action);
        self.forget_oldest();
    }

    fn kill(&mut self, key: String, signal: i32) {
        let pid = self.actions.get(&key).and_then(|action| action.pid);
        let Some(signal) = Signal::from_named_raw(signal) else {
            return self.reply_refused(key, format!("{signal} is no signal"));
        };
        if let Some(pid) = pid {
            // The group may be gone already.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if let Some(ready) = &mut self.ready {
                ready.process.take_if(|process| process.pid == pid);
            }
            let mut actions = self.actions.values_mut();
            let Some(action) = actions.find(|action| action.pid == Some(pid)) else {
                // An orphan, or a transfer, which reports on its pipe.
                continue;
            };
            let pipes = action.exited(status, &mut self.scratch);
            let key = action.key.clone();
            self.ended.push_back(key);
            self.orphan_pipes.extend(pipes);
        }
        while self.orphan_pipes.len() > MAX_ORPHAN_PIPES {
            self.orphan_pipes.pop_front();
        }
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        let mut bytes: usize =
            self.ended.iter().filter_map(|key| self.actions.get(key)).map(Action::kept).sum();
        while self.ended.len() > MAX_ENDED || bytes > MAX_ENDED_BYTES {
            let Some(key) = self.ended.pop_front() else { return };
            bytes -= self.actions.remove(&key).map_or(0, |action| action.kept());
        }
    }

    fn read_transfer(&mut self, index: usize) {
        let Some(transfer) = self.transfers.get_mut(index) else { return };
        if let Some(result) = transfer.read(&mut self.scratch) {
            let number = self.transfers.swap_remove(index).number;
            self.reply(FromInit::FileDone { transfer: number, result });
        }
    }

    fn read_orphan_pipe(&mut self, index: usize) {
        let Some(pipe) = self.orphan_pipes.get(index) else { return };
        match rustix::io::read(pipe, &mut self.scratch[..]) {
            Ok(count) if count > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => {
                self.orphan_pipes.remove(index);
            }
        }
    }

    fn reply_refused(&mut self, key: String, reason: String) {
        self.reply(FromInit::Refused { key, reason });
    }

    fn reply(&mut self, message: FromInit) {
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back(message);
        } else {
            // An agent that asks and never reads: it connects again, or is gone.
            self.connection = None;
            self.replies.clear();
        }
    }

    /// Sends what there is to say until the agent has to read.
    fn report(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let sent = send_all(connection, &mut self.replies, &mut self.actions);
        if sent.is_err() {
            self.connection = None;
        }
    }
}

fn send_all(
    connection: &mut Connection,
    replies: &mut VecDeque<FromInit>,
    actions: &mut BTreeMap<String, Action>,
) -> Result<(), Errno> {
    if connection.blocked {
        return Ok(());
    }
    while let Some(reply) = replies.front() {
        if !connection.send(reply)? {
            return Ok(());
        }
        replies.pop_front();
    }
    if !connection.greeted {
        return Ok(());
    }
    for action in actions.values_mut() {
        while let Some((message, what)) = action.next_report() {
            if !connection.send(&message)? {
                return Ok(());
            }
            action.reported(what);
        }
    }
    Ok(())
}

fn refused_transfer(reason: &str) -> FileFailure {
    FileFailure { kind: FileFailureKind::Other, message: reason.to_owned() }
}
