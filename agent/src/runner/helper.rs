//! The fast path: actions through the sandbox's helper, each in a cgroup of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rollwright_core::fault::Fault;
use rollwright_init::protocol::{End, Ended, KnownAction};
use rollwright_proto::v1::{ActionEnded, Finished, LiveAction, StartAction};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::wire::{
    cgroup_fault, gone, grant, key, message, not_sent, not_started, tag, untag, untold, wire_output,
};
use super::{KillReason, Order, Report, Reports, failed, finished, usage};
use crate::cgroup::{ActionCgroup, CgroupError, CoreList, CpuGrant, SandboxCgroup, Usage};
use crate::fault;
use crate::session::{Session, SessionError, SessionEvent, SessionEvents};

/// How long a killed tree may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long the helper may take to report the end of a killed action, with the
/// tail of its output.
const REPORT_LIMIT: Duration = Duration::from_secs(5);
/// The signal that nothing survives.
const SIGKILL: i32 = 9;
/// Weight of a cgroup that is only opened to be tidied up.
const TIDY_UNITS: f64 = 0.01;
/// Cgroups that are killed, parked or removed at once; more hold the sandbox up.
const MAX_WORK: usize = 64;
/// Tries to reach a helper again, and the first pause between two.
const RECONNECT_TRIES: u32 = 5;
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
/// A helper whose connection breaks so often is given up.
const MAX_RECONNECTS: u32 = 16;
/// Stands for "no deadline".
const FAR_FUTURE: Duration = Duration::from_hours(365 * 24);

/// One action that has not ended.
#[derive(Debug)]
struct Running {
    action_id: String,
    attempt: u32,
    cgroup: Option<ActionCgroup>,
    /// Its program is known to run.
    started: bool,
    /// Bytes of its output that were passed on.
    told: u64,
    limit: Option<Duration>,
    deadline: Option<Instant>,
    killed: Option<KillReason>,
    /// Its cgroup is with a kill that is under way.
    killing: bool,
    /// The helper's word, kept while a kill is still under way.
    ended: Option<Ended>,
    units: f64,
}

/// Why an action did not start.
enum NotStarted {
    Fault(Fault),
    /// The connection to the helper broke.
    Broken(SessionError),
}

impl NotStarted {
    fn of(error: SessionError) -> Self {
        match error {
            SessionError::Io(_) | SessionError::Closed => Self::Broken(error),
            other => Self::Fault(not_sent(&other)),
        }
    }
}

/// A blocking cgroup operation that came to its end.
enum Done {
    Killed { key: String, cgroup: Box<ActionCgroup>, result: Result<(), CgroupError> },
    Parked { result: Result<(), CgroupError>, report: Option<Box<ActionEnded>> },
}

/// The runner of one sandbox.
#[derive(Debug)]
pub struct HelperRunner {
    session: Session,
    events: SessionEvents,
    cgroup: SandboxCgroup,
    cores: CoreList,
    uid: u32,
    reports: Reports,
    running: HashMap<String, Running>,
    /// Name of the cgroup in which a process waits for the next action.
    ahead: Option<String>,
    /// How often the connection broke.
    reconnects: u32,
    /// Turns of [`MAX_WORK`].
    turns: Arc<Semaphore>,
}

impl HelperRunner {
    /// A runner for a sandbox whose set-up is over; `cores` are all of the node.
    pub fn new(
        session: Session,
        events: SessionEvents,
        cgroup: SandboxCgroup,
        cores: CoreList,
        uid: u32,
        reports: Reports,
    ) -> Self {
        let running = HashMap::new();
        let turns = Arc::new(Semaphore::new(MAX_WORK));
        let (ahead, reconnects) = (None, 0);
        Self { session, events, cgroup, cores, uid, reports, running, ahead, reconnects, turns }
    }

    /// Takes over actions of an earlier agent process. Returns those that still
    /// count; what they did is reported again by the helper.
    pub fn adopt(&mut self, known: &[KnownAction]) -> Vec<LiveAction> {
        let mut live = Vec::new();
        let mut kept = Vec::new();
        for action in known {
            let Some((start, token, deadline)) = untag(&action.tag) else { continue };
            let grant = grant(&start.cores, start.cpu_units);
            let cgroup = self.cgroup.open_action(&token, &grant).ok();
            let now = SystemTime::now();
            let left = deadline.map(|at| at.duration_since(now).unwrap_or_default());
            kept.extend(cgroup.as_ref().map(|cgroup| cgroup.name().to_owned()));
            live.push(LiveAction {
                action_id: start.action_id.clone(),
                attempt: action.attempt,
                trajectory_id: start.trajectory_id.clone(),
                cores: start.cores.clone(),
                cpu_units: start.cpu_units,
                ended: action.ended,
            });
            let running = Running {
                action_id: start.action_id,
                attempt: action.attempt,
                cgroup,
                started: false,
                told: 0,
                limit: start.timeout.and_then(|limit| limit.try_into().ok()),
                deadline: left.map(|left| Instant::now() + left),
                killed: None,
                killing: false,
                ended: None,
                units: start.cpu_units,
            };
            self.running.insert(action.key.clone(), running);
        }
        // Cgroups of actions that nobody knows: what is in them is left-over.
        let tidy = CpuGrant { cores: self.cores.clone(), units: TIDY_UNITS };
        for name in self.cgroup.actions().unwrap_or_default() {
            if !kept.contains(&name)
                && let Ok(cgroup) = self.cgroup.open_action(&name, &tidy)
                && let Err(error) = cgroup.park()
            {
                tracing::warn!(%error, "cannot tidy up the cgroup of an ended action");
            }
        }
        live
    }

    /// Works until the node drops the orders or the sandbox is gone.
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut work: JoinSet<Done> = JoinSet::new();
        self.prepare().await;
        loop {
            let deadline = self.next_deadline();
            let wake = deadline.unwrap_or_else(|| Instant::now() + FAR_FUTURE);
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.order(order, &mut work).await,
                    None => return,
                },
                event = self.events.next() => match event {
                    Ok(event) => self.event(event, &mut work).await,
                    Err(error) => if let Err(error) = self.reconnect(error, &mut work).await {
                        let fault = gone(&error);
                        return self.reports.send(Report::Lost(fault)).await;
                    },
                },
                Some(done) = work.join_next(), if !work.is_empty() => match done {
                    Ok(done) => self.done(done, &mut work).await,
                    Err(error) => tracing::error!(%error, "a cgroup operation died"),
                },
                () = tokio::time::sleep_until(wake), if deadline.is_some() => {
                    self.expire(&mut work).await;
                }
            }
        }
    }

    /// The connection broke. A helper that still listens says all that it knows again.
    async fn reconnect(
        &mut self,
        broken: SessionError,
        work: &mut JoinSet<Done>,
    ) -> Result<(), SessionError> {
        self.reconnects += 1;
        if self.reconnects > MAX_RECONNECTS {
            return Err(broken);
        }
        let mut error = broken;
        for pause in (0..RECONNECT_TRIES).map(|n| RECONNECT_PAUSE * 2u32.pow(n)) {
            match self.session.reconnect().await {
                Ok((known, events)) => {
                    tracing::warn!(sandbox = %self.reports.sandbox, "connected to a helper again");
                    self.events = events;
                    // The helper ended what waited for the last connection.
                    self.ahead = None;
                    self.fail_unknown(&known, work).await;
                    return Ok(());
                }
                // Nobody listens any more: the sandbox has ended.
                Err(connect @ SessionError::Connect { .. }) => return Err(connect),
                Err(other) => error = other,
            }
            tokio::time::sleep(pause).await;
        }
        Err(error)
    }

    /// Ends actions that the helper knows nothing of: their start was lost on the way.
    async fn fail_unknown(&mut self, known: &[KnownAction], work: &mut JoinSet<Done>) {
        let unknown = |(key, running): (&String, &Running)| {
            let lost = !running.killing && known.iter().all(|action| action.key != *key);
            lost.then(|| key.clone())
        };
        let lost: Vec<String> = self.running.iter().filter_map(unknown).collect();
        for key in lost {
            let Some(running) = self.running.remove(&key) else { continue };
            let message =
                "the connection to the sandbox's helper broke, and it has lost the action";
            let fault = fault::infrastructure("ActionLost", message);
            let (id, attempt) = (&running.action_id, running.attempt);
            self.reports.failed(id, attempt, &fault, !running.started).await;
            self.park(running.cgroup, None, work).await;
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.running.values().filter_map(|running| running.deadline).min()
    }

    async fn order(&mut self, order: Order, work: &mut JoinSet<Done>) {
        match order {
            Order::Start(start) => {
                let mut tried = self.start(&start).await;
                if let Err(NotStarted::Broken(error)) = tried {
                    tried = match self.reconnect(error, work).await {
                        Ok(()) => self.start(&start).await,
                        Err(error) => Err(NotStarted::Broken(error)),
                    };
                }
                if let Err(not_started) = tried {
                    let fault = match not_started {
                        NotStarted::Fault(fault) => fault,
                        NotStarted::Broken(error) => not_sent(&error),
                    };
                    self.reports.failed(&start.action_id, start.attempt, &fault, true).await;
                }
            }
            Order::Await(left) => super::wait_for(&left).await,
            Order::Resize { action_id, cores, cpu_units, left: _left } => {
                let grant = grant(&cores, cpu_units);
                let found = self.running.values_mut().find(|r| r.action_id == action_id);
                let Some(running) = found else { return };
                running.units = cpu_units;
                if let Some(Err(error)) =
                    running.cgroup.as_mut().map(|cgroup| cgroup.resize(&grant))
                {
                    tracing::warn!(action = action_id, %error, "cannot resize an action");
                }
            }
            Order::Kill { action_id } => {
                let found = self.running.iter().find(|(_, r)| r.action_id == action_id);
                if let Some(key) = found.map(|(key, _)| key.clone()) {
                    self.kill(&key, KillReason::Cancelled, work).await;
                }
            }
            Order::Ack { action_id, attempt } => {
                if let Err(error) = self.session.ack(&key(&action_id, attempt)).await {
                    tracing::debug!(action = action_id, %error, "cannot acknowledge an end");
                }
            }
        }
    }

    /// Starts an action. With an error it surely did not start.
    async fn start(&mut self, start: &StartAction) -> Result<(), NotStarted> {
        let grant = grant(&start.cores, start.cpu_units);
        let cgroup =
            self.cgroup.create_action(&grant).map_err(|e| NotStarted::Fault(cgroup_fault(&e)))?;
        let ahead = self.ahead.take_if(|ahead| ahead == cgroup.name());
        let limit: Option<Duration> = start.timeout.and_then(|limit| limit.try_into().ok());
        let wall = limit.and_then(|limit| SystemTime::now().checked_add(limit));
        let command = start.command.clone().unwrap_or_default();
        let stdin = (!command.stdin.is_empty()).then(|| command.stdin.clone());
        let key = key(&start.action_id, start.attempt);
        let message =
            message(start, command, key.clone(), self.uid, tag(start, &cgroup.token(), wall));
        let sent = if let Some(ahead) = ahead {
            // The helper has its cgroup already.
            let sent = self.session.start_in(&ahead, message, stdin.as_deref(), &[]).await;
            sent.map_err(NotStarted::of)
        } else {
            match cgroup.procs_fds() {
                Ok(fds) => {
                    let sent = self.session.start(message, stdin.as_deref(), &fds).await;
                    sent.map_err(NotStarted::of)
                }
                Err(error) => Err(NotStarted::Fault(cgroup_fault(&error))),
            }
        };
        if let Err(not_started) = sent {
            if let Err(error) = cgroup.park() {
                tracing::warn!(%error, "cannot tidy up after a failed start");
            }
            return Err(not_started);
        }
        let running = Running {
            action_id: start.action_id.clone(),
            attempt: start.attempt,
            cgroup: Some(cgroup),
            started: false,
            told: 0,
            limit,
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            killed: None,
            killing: false,
            ended: None,
            units: start.cpu_units,
        };
        self.running.insert(key, running);
        if self.running.len() > 1 {
            // Several at once: the next may come before one of them ends.
            self.prepare().await;
        }
        Ok(())
    }

    /// Has a process made in the next action's cgroup, if none waits in one.
    async fn prepare(&mut self) {
        let slot = match self.cgroup.prepare() {
            Ok(Some((slot, fds))) => self.session.prepare(&slot, &fds).await.map(|()| slot),
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "cannot make a cgroup ahead"),
        };
        // Without it the next action starts in the ordinary way.
        match slot {
            Ok(slot) => self.ahead = Some(slot),
            Err(error) => tracing::debug!(%error, "cannot make a process ahead"),
        }
    }

    async fn event(&mut self, event: SessionEvent, work: &mut JoinSet<Done>) {
        match event {
            SessionEvent::Started { key, attempt } => {
                let Some(running) = self.running.get_mut(&key) else { return };
                if std::mem::replace(&mut running.started, true) {
                    return;
                }
                let action_id = running.action_id.clone();
                self.reports.send(Report::Started { action_id, attempt }).await;
            }
            SessionEvent::Output(output) => {
                let Some(running) = self.running.get_mut(&output.key) else { return };
                let Some(output) = untold(output, running.told) else { return };
                running.told = output.offset + output.data.len() as u64;
                let action_id = running.action_id.clone();
                self.reports.send(Report::Output(wire_output(action_id, output))).await;
            }
            SessionEvent::Ended(ended) => self.ended(ended, work).await,
            SessionEvent::Known(_) => {}
            SessionEvent::Refused { key, reason } => {
                let Some(running) = self.running.remove(&key) else { return };
                let fault = fault::user("StartRefused", reason);
                self.reports.failed(&running.action_id, running.attempt, &fault, true).await;
                self.park(running.cgroup, None, work).await;
            }
        }
    }

    /// The helper says how it ended.
    async fn ended(&mut self, ended: Ended, work: &mut JoinSet<Done>) {
        let Some(running) = self.running.get_mut(&ended.key) else { return };
        if running.killing {
            // The kill has the cgroup; it ends the action when it is through.
            running.ended = Some(ended);
            return;
        }
        let key = ended.key.clone();
        self.finish(&key, Some(ended), work).await;
    }

    /// Tells the node once what it used is known and its cores are free.
    async fn finish(&mut self, key: &str, ended: Option<Ended>, work: &mut JoinSet<Done>) {
        let Some(running) = self.running.remove(key) else { return };
        let used = running.cgroup.as_ref().map(ActionCgroup::usage);
        let used = used.and_then(|used| {
            used.inspect_err(|error| tracing::warn!(%error, "cannot read an action's usage")).ok()
        });
        let report = report(&running, ended.as_ref(), used.unwrap_or_default());
        let populated = running.cgroup.as_ref().is_some_and(|c| c.is_populated().unwrap_or(true));
        if populated {
            return self.park(running.cgroup, Some(Box::new(report)), work).await;
        }
        // Nothing runs on its cores any more; the rest is nobody's to wait for.
        self.reports.send(Report::Ended(Box::new(report))).await;
        let used_up = running.cgroup.and_then(ActionCgroup::recycle);
        self.park(used_up, None, work).await;
        self.prepare().await;
    }

    async fn expire(&mut self, work: &mut JoinSet<Done>) {
        let now = Instant::now();
        let over = |running: &Running| running.deadline.is_some_and(|deadline| deadline <= now);
        let due: Vec<String> =
            self.running.iter().filter(|(_, r)| over(r)).map(|(key, _)| key.clone()).collect();
        for key in due {
            let Some(running) = self.running.get(&key) else { continue };
            if running.killed.is_none() {
                self.kill(&key, KillReason::Timeout, work).await;
            } else {
                self.finish(&key, None, work).await;
            }
        }
    }

    async fn kill(&mut self, key: &str, why: KillReason, work: &mut JoinSet<Done>) {
        let Some(running) = self.running.get_mut(key) else { return };
        if running.killed.is_some() {
            return;
        }
        running.killed = Some(why);
        running.deadline = None;
        if let Some(cgroup) = running.cgroup.take() {
            running.killing = true;
            let key = key.to_owned();
            work.spawn_blocking(move || {
                let result = cgroup.kill(KILL_LIMIT);
                Done::Killed { key, cgroup: Box::new(cgroup), result }
            });
            return;
        }
        // Its cgroup was lost with an earlier agent process: what is left is its group.
        running.deadline = Some(Instant::now() + REPORT_LIMIT);
        if let Err(error) = self.session.kill(key, SIGKILL).await {
            tracing::warn!(action = key, %error, "cannot kill an action");
        }
    }

    /// Moves what is left behind out of the way, then reports.
    async fn park(
        &self,
        cgroup: Option<ActionCgroup>,
        report: Option<Box<ActionEnded>>,
        work: &mut JoinSet<Done>,
    ) {
        let Some(cgroup) = cgroup else { return };
        // An error means that the semaphore was closed, which never happens.
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        work.spawn_blocking(move || {
            let result = cgroup.park().map(drop);
            drop(turn);
            Done::Parked { result, report }
        });
    }

    async fn done(&mut self, done: Done, work: &mut JoinSet<Done>) {
        match done {
            Done::Killed { key, cgroup, result } => {
                if let Err(error) = &result {
                    tracing::error!(action = key, %error, "cannot kill an action");
                }
                let Some(running) = self.running.get_mut(&key) else { return };
                running.cgroup = Some(*cgroup);
                running.killing = false;
                running.deadline = Some(Instant::now() + REPORT_LIMIT);
                if let Some(ended) = running.ended.take() {
                    self.finish(&key, Some(ended), work).await;
                }
            }
            Done::Parked { result, report } => {
                if let Err(error) = result {
                    tracing::warn!(%error, "cannot tidy up an ended action");
                }
                if let Some(report) = report {
                    self.reports.send(Report::Ended(report)).await;
                }
            }
        }
    }
}

/// How the action ended, from what the helper said, what was done to it and what
/// its cgroup counted.
fn report(running: &Running, ended: Option<&Ended>, used: Usage) -> ActionEnded {
    let (id, attempt) = (running.action_id.as_str(), running.attempt);
    if let Some(End::NotStarted(failure)) = ended.map(|ended| &ended.end) {
        let (fault, not_started) = not_started(failure);
        return failed(id, attempt, &fault, not_started);
    }
    if let Some(why) = running.killed {
        return failed(id, attempt, &why.fault(running.limit), false);
    }
    let Some(ended) = ended else {
        let fault = fault::infrastructure("HelperSilent", "the helper did not say how it ended");
        return failed(id, attempt, &fault, false);
    };
    let (exit_code, signal) = match &ended.end {
        End::Exited { code } => (Some(*code), None),
        End::Signaled { signal } => (None, Some(*signal)),
        End::NotStarted(_) => (None, None),
    };
    let exec_s = Duration::from_nanos(ended.exec_ns).as_secs_f64();
    let output = (ended.output_bytes, ended.dropped_bytes);
    finished(
        id,
        attempt,
        Finished {
            exit_code,
            signal,
            out_of_memory: used.oom_kills > 0,
            usage: Some(usage(exec_s, used.cpu_s, used.memory_peak_bytes, output)),
            cpu_units: running.units,
        },
    )
}
