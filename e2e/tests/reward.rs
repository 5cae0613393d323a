//! Rewards by commands in sandboxes: the gateway's scorer on a real queue, agent and
//! Docker engine.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::Version;
use rollwright_crds::reward::SandboxReward;
use rollwright_e2e::client::{Client, shell};
use rollwright_e2e::stack::Stack;
use rollwright_e2e::wait;
use rollwright_gateway::actions::Actions;
use rollwright_gateway::reward::{SandboxScorer, Subject};
use serde_json::json;

const LIMIT: Duration = Duration::from_mins(1);

/// A queue, a caller of it with one open trajectory `g.1`, and the gateway's client.
struct Scored {
    stack: Stack,
    client: Client,
    actions: Actions,
}

impl Scored {
    async fn start(name: &str) -> anyhow::Result<Self> {
        let stack = Stack::start(name).await?;
        let mut client = stack.client().await?;
        client.open("g.1", "box").await?;
        let actions = Actions::unix(&stack.socket(), "default");
        Ok(Self { stack, client, actions })
    }

    /// What the policy does in its own sandbox.
    async fn policy(&mut self, id: &str, line: &str) -> anyhow::Result<()> {
        let run = self.client.run(shell(id, "g.1", line)).await?;
        let exit_code = run.finished()?.exit_code;
        ensure!(exit_code == Some(0), "{exit_code:?}: {}", String::from_utf8_lossy(&run.stderr));
        Ok(())
    }

    fn scorer(&self, command: &str, copy: Option<&[&str]>) -> anyhow::Result<SandboxScorer> {
        self.scorer_of("box", command, copy, "1m")
    }

    /// `copy`: what is copied into a pristine sandbox; `None`: the trajectory's own.
    fn scorer_of(
        &self,
        template: &str,
        command: &str,
        copy: Option<&[&str]>,
        timeout: &str,
    ) -> anyhow::Result<SandboxScorer> {
        let service: SandboxReward = serde_json::from_value(json!({
            "queue": "test", "template": template, "pristine": copy.is_some(),
            "copy": copy.unwrap_or_default(), "command": {"shell": command, "timeout": timeout},
        }))?;
        Ok(SandboxScorer::new(self.actions.clone(), &service))
    }

    /// Closes the trajectory and checks that nothing at all is left.
    async fn stop(self) -> anyhow::Result<()> {
        self.actions.close_later(&subject()?.trajectory);
        self.actions.released().await;
        self.stack.stop().await
    }
}

fn subject() -> anyhow::Result<Subject> {
    Ok(Subject {
        trajectory: TrajectoryId::new("g.1")?,
        group: GroupId::new("g")?,
        task: Task::new("math")?,
        payload: None,
        metadata: None,
        messages: None,
        tokens: None,
        turns: 1,
        prompt_tokens: 1,
        generated_tokens: 1,
        start_version: Version(0),
        oldest_version: Version(0),
    })
}

async fn score(scorer: &SandboxScorer, attempt: u32) -> Result<f64, Fault> {
    let subject =
        subject().map_err(|error| Fault::new(FaultKind::User, "BadTest", error.to_string()))?;
    scorer.score(&subject, attempt).await
}

async fn expect(scorer: &SandboxScorer, attempt: u32, reward: f64) -> anyhow::Result<()> {
    let got = score(scorer, attempt).await?;
    ensure!((got - reward).abs() < 1e-12, "expected {reward}, got {got}");
    Ok(())
}

/// A grader that the policy can replace where it can write.
const GRADE: &str = r#"
    if [ -e grade.sh ]; then sh grade.sh; exit; fi
    echo "checking"
    if [ "$(cat answer.txt)" = 42 ]; then echo 1; else echo 0; fi
"#;

#[tokio::test]
async fn a_policy_cannot_edit_what_grades_it() -> anyhow::Result<()> {
    let mut it = Scored::start("pristine").await?;
    it.policy("cheat", "echo 41 > answer.txt; echo 'echo 1' > grade.sh").await?;
    let pristine = it.scorer(GRADE, Some(&["/workspace/answer.txt"]))?;
    expect(&pristine, 1, 0.0).await?;
    let own = it.scorer(GRADE, None)?;
    expect(&own, 2, 1.0).await.context("the sandbox that the policy edited")?;
    it.policy("solve", "echo 42 > answer.txt").await?;
    expect(&pristine, 3, 1.0).await?;
    // The grader's own solution, linked to as the answer.
    let solution = "mkdir -p /tmp/key; echo 42 > /tmp/key/solution; ";
    let graded = it.scorer(&format!("{solution}{GRADE}"), Some(&["/workspace/answer.txt"]))?;
    it.policy("link", "rm answer.txt; ln -s /tmp/key/solution answer.txt").await?;
    expect(&graded, 4, 0.0).await?;
    // Nothing was made at all: the command says what that is worth.
    it.policy("nothing", "rm answer.txt").await?;
    expect(&pristine, 5, 0.0).await?;
    it.stop().await
}

#[tokio::test]
async fn directories_are_copied_with_what_stays_inside() -> anyhow::Result<()> {
    let mut it = Scored::start("copies").await?;
    it.policy(
        "make",
        "mkdir -p repo/a/b; head -c 3000000 /dev/zero > repo/a/big; echo hi > repo/a/b/hi; \
         ln -s ../big repo/a/b/up; ln -s /etc/passwd repo/out; \
         echo no > beside; chmod 755 repo/a/b/hi",
    )
    .await?;
    let count = "cd repo; [ -x a/b/hi ] && [ ! -e ../beside ] && [ ! -L out ] \
                 && cmp a/big a/b/up && find . | wc -l";
    let scorer = it.scorer(count, Some(&["/workspace/repo", "/workspace/not-there"]))?;
    // `.`, a, a/big, a/b, a/b/hi, a/b/up
    expect(&scorer, 1, 6.0).await?;
    // A part that the policy hides is not scored as if it were not there.
    it.policy("hide", "chmod 0 repo/a/big").await?;
    let Err(fault) = score(&scorer, 2).await else { anyhow::bail!("it was scored") };
    // The queue may drop what was read before the fault: then the whole path is left out.
    let reason = fault.reason.as_ref();
    ensure!(matches!(reason, "ArtefactUnreadable" | "RewardFailed"), "{fault}");
    ensure!(fault.kind == FaultKind::Action, "{fault}");
    it.stop().await
}

#[tokio::test]
async fn a_command_that_fails_is_a_fault_and_never_nought() -> anyhow::Result<()> {
    let it = Scored::start("reward-faults").await?;
    let cases = [
        ("box", "echo 0; echo it broke >&2; exit 3", "1m", FaultKind::Action, "RewardFailed"),
        ("box", "kill -SEGV $$", "1m", FaultKind::Action, "RewardFailed"),
        ("box", "echo passed", "1m", FaultKind::Action, "RewardNotANumber"),
        ("box", "true", "1m", FaultKind::Action, "RewardNotANumber"),
        ("box", "echo 1; sleep 600", "1s", FaultKind::Timeout, ""),
        ("no-such-template", "echo 1", "1m", FaultKind::User, ""),
        ("broken-setup", "echo 1", "1m", FaultKind::Action, ""),
    ];
    for (index, (template, command, timeout, kind, reason)) in cases.into_iter().enumerate() {
        let scorer = it.scorer_of(template, command, Some(&[]), timeout)?;
        let Err(fault) = score(&scorer, 1 + index as u32).await else {
            anyhow::bail!("{command} in {template} gave a reward");
        };
        ensure!(fault.kind == kind, "{command} in {template}: {fault}");
        ensure!(reason.is_empty() || fault.reason == reason, "{command}: {fault}");
        if command.contains("it broke") {
            ensure!(fault.message.contains("exited with 3") && fault.message.contains("it broke"));
        }
    }
    it.stop().await
}

#[tokio::test]
async fn an_attempt_that_is_made_again_runs_nothing_twice() -> anyhow::Result<()> {
    let it = Scored::start("reward-twice").await?;
    let counts = it.scorer("echo x >> runs; wc -l < runs", None)?;
    for (attempt, runs) in [(1, 1.0), (1, 1.0), (2, 2.0), (1, 1.0)] {
        expect(&counts, attempt, runs).await?;
    }
    it.stop().await
}

#[tokio::test]
async fn a_reward_that_nobody_waits_for_leaves_nothing_running() -> anyhow::Result<()> {
    let mut it = Scored::start("reward-cancel").await?;
    for (attempt, copy) in [(1, None), (2, Some(&[][..]))] {
        let scorer = it.scorer("sleep 600; echo 1", copy)?;
        let call = tokio::spawn(async move { score(&scorer, attempt).await });
        wait::until("the command runs", LIMIT, async || Ok(it.client.stats().await?.running == 1))
            .await?;
        call.abort();
        ensure!(call.await.is_err_and(|error| error.is_cancelled()));
        it.actions.released().await;
        wait::until("nothing runs", LIMIT, async || {
            let stats = it.client.stats().await?;
            Ok((stats.running, stats.waiting, stats.trajectories) == (0, 0, 1))
        })
        .await?;
    }
    it.stop().await
}

#[tokio::test]
async fn a_queue_that_is_killed_meanwhile_gives_the_one_result() -> anyhow::Result<()> {
    let mut it = Scored::start("reward-killed").await?;
    let line = "echo x >> runs; while [ ! -e go ]; do sleep 0.1; done; wc -l < runs";
    let scorer = it.scorer(line, None)?;
    let call = tokio::spawn(async move { score(&scorer, 1).await });
    wait::until("the command runs", LIMIT, async || Ok(it.client.stats().await?.running == 1))
        .await?;
    it.stack.kill_queue().await?;
    it.stack.start_queue().await?;
    it.client = it.stack.client().await?;
    // A put is no action: it does not wait for the cores that the command holds.
    wait::until("the sandbox is reached again", LIMIT, async || {
        Ok(it.client.put("g.1", "/workspace/go", false, Vec::new()).await.is_ok())
    })
    .await?;
    let reward = call.await??;
    ensure!((reward - 1.0).abs() < 1e-12, "it ran {reward} times");
    it.stop().await
}
