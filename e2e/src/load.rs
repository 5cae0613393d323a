//! Load on a queue: callers with batched streams on one side, simulated agents on
//! the other. Only the queue is real, and only its CPU time is counted.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use pb::action_event::Event;
use pb::agent_message::Message as ToQueue;
use pb::queue_message::Message as FromQueue;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_proto::v1::agent_link_client::AgentLinkClient;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// Clock ticks of `/proc/PID/stat` in a second.
const TICKS: f64 = 100.0;
/// Template of all trajectories.
pub const TEMPLATE: &str = "noop";

/// The shape of the load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Simulated agents.
    pub agents: usize,
    /// Cores of each.
    pub cores: u32,
    /// Open trajectories of each.
    pub trajectories: usize,
    /// Callers, each with one stream.
    pub callers: usize,
    /// Actions that each caller has under way.
    pub window: usize,
    /// Actions that each caller runs in all.
    pub actions: usize,
}

/// What was measured.
#[derive(Debug)]
pub struct Figures {
    /// Ended actions in a second.
    pub per_second: f64,
    /// CPU time of the queue's process for each action, in microseconds.
    pub cpu_us: f64,
    /// Submission to result as the callers saw it.
    pub latency: Histogram<u64>,
}

/// A channel to a queue that may still be starting.
async fn channel(path: &Path) -> Result<Channel> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        match crate::client::channel(path).await {
            Ok(channel) => return Ok(channel),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// User and system time of a process, in seconds.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no command in /proc/PID/stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("no times in /proc/PID/stat")?;
    Ok((user + system) / TICKS)
}

/// Answers each order at once, all orders of a batch in one batch.
async fn simulated_agent(dir: PathBuf, name: String, cores: u32) -> Result<()> {
    let channel = channel(&dir.join("agents.sock")).await?;
    let (out_tx, out_rx) = mpsc::channel(64);
    let hello = pb::Hello {
        node: name,
        pool: "simulated".to_owned(),
        numa: vec![pb::NumaNode { cores: (0..cores).collect() }],
        memory_bytes: 1 << 40,
        ..pb::Hello::default()
    };
    out_tx.send(batch(vec![ToQueue::Hello(hello)])).await?;
    let link = AgentLinkClient::new(channel).link(ReceiverStream::new(out_rx)).await?;
    let mut link = link.into_inner();
    let mut heartbeat = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            incoming = link.message() => {
                let Some(incoming) = incoming? else { return Ok(()) };
                let answers: Vec<ToQueue> = incoming.messages.into_iter()
                    .filter_map(|message| message.message).flat_map(answer).collect();
                if !answers.is_empty() {
                    out_tx.send(batch(answers)).await?;
                }
            }
            _ = heartbeat.tick() => {
                out_tx.send(batch(vec![ToQueue::Heartbeat(pb::Heartbeat::default())])).await?;
            }
        }
    }
}

fn batch(messages: Vec<ToQueue>) -> pb::AgentBatch {
    let messages = messages.into_iter().map(|message| pb::AgentMessage { message: Some(message) });
    pb::AgentBatch { messages: messages.collect() }
}

fn answer(order: FromQueue) -> Vec<ToQueue> {
    match order {
        FromQueue::OpenSandbox(open) => vec![ToQueue::SandboxReady(pb::SandboxReady {
            trajectory_id: open.trajectory_id,
            ..pb::SandboxReady::default()
        })],
        FromQueue::CloseSandbox(close) => {
            let trajectory_id = close.trajectory_id;
            vec![ToQueue::SandboxClosed(pb::SandboxClosed { trajectory_id })]
        }
        FromQueue::StartAction(start) => {
            let usage = pb::Usage { exec_s: 0.0, cpu_s: 1e-5, ..pb::Usage::default() };
            let finished =
                pb::Finished { exit_code: Some(0), usage: Some(usage), ..pb::Finished::default() };
            let (action_id, attempt) = (start.action_id, start.attempt);
            let started = pb::ActionStarted { action_id: action_id.clone(), attempt };
            let end = Some(pb::action_ended::End::Finished(finished));
            let ended = pb::ActionEnded { action_id, attempt, end, not_started: false };
            vec![ToQueue::ActionStarted(started), ToQueue::ActionEnded(ended)]
        }
        _ => Vec::new(),
    }
}

/// One caller: keeps its window full until all its actions have ended.
async fn caller(dir: PathBuf, index: usize, load: Load) -> Result<Histogram<u64>> {
    let mut client = ActionServiceClient::new(channel(&dir.join("queue.sock")).await?);
    let (requests_tx, requests_rx) = mpsc::channel(64);
    let mut sent_at = Vec::with_capacity(load.actions);
    let mut requests = |count: usize| {
        let now = Instant::now();
        let from = sent_at.len();
        let requests = (from..(from + count).min(load.actions)).map(|number| {
            sent_at.push(now);
            request(index, number, load)
        });
        pb::ExecuteBatch { requests: requests.collect() }
    };
    requests_tx.send(requests(load.window)).await?;
    let stream = client.execute_many(ReceiverStream::new(requests_rx)).await?;
    let mut stream = stream.into_inner();
    let mut latency = Histogram::new(3)?;
    let mut ended = 0;
    let mut sent = load.window.min(load.actions);
    let mut ends: Vec<(usize, Instant)> = Vec::with_capacity(load.actions);
    while ended < load.actions {
        let Some(events) = stream.message().await? else { bail!("the queue ended the stream") };
        let now = Instant::now();
        let before = ended;
        for event in events.events {
            match event.event {
                Some(Event::Finished(_)) => {
                    let number = event.action_id.rsplit_once('-').and_then(|(_, n)| n.parse().ok());
                    ends.push((number.context("an id that was never sent")?, now));
                    ended += 1;
                }
                Some(Event::Failed(fault)) => bail!("{}: {}", fault.reason, fault.message),
                _ => {}
            }
        }
        if ended > before && sent < load.actions {
            let batch = requests(ended - before);
            sent += batch.requests.len();
            requests_tx.send(batch).await?;
        }
    }
    drop(requests_tx);
    for (number, end) in ends {
        let sent = sent_at.get(number).context("an id that was never sent")?;
        latency.record(u64::try_from(end.duration_since(*sent).as_micros())?)?;
    }
    Ok(latency)
}

fn request(caller: usize, number: usize, load: Load) -> pb::ExecuteRequest {
    let trajectory = number % (load.agents * load.trajectories);
    let program = pb::command::Program::Shell("true".to_owned());
    pb::ExecuteRequest {
        action_id: format!("load/{caller}-{number}"),
        trajectory_id: format!("t{trajectory}"),
        command: Some(pb::Command { program: Some(program), ..pb::Command::default() }),
        ..pb::ExecuteRequest::default()
    }
}

/// Runs the load on a queue whose process is `queue` and whose sockets are in `dir`.
pub async fn run(dir: &Path, queue: &mut Child, load: Load) -> Result<Figures> {
    let mut agents = JoinSet::new();
    for index in 0..load.agents {
        agents.spawn(simulated_agent(dir.to_owned(), format!("simulated-{index}"), load.cores));
    }
    let mut client = ActionServiceClient::new(channel(&dir.join("queue.sock")).await?);
    for index in 0..load.agents * load.trajectories {
        let request = pb::OpenTrajectoryRequest {
            trajectory_id: format!("t{index}"),
            template: TEMPLATE.to_owned(),
            ..pb::OpenTrajectoryRequest::default()
        };
        client.open_trajectory(request).await?;
    }
    let (cpu, began) = (cpu_seconds(queue.id())?, Instant::now());
    let mut callers = JoinSet::new();
    for index in 0..load.callers {
        callers.spawn(caller(dir.to_owned(), index, load));
    }
    let mut latency = Histogram::new(3)?;
    while let Some(one) = callers.join_next().await {
        latency.add(one??)?;
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds(queue.id())? - cpu);
    ensure!(queue.try_wait()?.is_none(), "the queue has ended");
    agents.abort_all();
    let actions = (load.callers * load.actions) as f64;
    Ok(Figures { per_second: actions / seconds, cpu_us: cpu / actions * 1e6, latency })
}
