//! The plain path: `docker update` and `docker exec` for each action. Slow, kept
//! for engines where cgroups cannot be written, and as the baseline.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures::StreamExt as _;
use rollwright_core::fault::Fault;
use rollwright_proto::v1::output::Stream;
use rollwright_proto::v1::{ActionEnded, Command, Finished, StartAction, command};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::capture::Capture;
use super::{KillReason, Order, Report, Reports, failed, finished, usage};
use crate::cgroup::CoreList;
use crate::docker::Engine;
use crate::fault;
use crate::session::SessionEvents;

/// Marks the processes of an action: children inherit it, however they detach.
const MARK: &str = "ROLLWRIGHT_ACTION";
/// Rounds of killing before a tree that keeps forking counts as not killed.
const KILL_ROUNDS: usize = 50;
/// Docker's weight of one core's worth of share.
const SHARES_PER_UNIT: f64 = 1024.0;

/// What the runner and its actions share.
#[derive(Debug, Clone)]
pub struct Context {
    /// The engine.
    pub engine: Engine,
    /// Container name.
    pub container: Arc<str>,
    /// `cgroup.procs` of the container, to find what must be killed.
    pub procs: PathBuf,
    /// User and group of actions.
    pub uid: u32,
    /// To the node.
    pub reports: Reports,
}

/// The runner of one sandbox.
#[derive(Debug)]
pub struct DockerRunner {
    context: Context,
    events: SessionEvents,
    running: HashMap<String, Running>,
}

#[derive(Debug)]
struct Running {
    kill_tx: Option<oneshot::Sender<KillReason>>,
    cores: CoreList,
    units: f64,
}

impl DockerRunner {
    /// A runner for a sandbox whose set-up is over; `events` tell when it is gone.
    pub fn new(context: Context, events: SessionEvents) -> Self {
        Self { context, events, running: HashMap::new() }
    }

    /// Works until the node drops the orders or the sandbox is gone.
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut actions: JoinSet<ActionEnded> = JoinSet::new();
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.order(order, &mut actions).await,
                    None => return,
                },
                event = self.events.next() => if let Err(error) = event {
                    let fault = super::wire::gone(&error);
                    return self.context.reports.send(Report::Lost(fault)).await;
                },
                Some(ended) = actions.join_next(), if !actions.is_empty() => match ended {
                    Ok(ended) => {
                        self.running.remove(&ended.action_id);
                        self.context.reports.send(Report::Ended(Box::new(ended))).await;
                    }
                    Err(error) => tracing::error!(%error, "an action's task died"),
                },
            }
        }
    }

    async fn order(&mut self, order: Order, actions: &mut JoinSet<ActionEnded>) {
        match order {
            Order::Start(start) => {
                let (kill_tx, kill_rx) = oneshot::channel();
                let running = Running {
                    kill_tx: Some(kill_tx),
                    cores: start.cores.iter().copied().collect(),
                    units: start.cpu_units,
                };
                self.running.insert(start.action_id.clone(), running);
                if let Err(fault) = self.pin().await {
                    self.running.remove(&start.action_id);
                    let (id, attempt) = (start.action_id.as_str(), start.attempt);
                    return self.context.reports.failed(id, attempt, &fault, true).await;
                }
                actions.spawn(run_action(self.context.clone(), *start, kill_rx));
            }
            Order::Await(left) => super::wait_for(&left).await,
            Order::Resize { action_id, cores, cpu_units, left: _left } => {
                let Some(running) = self.running.get_mut(&action_id) else { return };
                running.cores = cores.into_iter().collect();
                running.units = cpu_units;
                if let Err(fault) = self.pin().await {
                    tracing::warn!(action = action_id, %fault, "cannot resize an action");
                }
            }
            Order::Kill { action_id } => {
                let running = self.running.get_mut(&action_id);
                if let Some(kill_tx) = running.and_then(|running| running.kill_tx.take()) {
                    // It may have ended already.
                    let _ = kill_tx.send(KillReason::Cancelled);
                }
            }
            Order::Ack { .. } => {}
        }
    }

    /// Gives the container the cores and the weight of all that runs in it.
    async fn pin(&self) -> Result<(), Fault> {
        let all = self.running.values();
        let cores = all.clone().fold(CoreList::default(), |sum, r| sum.union(&r.cores));
        let units: f64 = all.map(|running| running.units).sum();
        let shares = ((units * SHARES_PER_UNIT) as i64).clamp(2, 262_144);
        self.context.engine.update_cpus(&self.context.container, &cores.to_string(), shares).await
    }
}

async fn run_action(
    context: Context,
    start: StartAction,
    kill_rx: oneshot::Receiver<KillReason>,
) -> ActionEnded {
    let (id, attempt) = (start.action_id.clone(), start.attempt);
    let limit: Option<Duration> = start.timeout.and_then(|limit| limit.try_into().ok());
    let mut capture = Capture::new(&id, start.output_limit);
    let exec = match create(&context, &start).await {
        Ok(exec) => exec,
        Err(fault) => return failed(&id, attempt, &fault, true),
    };
    let begun = Instant::now();
    let outcome = tokio::select! {
        outcome = follow(&context, &exec, &start, &mut capture) => outcome,
        reason = killed(limit, kill_rx) => Err(reason.fault(limit)),
    };
    let exec_s = begun.elapsed().as_secs_f64();
    if outcome.is_err() {
        kill_marked(&context, &id).await;
    }
    for output in capture.finish() {
        context.reports.send(Report::Output(output)).await;
    }
    match outcome {
        Ok(code) => finished(
            &id,
            attempt,
            Finished {
                exit_code: Some(code),
                usage: Some(usage(exec_s, 0.0, 0, capture.bytes())),
                cpu_units: start.cpu_units,
                ..Default::default()
            },
        ),
        Err(fault) => failed(&id, attempt, &fault, false),
    }
}

async fn killed(limit: Option<Duration>, kill_rx: oneshot::Receiver<KillReason>) -> KillReason {
    let over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = over => KillReason::Timeout,
        Ok(reason) = kill_rx => reason,
    }
}

async fn create(context: &Context, start: &StartAction) -> Result<String, Fault> {
    let Command { program, env, cwd, stdin } = start.command.clone().unwrap_or_default();
    let cmd = match program {
        Some(command::Program::Shell(line)) => vec!["/bin/sh".into(), "-c".into(), line],
        Some(command::Program::Argv(argv)) => argv.args,
        None => Vec::new(),
    };
    let mut env: Vec<String> =
        env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    env.push(format!("{MARK}={}", start.action_id));
    let options = CreateExecOptions {
        attach_stdin: Some(!stdin.is_empty()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        env: Some(env),
        cmd: Some(cmd),
        user: Some(format!("{0}:{0}", context.uid)),
        working_dir: Some(cwd),
        ..Default::default()
    };
    let created = context.engine.raw().create_exec(&context.container, options).await;
    created.map(|exec| exec.id).map_err(|error| fault::docker("preparing an action", &error))
}

/// Runs the exec to its end; the program's exit code.
async fn follow(
    context: &Context,
    exec: &str,
    start: &StartAction,
    capture: &mut Capture,
) -> Result<i32, Fault> {
    let options = StartExecOptions { output_capacity: Some(64 << 10), ..Default::default() };
    let started = context.engine.raw().start_exec(exec, Some(options)).await;
    let started = started.map_err(|error| exec_fault(&error))?;
    let (action_id, attempt) = (start.action_id.clone(), start.attempt);
    context.reports.send(Report::Started { action_id, attempt }).await;
    if let StartExecResults::Attached { mut output, mut input } = started {
        let stdin = start.command.as_ref().map(|command| command.stdin.clone()).unwrap_or_default();
        let feed = async move {
            // A program that does not read its input closes it: not an error.
            let _ = input.write_all(&stdin).await;
            let _ = input.shutdown().await;
        };
        let read = async {
            while let Some(piece) = output.next().await {
                let (stream, data) = match piece {
                    Ok(LogOutput::StdErr { message }) => (Stream::Stderr, message),
                    Ok(other) => (Stream::Stdout, other.into_bytes()),
                    Err(error) => return Err(fault::docker("reading an action's output", &error)),
                };
                if let Some(output) = capture.push(stream, data) {
                    context.reports.send(Report::Output(output)).await;
                }
            }
            Ok(())
        };
        let ((), read) = tokio::join!(feed, read);
        read?;
    }
    let ended = context.engine.raw().inspect_exec(exec).await;
    let ended = ended.map_err(|error| fault::docker("asking how an action ended", &error))?;
    let code = ended.exit_code.filter(|_| ended.running != Some(true));
    code.and_then(|code| i32::try_from(code).ok()).ok_or_else(|| {
        fault::infrastructure("DockerFailed", "Docker does not say how the action ended")
    })
}

/// Docker refused to start it: the program's fault where it is missing.
fn exec_fault(error: &bollard::errors::Error) -> Fault {
    let text = error.to_string();
    if text.contains("executable file not found") || text.contains("no such file or directory") {
        return fault::action("CommandNotFound", text);
    }
    fault::docker("starting an action", error)
}

/// Kills every process of the container that carries the action's mark.
async fn kill_marked(context: &Context, action_id: &str) {
    let mark = format!("{MARK}={action_id}");
    let procs = context.procs.clone();
    let killed = tokio::task::spawn_blocking(move || {
        for _ in 0..KILL_ROUNDS {
            if kill_round(&procs, mark.as_bytes()) == 0 {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    });
    if !killed.await.unwrap_or(false) {
        tracing::error!(action = action_id, "cannot kill all of an action's processes");
    }
}

fn kill_round(procs: &Path, mark: &[u8]) -> usize {
    let pids = std::fs::read_to_string(procs).unwrap_or_default();
    let marked = pids.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == mark)
    });
    let pids = marked.filter_map(rustix::process::Pid::from_raw);
    // One that has ended meanwhile is as good as killed.
    pids.filter(|pid| {
        let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        true
    })
    .count()
}
