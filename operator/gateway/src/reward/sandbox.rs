//! A command in a sandbox: by default a pristine one that the policy never touched, with
//! only the named artefacts copied in, since a policy can edit what grades it.

use std::sync::Arc;

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_crds::command::CommandLine;
use rollwright_crds::reward::SandboxReward;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::command::Program;

use super::artefacts;
use super::name::name;
use super::subject::Subject;
use crate::actions::{Actions, Guard, Release, Run};

/// Characters of the output shown in a fault.
const SHOWN: usize = 300;

/// Runs the command of a `RewardService` on the queue. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SandboxScorer(Arc<Grader>);

#[derive(Debug)]
struct Grader {
    actions: Actions,
    template: String,
    profile: String,
    command: CommandLine,
    pristine: bool,
    copy: Vec<String>,
}

impl SandboxScorer {
    /// A scorer on the queue behind `actions`, which `service.queue` names.
    pub fn new(actions: Actions, service: &SandboxReward) -> Self {
        Self(Arc::new(Grader {
            actions,
            template: service.template.to_string(),
            profile: service.profile.to_string(),
            command: service.command.clone(),
            pristine: service.pristine,
            copy: service.copy.clone(),
        }))
    }

    /// The number in the last line of the command's standard output. A program that fails
    /// or prints none is an `action` fault: only a printed 0 is a reward of 0.
    pub async fn score(&self, subject: &Subject, attempt: u32) -> Result<f64, Fault> {
        self.0.score(subject, attempt).await
    }
}

impl Grader {
    async fn score(&self, subject: &Subject, attempt: u32) -> Result<f64, Fault> {
        let trajectory = &subject.trajectory;
        let name = name(trajectory, None, attempt);
        if !self.pristine {
            let guard = Guard::new(&self.actions, Release::Action(name.clone()));
            let ran = self.run(&name, trajectory.as_str()).await;
            guard.keep();
            return reward(&ran?);
        }
        // Whatever happens below, the sandbox is closed when it is over.
        let _guard = Guard::new(&self.actions, Release::Sandbox(name.clone()));
        self.actions.open(&name, &self.template).await?;
        for path in &self.copy {
            artefacts::copy(&self.actions, trajectory.as_str(), &name, path).await?;
        }
        reward(&self.run(&name, &name).await?)
    }

    async fn run(&self, action: &str, sandbox: &str) -> Result<Run, Fault> {
        let CommandLine { shell, argv, timeout } = &self.command;
        let program = match (shell, argv) {
            (Some(shell), _) => Some(Program::Shell(shell.clone())),
            (None, Some(args)) => Some(Program::Argv(pb::Argv { args: args.clone() })),
            (None, None) => None,
        };
        let request = pb::ExecuteRequest {
            action_id: action.to_owned(),
            trajectory_id: sandbox.to_owned(),
            profile: self.profile.clone(),
            command: Some(pb::Command { program, ..pb::Command::default() }),
            timeout: timeout.duration().try_into().ok(),
            ..pb::ExecuteRequest::default()
        };
        self.actions.run(&request).await
    }
}

fn reward(run: &Run) -> Result<f64, Fault> {
    let action = |reason: &'static str, what: String| {
        let (out, err) = (shown(&run.stdout), shown(&run.stderr));
        let message = format!(
            "the reward command {what}; it must print the reward as its last line and exit with 0. Standard output ends: {out:?}, standard error: {err:?}"
        );
        Err(Fault::new(FaultKind::Action, reason, message))
    };
    let finished = &run.finished;
    if finished.out_of_memory {
        return action("RewardOutOfMemory", "ran out of memory".to_owned());
    }
    match (finished.exit_code, finished.signal) {
        (Some(0), _) => {}
        (Some(code), _) => return action("RewardFailed", format!("exited with {code}")),
        (None, Some(signal)) => {
            return action("RewardFailed", format!("was ended by signal {signal}"));
        }
        (None, None) => return action("RewardFailed", "ended without an exit code".to_owned()),
    }
    let text = String::from_utf8_lossy(&run.stdout);
    let last = text.trim_end().lines().next_back().unwrap_or_default().trim();
    match last.parse::<f64>() {
        Ok(reward) if reward.is_finite() => Ok(reward),
        _ => action("RewardNotANumber", "printed no finite number".to_owned()),
    }
}

/// The end of an output, cut to what fits in a sentence.
fn shown(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let text = text.trim_end();
    let from = text.char_indices().rev().nth(SHOWN - 1).map_or(0, |(at, _)| at);
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(stdout: &str, exit_code: i32) -> Run {
        let finished = pb::Finished { exit_code: Some(exit_code), ..pb::Finished::default() };
        Run { finished, stdout: stdout.into(), stderr: b"Traceback".to_vec() }
    }

    #[test]
    fn the_last_line_counts() {
        for (stdout, expected) in [
            ("1", 1.0),
            ("2 passed\n0.25\n", 0.25),
            ("0\n", 0.0),
            ("5\n-1e-3  \n\n", -0.001),
            ("log\r\n0.5\r\n", 0.5),
        ] {
            assert!((reward(&printed(stdout, 0)).unwrap() - expected).abs() < 1e-12, "{stdout:?}");
        }
    }

    #[test]
    fn what_is_no_reward_is_a_fault_and_never_nought() {
        for (run, reason) in [
            (printed("", 0), "RewardNotANumber"),
            (printed("passed", 0), "RewardNotANumber"),
            (printed("1\npassed", 0), "RewardNotANumber"),
            (printed("NaN", 0), "RewardNotANumber"),
            (printed("inf", 0), "RewardNotANumber"),
            (printed("1e999", 0), "RewardNotANumber"),
            (printed("reward: 1", 0), "RewardNotANumber"),
            (printed("1", 1), "RewardFailed"),
            (Run::default(), "RewardFailed"),
        ] {
            let fault = reward(&run).unwrap_err();
            assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::Action, reason), "{run:?}");
        }
        let fault = reward(&printed("3 failed", 2)).unwrap_err();
        for part in ["exited with 2", "3 failed", "Traceback"] {
            assert!(fault.message.contains(part), "{fault}");
        }
    }

    #[test]
    fn long_output_is_shown_by_its_end() {
        let long = format!("{}äöü-end", "x".repeat(10_000));
        let shown = shown(long.as_bytes());
        assert!(shown.ends_with("äöü-end") && shown.chars().count() == SHOWN, "{shown}");
    }
}
