//! Set-up commands of a template, run one after another as the action user.

use std::collections::BTreeMap;
use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_init::protocol::{End, Ended, Program, Start};
use rollwright_proto::v1::command;
use rollwright_proto::v1::{SandboxSpec, SetupCommand};

use crate::cgroup::{CoreList, CpuGrant, SandboxCgroup};
use crate::runner::command::resolve;
use crate::session::{Session, SessionEvent, SessionEvents};
use crate::{fault, policy};

/// Start of the helper's keys of set-up commands; no action id holds a colon.
pub(super) const KEY: &str = ":setup:";
/// Time limit where the template does not say.
const TIMEOUT: Duration = Duration::from_mins(5);
/// Weight of set-up against actions on the same cores.
const UNITS: f64 = 0.5;
/// Bytes of output kept of each of head and tail, for the message of a failure.
const OUTPUT_LIMIT: u64 = 1024;
/// How long a killed command may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Where set-up runs.
pub(super) struct Ground<'a> {
    /// The helper.
    pub(super) session: &'a Session,
    /// The sandbox's cgroup, where this agent writes cgroups.
    pub(super) cgroup: Option<&'a SandboxCgroup>,
    /// Cores that it may run on.
    pub(super) cores: &'a CoreList,
}

/// Runs all set-up commands; the first that fails is the fault.
pub(super) async fn run(
    ground: &Ground<'_>,
    events: &mut SessionEvents,
    spec: &SandboxSpec,
    env: &BTreeMap<String, String>,
) -> Result<(), Fault> {
    for (index, setup) in spec.setup.iter().enumerate() {
        one(ground, events, spec, env, index, setup).await?;
    }
    Ok(())
}

async fn one(
    ground: &Ground<'_>,
    events: &mut SessionEvents,
    spec: &SandboxSpec,
    env: &BTreeMap<String, String>,
    index: usize,
    setup: &SetupCommand,
) -> Result<(), Fault> {
    let limit = super::limit(setup.timeout, TIMEOUT);
    let grant = CpuGrant { cores: ground.cores.clone(), units: UNITS };
    let cgroup = ground.cgroup.map(|cgroup| cgroup.create_action(&grant)).transpose();
    let cgroup =
        cgroup.map_err(|error| fault::infrastructure("CgroupFailed", error.to_string()))?;
    let outcome = {
        let started = start(ground, cgroup.as_ref(), spec, env, index, setup);
        let ended = async {
            let key = started.await?;
            let ended = follow(events, &key).await?;
            // The helper need not keep what is known here.
            ground.session.ack(&key).await.map_err(|error| lost(&error))?;
            Ok::<_, Fault>(ended)
        };
        tokio::time::timeout(limit, ended).await
    };
    if let Some(cgroup) = cgroup {
        let timed_out = outcome.is_err();
        let tidied = tokio::task::spawn_blocking(move || {
            if timed_out {
                cgroup.kill(KILL_LIMIT)?;
            }
            cgroup.park().map(drop)
        });
        if let Ok(Err(error)) = tidied.await {
            tracing::warn!(%error, "cannot tidy up after a set-up command");
        }
    }
    let (ended, output) = outcome.map_err(|_| {
        let what = format!("set-up command {index} ran longer than {limit:?}: raise its timeout");
        fault::timeout("SetupTimeout", what)
    })??;
    check(index, &ended, &output)
}

async fn start(
    ground: &Ground<'_>,
    cgroup: Option<&crate::cgroup::ActionCgroup>,
    spec: &SandboxSpec,
    env: &BTreeMap<String, String>,
    index: usize,
    setup: &SetupCommand,
) -> Result<String, Fault> {
    let command = setup.command.clone().unwrap_or_default();
    let command = resolve(command, UNITS, env, policy::workdir(spec))?;
    let program = match command.program {
        Some(command::Program::Shell(line)) => Program::Shell(line),
        Some(command::Program::Argv(argv)) => Program::Argv(argv.args),
        None => Program::Argv(Vec::new()),
    };
    let fds = cgroup.map(crate::cgroup::ActionCgroup::procs_fds).transpose();
    let fds = fds.map_err(|error| fault::infrastructure("CgroupFailed", error.to_string()))?;
    let key = format!("{KEY}{index}");
    let uid = policy::uid(spec);
    let start = Start {
        key: key.clone(),
        attempt: 0,
        tag: Vec::new(),
        program,
        env: command.env.into_iter().collect(),
        cwd: command.cwd,
        uid,
        gid: uid,
        output_limit: OUTPUT_LIMIT,
        stdin: false,
    };
    let stdin = (!command.stdin.is_empty()).then_some(command.stdin.as_ref());
    let sent = ground.session.start(start, stdin, &fds.unwrap_or_default()).await;
    sent.map(|()| key).map_err(|error| lost(&error))
}

async fn follow(events: &mut SessionEvents, key: &str) -> Result<(Ended, Vec<u8>), Fault> {
    let mut output = Vec::new();
    loop {
        match events.next().await.map_err(|error| lost(&error))? {
            SessionEvent::Output(piece) if piece.key == key => output.extend(piece.data),
            SessionEvent::Ended(ended) if ended.key == key => return Ok((ended, output)),
            SessionEvent::Refused { key: refused, reason } if refused == key => {
                return Err(fault::user("SetupFailed", reason));
            }
            _ => {}
        }
    }
}

fn check(index: usize, ended: &Ended, output: &[u8]) -> Result<(), Fault> {
    let how = match &ended.end {
        End::Exited { code: 0 } => return Ok(()),
        End::Exited { code } => format!("ended with exit code {code}"),
        End::Signaled { signal } => format!("was ended by signal {signal}"),
        End::NotStarted(failure) => format!("could not be started: {}", failure.message),
    };
    let output = String::from_utf8_lossy(output);
    let message = format!("set-up command {index} {how}; it printed: {}", output.trim());
    Err(fault::action("SetupFailed", message))
}

fn lost(error: &crate::session::SessionError) -> Fault {
    fault::infrastructure("SandboxLost", format!("the sandbox ended in its set-up: {error}"))
}
