//! Sandboxes are hostile: what they try must stay inside, and end.

use std::time::Duration;

use anyhow::ensure;
use rollwright_e2e::client::{shell, until_output};
use rollwright_e2e::stack::Stack;
use rollwright_proto::v1::ExecuteRequest;
use rollwright_proto::v1::fault::Kind;

fn limited(request: ExecuteRequest, seconds: i64) -> ExecuteRequest {
    ExecuteRequest { timeout: Some(prost_types::Duration { seconds, nanos: 0 }), ..request }
}

const PROCESSES: &str = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done";

#[tokio::test]
async fn daemons_that_outlive_a_timeout_are_killed_with_it() -> anyhow::Result<()> {
    let stack = Stack::start("daemons").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let daemon = "(setsid sh -c 'setsid sleep 98765 & sleep 98765' &) ; sleep 98765";
    let run = client.run(limited(shell("late", "t", daemon), 1)).await?;
    ensure!(run.fault()?.kind() == Kind::Timeout, "{run:?}");
    let left = client.run(shell("ps", "t", PROCESSES)).await?;
    ensure!(!left.text().contains("98765"), "{}", left.text());
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_action() -> anyhow::Result<()> {
    let stack = Stack::start("fork-bomb").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    // Its first process lives until the time-out; what it started fills the sandbox.
    let bomb = "bomb() { bomb | bomb & }; (bomb) & exec sleep 1000";
    let run = client.run(limited(shell("bomb", "t", bomb), 2)).await?;
    ensure!(run.fault()?.kind() == Kind::Timeout, "{run:?}");
    let after = client.run(shell("after", "t", "echo alive")).await?;
    ensure!(after.text() == "alive\n", "{after:?}");
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn a_full_disk_is_the_programs_own_error() -> anyhow::Result<()> {
    let stack = Stack::start("full-disk").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let run =
        client.run(shell("fill", "t", "dd if=/dev/zero of=/scratch/all bs=1M count=64")).await?;
    ensure!(run.finished()?.exit_code == Some(1), "{run:?}");
    ensure!(String::from_utf8_lossy(&run.stderr).contains("No space left"), "{run:?}");
    let run = client
        .run(shell("after", "t", "rm /scratch/all; echo room > /scratch/x && cat /scratch/x"))
        .await?;
    ensure!(run.text() == "room\n", "{run:?}");
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn the_helper_cannot_be_killed_traced_or_talked_to() -> anyhow::Result<()> {
    let stack = Stack::start("helper").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let attempts = "kill -9 1; kill -STOP 1; kill -TERM -1; \
        cat /proc/1/mem; cat /proc/1/environ; ls /proc/1/fd; ls /.rollwright/run; \
        echo x > /.rollwright/init; cat /proc/self/status | grep -i capeff; ls -l /proc/self/fd | wc -l";
    // `kill -TERM -1` may end the shell itself: what counts is what still works.
    client.run(shell("try", "t", attempts)).await?;
    for (id, line) in [
        ("mem", "head -c 1 /proc/1/mem"),
        ("environ", "cat /proc/1/environ"),
        ("fds", "ls /proc/1/fd"),
        ("socket", "ls /.rollwright/run"),
        ("overwrite", "echo x > /.rollwright/init"),
        ("signal", "kill -9 1"),
        ("root", "chown 0 /workspace"),
    ] {
        let run = client.run(shell(id, "t", line)).await?;
        ensure!(run.finished()?.exit_code != Some(0), "{line}: {run:?}");
    }
    let caps = client
        .run(shell("caps", "t", "grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status"))
        .await?;
    ensure!(caps.text().contains("0000000000000000"), "{}", caps.text());
    ensure!(caps.text().contains("NoNewPrivs:\t1"), "{}", caps.text());
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn cancel_kills_the_tree_and_says_cancelled() -> anyhow::Result<()> {
    let stack = Stack::start("cancel").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let line = "(setsid sleep 45678 &); echo running; sleep 45678";
    let mut events = client.submit(shell("long", "t", line)).await?;
    until_output(&mut events, "running").await?;
    ensure!(client.cancel("long").await?);
    let run = rollwright_e2e::client::finish(events).await?;
    ensure!(run.end == Some(rollwright_e2e::client::End::Cancelled), "{run:?}");
    ensure!(!client.cancel("long").await?, "it has ended");
    let left = client.run(shell("ps", "t", PROCESSES)).await?;
    ensure!(!left.text().contains("45678"), "{}", left.text());
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn what_an_action_leaves_behind_lives_on_until_the_trajectory_ends() -> anyhow::Result<()> {
    let stack = Stack::start("left-behind").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let server =
        "setsid sh -c 'while true; do nc -l -p 8080 -e echo hello; done' > /dev/null 2>&1 &";
    client.run(shell("server", "t", server)).await?.finished()?;
    let mut asked = 0;
    rollwright_e2e::wait::until("the server answers", Duration::from_secs(30), async || {
        asked += 1;
        let run = client
            .run(shell(&format!("ask-{asked}"), "t", "nc 127.0.0.1 8080 < /dev/null"))
            .await?;
        Ok(run.text() == "hello\n")
    })
    .await?;
    client.close("t").await?;
    stack.stop().await
}
