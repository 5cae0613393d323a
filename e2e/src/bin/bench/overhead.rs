//! What an action costs beyond its program: our fast path against Docker's calls.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::ContainerUpdateBody;
use hdrhistogram::Histogram;
use rollwright_e2e::client::Client;
use rollwright_e2e::docker;
use rollwright_e2e::stack::Stack;
use rollwright_proto::v1::{Argv, Command, ExecuteRequest, command::Program};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

use crate::table::Row;

/// Actions that are not counted, in each sandbox.
const WARM_UP: usize = 10;

/// Runs `rounds` no-op actions in each of `sandboxes` sandboxes, by `callers` callers
/// that each send one after another.
pub(crate) async fn measure(
    sandboxes: usize,
    callers: usize,
    rounds: usize,
) -> anyhow::Result<Vec<Row>> {
    eprintln!("overhead: {sandboxes} sandboxes, {callers} at once, {rounds} actions in each ...");
    let stack = Stack::start("bench-overhead").await?;
    let mut client = stack.client().await?;
    for n in 0..sandboxes {
        client.open(&format!("t{n}"), "box").await?;
    }
    let (ours, program) = fast(&client, sandboxes, callers, rounds).await?;
    let containers = stack.sandboxes().await?;
    ensure!(containers.len() == sandboxes, "{} containers", containers.len());
    let baseline = plain(&containers, callers, rounds.div_ceil(4).max(10), program).await?;
    for n in 0..sandboxes {
        client.close(&format!("t{n}")).await?;
    }
    stack.stop().await?;

    let row = |name: &str, quantile: f64, target: f64| {
        let (ours, baseline) =
            (ours.value_at_quantile(quantile), baseline.value_at_quantile(quantile));
        let ratio = baseline as f64 / ours.max(1) as f64;
        Row {
            figure: format!("no-op overhead {name}, {sandboxes} sandboxes, {callers} at once"),
            ours: format!("{:.2} ms", ours as f64 / 1e3),
            baseline: format!("{:.1} ms (docker update + exec)", baseline as f64 / 1e3),
            ratio: format!("{ratio:.1}x"),
            target: format!(">= {target:.0}x"),
            reached: ratio >= target,
        }
    };
    Ok(vec![row("p50", 0.5, 40.0), row("p99", 0.99, 20.0)])
}

/// Microseconds between submission and result, less the program's own time; and the
/// program's median time.
async fn fast(
    client: &Client,
    sandboxes: usize,
    callers: usize,
    rounds: usize,
) -> anyhow::Result<(Histogram<u64>, Duration)> {
    let mut loops = JoinSet::new();
    for caller in 0..callers {
        let mut client = client.clone();
        let turns = turns(sandboxes, callers, caller, rounds);
        loops.spawn(async move {
            let mut times = Vec::new();
            for (round, n) in turns {
                let request = no_op(&format!("a{n}-{round}"), &format!("t{n}"));
                let begin = Instant::now();
                let run = client.run(request).await?;
                let total = begin.elapsed();
                let usage = run.finished()?.usage.context("no usage")?;
                if round >= WARM_UP {
                    times.push((total, Duration::from_secs_f64(usage.exec_s)));
                }
            }
            anyhow::Ok(times)
        });
    }
    let mut overhead = Histogram::new(3)?;
    let mut program = Histogram::<u64>::new(3)?;
    while let Some(times) = loops.join_next().await {
        for (total, exec) in times?? {
            overhead.record(micros(total.saturating_sub(exec)))?;
            program.record(micros(exec))?;
        }
    }
    Ok((overhead, Duration::from_micros(program.value_at_quantile(0.5))))
}

/// Round and sandbox of each action of one caller: its sandboxes in turn.
fn turns(
    sandboxes: usize,
    callers: usize,
    caller: usize,
    rounds: usize,
) -> impl Iterator<Item = (usize, usize)> + Send {
    (0..WARM_UP + rounds)
        .flat_map(move |round| (caller..sandboxes).step_by(callers).map(move |n| (round, n)))
}

fn no_op(action: &str, trajectory: &str) -> ExecuteRequest {
    let program = Some(Program::Argv(Argv { args: vec!["true".to_owned()] }));
    ExecuteRequest {
        action_id: action.to_owned(),
        trajectory_id: trajectory.to_owned(),
        command: Some(Command { program, ..Command::default() }),
        // What a shell action of a real agent uses at the median.
        cpu_units: vec![0.06],
        ..ExecuteRequest::default()
    }
}

/// The same by `docker update` and `docker exec` over the API, in the same containers.
async fn plain(
    containers: &[String],
    callers: usize,
    rounds: usize,
    program: Duration,
) -> anyhow::Result<Histogram<u64>> {
    let engine = docker::connect(docker::SOCKET.as_ref())?;
    let mut loops = JoinSet::new();
    for caller in 0..callers {
        let (engine, containers) = (engine.clone(), containers.to_vec());
        let turns = turns(containers.len(), callers, caller, rounds);
        loops.spawn(async move {
            let mut times = Vec::new();
            for (round, n) in turns {
                let begin = Instant::now();
                update_and_exec(&engine, &containers[n], round).await?;
                if round >= WARM_UP {
                    times.push(begin.elapsed());
                }
            }
            anyhow::Ok(times)
        });
    }
    let mut overhead = Histogram::new(3)?;
    while let Some(times) = loops.join_next().await {
        for total in times?? {
            overhead.record(micros(total.saturating_sub(program)))?;
        }
    }
    Ok(overhead)
}

async fn update_and_exec(engine: &Docker, container: &str, round: usize) -> anyhow::Result<()> {
    let update = ContainerUpdateBody {
        cpuset_cpus: Some("0-1".to_owned()),
        cpu_shares: Some(if round.is_multiple_of(2) { 512 } else { 1024 }),
        ..ContainerUpdateBody::default()
    };
    engine.update_container(container, update).await?;
    let options = CreateExecOptions {
        cmd: Some(vec!["true".to_owned()]),
        user: Some("1000".to_owned()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        ..CreateExecOptions::default()
    };
    let exec = engine.create_exec(container, options).await?.id;
    if let StartExecResults::Attached { mut output, .. } = engine.start_exec(&exec, None).await? {
        while output.next().await.transpose()?.is_some() {}
    }
    let code = engine.inspect_exec(&exec).await?.exit_code;
    ensure!(code == Some(0), "docker exec ended with {code:?}");
    Ok(())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}
