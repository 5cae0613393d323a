//! Between the wire protocol and the core.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rollwright_core::cpu::CoreSet;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{InvalidId, JobId, NodeId, QuotaName, TrajectoryId};
use rollwright_core::profile::Prior;
use rollwright_core::queue::{Foresight, LiveAction, NodeUp, Stats, Usage};
use rollwright_core::resources::{Cost, UnitChoice, Units};
use rollwright_proto::v1 as pb;

use crate::config::{DEFAULT_JOB, Profile};
use crate::fault::user;
use crate::mailbox::Weigh;

/// Largest standard input of an action.
const MAX_STDIN: usize = 1 << 20;
/// Largest request: an agent takes messages of 4 MiB at most.
const MAX_REQUEST: usize = 2 << 20;
/// Choices of CPU units that a request may list.
const MAX_UNITS: usize = 64;
/// Largest environment of a trajectory.
const MAX_ENV: usize = 256 << 10;
/// Largest output that can be kept of each of head and tail.
const MAX_OUTPUT: u64 = 64 << 20;
/// Longest remaining time of a trajectory that a request may predict, in seconds: a year.
const MAX_REMAINING: f64 = 365.0 * 86_400.0;
/// Longest time that a request may ask for.
const MAX_DURATION: Duration = Duration::from_hours(24 * 365);

/// A malformed id as a fault of the caller.
#[allow(clippy::needless_pass_by_value)] // for map_err
pub(crate) fn bad_id(error: InvalidId) -> Fault {
    user("InvalidId", error.to_string())
}

/// The job that a request names, or the default one.
pub(crate) fn job(name: &str) -> Result<JobId, Fault> {
    JobId::new(if name.is_empty() { DEFAULT_JOB } else { name }).map_err(bad_id)
}

/// A length of time in a request.
pub(crate) fn duration(
    field: &str,
    value: Option<&prost_types::Duration>,
) -> Result<Option<Duration>, Fault> {
    duration_to(field, value, MAX_DURATION)
}

/// A length of time of at most `most`.
pub(crate) fn duration_to(
    field: &str,
    value: Option<&prost_types::Duration>,
    most: Duration,
) -> Result<Option<Duration>, Fault> {
    let Some(value) = value else { return Ok(None) };
    match Duration::try_from(*value) {
        Ok(duration) if duration > Duration::ZERO && duration <= most => Ok(Some(duration)),
        _ => {
            let most = most.as_secs();
            let message =
                format!("{field} must be more than 0 and at most {most} s, or be left out");
            Err(user("InvalidDuration", message))
        }
    }
}

/// Fills a request from its profile, so that what is stored stands alone.
pub(crate) fn resolve(request: &mut pb::ExecuteRequest, profile: &Profile) -> Result<Cost, Fault> {
    if request.cpu_units.is_empty() {
        request.cpu_units = profile.units.as_slice().iter().map(|units| units.as_f64()).collect();
    }
    if request.quota.is_empty() && !profile.quota.is_empty() {
        let quota = profile.quota.iter().map(|(name, amount)| (name.to_string(), *amount));
        request.quota = quota.collect();
    }
    duration("expected_duration", request.expected_duration.as_ref())?;
    if let Some(got) = request.remaining.filter(|seconds| !(0.0..=MAX_REMAINING).contains(seconds))
    {
        let message =
            format!("remaining must be 0 to {MAX_REMAINING} seconds, or be left out; got {got}");
        return Err(user("InvalidDuration", message));
    }
    duration("timeout", request.timeout.as_ref())?;
    duration("queue_deadline", request.queue_deadline.as_ref())?;
    if request.timeout.is_none() {
        request.timeout = profile.timeout.try_into().ok();
    }
    if request.queue_deadline.is_none() {
        request.queue_deadline = profile.queue_deadline.and_then(|after| after.try_into().ok());
    }
    request.malleable.get_or_insert(profile.malleable);
    if request.output_limit == 0 {
        request.output_limit = profile.output_limit;
    }
    if request.output_limit > MAX_OUTPUT {
        let message = format!("output_limit must be at most {MAX_OUTPUT} bytes");
        return Err(user("OutputLimit", message));
    }
    check_command(request.command.as_ref())?;
    if request_bytes(request) > MAX_REQUEST {
        let message = "command, environment and standard input together must be at most 2 MiB";
        return Err(user("RequestTooLarge", message));
    }
    cost(&request.cpu_units, &request.quota)
}

fn check_command(command: Option<&pb::Command>) -> Result<(), Fault> {
    use pb::command::Program;
    let wrong = |message: &str| Err(user("InvalidCommand", message));
    let Some(command) = command else {
        return wrong("command is missing: give shell or argv");
    };
    match &command.program {
        None => wrong("command has no program: give shell or argv"),
        Some(Program::Shell(shell)) if shell.is_empty() => wrong("command.shell is empty"),
        Some(Program::Argv(argv)) if argv.args.first().is_none_or(String::is_empty) => {
            wrong("command.argv.args needs at least the name of the program")
        }
        Some(_) if command.stdin.len() > MAX_STDIN => {
            wrong("command.stdin must be at most 1 MiB: put a file instead")
        }
        Some(Program::Shell(shell)) if shell.contains('\0') => {
            wrong("command.shell must not hold a zero byte: put a file instead")
        }
        Some(Program::Argv(argv)) if argv.args.iter().any(|arg| arg.contains('\0')) => {
            wrong("command.argv must not hold a zero byte: put a file instead")
        }
        Some(_) if command.cwd.contains('\0') => wrong("command.cwd must not hold a zero byte"),
        Some(_) if !good_env(&command.env) => wrong(
            "a name in command.env must not be empty or hold '=', and nothing there a zero byte",
        ),
        Some(_) => Ok(()),
    }
}

/// The cost that a resolved request states.
pub(crate) fn cost<'a>(
    units: &[f64],
    quota: impl IntoIterator<Item = (&'a String, &'a u32)>,
) -> Result<Cost, Fault> {
    if units.len() > MAX_UNITS {
        let message = format!("cpu_units must list at most {MAX_UNITS} choices");
        return Err(user("CpuUnits", message));
    }
    let cpu = UnitChoice::from_f64(units).map_err(|error| user("CpuUnits", error.to_string()))?;
    let mut amounts = BTreeMap::new();
    for (name, amount) in quota {
        amounts.insert(QuotaName::new(name).map_err(bad_id)?, *amount);
    }
    Ok(Cost { cpu, quota: amounts })
}

/// What a resolved request and its profile say of how long it will last.
pub(crate) fn foresight(request: &pb::ExecuteRequest, profile: Option<&Profile>) -> Foresight {
    let expected = request.expected_duration.as_ref();
    let expected = expected.and_then(|expected| Duration::try_from(*expected).ok());
    Foresight {
        profile: request.profile.as_str().into(),
        prior: profile.map_or_else(Prior::default, |profile| profile.prior),
        said: Prior {
            seconds: expected.map(|expected| expected.as_secs_f64()),
            serial: request.serial_fraction,
        },
        remaining: request.remaining,
        malleable: request.malleable.unwrap_or_default(),
    }
}

/// What a program took that came to an end of its own. One that a signal ended, or that
/// lost a process for want of memory, says nothing of how long others last.
pub(crate) fn usage(end: &pb::action_ended::End) -> Option<Usage> {
    let pb::action_ended::End::Finished(finished) = end else { return None };
    let usage = finished.usage.as_ref()?;
    let whole = finished.exit_code.is_some() && !finished.out_of_memory;
    // Where the node cannot count it, it says 0.
    let cpu_seconds = Some(usage.cpu_s).filter(|cpu| *cpu > 0.0);
    whole.then_some(Usage { seconds: usage.exec_s, cpu_seconds })
}

/// About how many bytes a request takes in memory.
pub(crate) fn request_bytes(request: &pb::ExecuteRequest) -> usize {
    // The record of an action itself is about this large.
    let quota: usize = request.quota.keys().map(|name| name.len() + 64).sum();
    let units = request.cpu_units.len() * 16;
    512 + quota + units + request.command.as_ref().map_or(0, command_bytes)
}

fn command_bytes(command: &pb::Command) -> usize {
    use pb::command::Program;
    let program = match &command.program {
        Some(Program::Shell(shell)) => shell.len(),
        Some(Program::Argv(argv)) => argv.args.iter().map(|arg| arg.len() + 24).sum(),
        None => 0,
    };
    program + env_bytes(&command.env) + command.stdin.len() + command.cwd.len()
}

fn env_bytes(env: &HashMap<String, String>) -> usize {
    env.iter().map(|(key, value)| key.len() + value.len() + 64).sum()
}

/// True when all names and values can be those of environment variables.
fn good_env(env: &HashMap<String, String>) -> bool {
    env.iter().all(|(name, value)| {
        !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
    })
}

/// Refuses an environment that cannot be one, or is too large to pass on.
pub(crate) fn check_env(env: &HashMap<String, String>) -> Result<(), Fault> {
    if !good_env(env) {
        let message = "a name in env must not be empty or hold '=', and nothing there a zero byte";
        return Err(user("InvalidEnv", message));
    }
    if env_bytes(env) > MAX_ENV {
        return Err(user("RequestTooLarge", "env must be at most 256 KiB"));
    }
    Ok(())
}

/// What a node's agent says of itself, checked.
pub(crate) fn node_up(hello: &pb::Hello, epoch: u64) -> Result<NodeUp, Fault> {
    let node = NodeId::new(&hello.node).map_err(bad_id)?;
    let numa: Vec<CoreSet> =
        hello.numa.iter().map(|numa| numa.cores.iter().copied().collect()).collect();
    let listed: usize = hello.numa.iter().map(|numa| numa.cores.len()).sum();
    let mut all = CoreSet::new();
    for set in &numa {
        all.extend(set);
    }
    if all.len() != listed {
        let message = format!(
            "node `{node}` lists a core twice, or one above {}: list each core once",
            CoreSet::MAX
        );
        return Err(user("InvalidHello", message));
    }
    let sandboxes = hello.sandboxes.iter().map(|live| TrajectoryId::new(&live.trajectory_id));
    let sandboxes = sandboxes.collect::<Result<_, _>>().map_err(bad_id)?;
    let actions = hello.actions.iter().map(live_action).collect::<Result<_, _>>()?;
    Ok(NodeUp { node, epoch, numa, memory: hello.memory_bytes, sandboxes, actions })
}

fn live_action(live: &pb::LiveAction) -> Result<LiveAction, Fault> {
    use rollwright_core::ids::ActionId;
    let units = Units::from_f64(live.cpu_units);
    Ok(LiveAction {
        action: ActionId::new(&live.action_id).map_err(bad_id)?,
        attempt: live.attempt,
        trajectory: TrajectoryId::new(&live.trajectory_id).map_err(bad_id)?,
        units: units.map_err(|error| user("InvalidHello", error.to_string()))?,
        cores: live.cores.iter().copied().collect(),
        ended: live.ended,
    })
}

pub(crate) fn stats(stats: &Stats, accepted: u64, finished: u64) -> pb::StatsResponse {
    let nodes = stats.nodes.iter().map(|node| pb::NodeStats {
        node: node.node.to_string(),
        connected: node.connected,
        cores: node.cores as u32,
        exclusive_cores: node.exclusive as u32,
        shared_cores: node.shared as u32,
        memory_bytes: node.memory,
        memory_reserved_bytes: node.memory_held,
        sandboxes: node.sandboxes as u32,
    });
    let quotas = stats.quotas.iter().map(|quota| pb::QuotaStats {
        name: quota.quota.to_string(),
        running: quota.held,
        waiting: quota.waiting as u32,
    });
    pb::StatsResponse {
        waiting: stats.waiting as u64,
        running: stats.running as u64,
        trajectories: stats.trajectories as u64,
        accepted_total: accepted,
        finished_total: finished,
        nodes: nodes.collect(),
        quotas: quotas.collect(),
        gpu_pools: Vec::new(),
    }
}

/// An action's event.
pub(crate) fn event(action: &str, event: pb::action_event::Event) -> pb::ActionEvent {
    pb::ActionEvent { action_id: action.to_owned(), event: Some(event) }
}

impl Weigh for pb::ActionEvent {
    fn weight(&self) -> usize {
        let data = match &self.event {
            Some(pb::action_event::Event::Output(output)) => output.data.len(),
            _ => 0,
        };
        128 + data
    }
}

impl Weigh for pb::QueueMessage {
    fn weight(&self) -> usize {
        use pb::queue_message::Message;
        let payload = match &self.message {
            Some(Message::StartAction(start)) => start.command.as_ref().map_or(0, command_bytes),
            Some(Message::FileData(file)) => file.data.len(),
            Some(Message::StartCall(call)) => {
                let headers = call.headers.iter();
                let headers = headers.map(|header| header.name.len() + header.value.len() + 16);
                call.body.len() + headers.sum::<usize>()
            }
            _ => 0,
        };
        128 + payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_byte_is_refused_wherever_a_program_cannot_have_one() {
        use pb::command::Program;
        let pair = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
        let argv = |last: &str| pb::Argv { args: vec!["true".into(), last.into()] };
        let reason = |change: &dyn Fn(&mut pb::Command)| {
            let program = Some(Program::Shell("true".into()));
            let mut command = pb::Command { program, ..pb::Command::default() };
            change(&mut command);
            check_command(Some(&command)).err().map(|fault| fault.reason.into_owned())
        };
        let wrong = || Some("InvalidCommand".to_owned());
        assert_eq!(reason(&|c| c.program = Some(Program::Shell("tr\0ue".into()))), wrong());
        assert_eq!(reason(&|c| c.program = Some(Program::Argv(argv("a\0")))), wrong());
        assert_eq!(reason(&|c| c.cwd = "/a\0b".into()), wrong());
        assert_eq!(reason(&|c| c.env = pair("A\0", "b")), wrong());
        assert_eq!(reason(&|c| c.env = pair("A", "b\0")), wrong());
        // Standard input may hold any bytes.
        assert_eq!(reason(&|c| c.stdin = b"a\0b".as_slice().into()), None);
        assert_eq!(reason(&|c| c.program = Some(Program::Argv(argv("a")))), None);
        for (env, wanted) in [
            (pair("A=", "b"), Some("InvalidEnv")),
            (pair("A\0", "b"), Some("InvalidEnv")),
            (pair("A", "b\0"), Some("InvalidEnv")),
            (pair("A", "b"), None),
        ] {
            let reason = check_env(&env).err().map(|fault| fault.reason);
            assert_eq!(reason.as_deref(), wanted, "{env:?}");
        }
    }
}
