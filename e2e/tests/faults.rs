//! Faults around actions: each ends in a typed fault or a result, once, and leaves
//! nothing behind.

use anyhow::ensure;
use rollwright_e2e::client::{End, fault_of, finish, shell, until_output};
use rollwright_e2e::docker::{self, PrivateEngine};
use rollwright_e2e::stack::Stack;
use rollwright_proto::v1::fault::Kind;

#[tokio::test]
async fn an_unknown_image_is_refused_with_a_remedy() -> anyhow::Result<()> {
    let stack = Stack::start("unknown-image").await?;
    let mut client = stack.client().await?;
    let Err(status) = client.open("t", "unknown-image").await else {
        anyhow::bail!("it opened");
    };
    let fault = fault_of(&status)?;
    ensure!(fault.reason == "ImageNotFound" && fault.kind() == Kind::User, "{fault:?}");
    ensure!(fault.message.contains("rollwright/no-such-image:local"), "{fault:?}");
    stack.stop().await
}

#[tokio::test]
async fn a_set_up_command_that_fails_says_what_it_said() -> anyhow::Result<()> {
    let stack = Stack::start("broken-setup").await?;
    let mut client = stack.client().await?;
    let Err(status) = client.open("t", "broken-setup").await else {
        anyhow::bail!("it opened");
    };
    let fault = fault_of(&status)?;
    ensure!(fault.reason == "SetupFailed", "{fault:?}");
    ensure!(fault.message.contains("no such luck"), "{fault:?}");
    stack.stop().await
}

#[tokio::test]
async fn a_sandbox_removed_from_under_us_is_an_infrastructure_fault() -> anyhow::Result<()> {
    let stack = Stack::start("rm-f").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let mut events = client.submit(shell("long", "t", "echo running; sleep 1000")).await?;
    until_output(&mut events, "running").await?;
    let engine = docker::connect(docker::SOCKET.as_ref())?;
    for container in stack.sandboxes().await? {
        docker::remove(&engine, &container).await?;
    }
    let run = finish(events).await?;
    ensure!(run.fault()?.kind() == Kind::Infrastructure, "{run:?}");
    let later = client.submit(shell("later", "t", "true")).await;
    ensure!(later.is_err(), "its trajectory is gone");
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn docker_restarted_in_mid_action_is_an_infrastructure_fault() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("rwd-").tempdir_in("/tmp")?;
    let mut engine = PrivateEngine::start(dir.path()).await?;
    let stack = Stack::start_on("docker-restart", &engine.socket()).await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let mut events = client.submit(shell("long", "t", "echo running; sleep 1000")).await?;
    until_output(&mut events, "running").await?;
    engine.stop().await?;
    engine.start_again().await?;
    let run = finish(events).await?;
    ensure!(run.fault()?.kind() == Kind::Infrastructure, "{run:?}");
    client.close("t").await?;
    // The node serves again.
    client.open("next", "box").await?;
    let run = client.run(shell("next", "next", "echo again")).await?;
    ensure!(run.text() == "again\n", "{run:?}");
    client.close("next").await?;
    stack.stop().await?;
    engine.stop().await
}

#[tokio::test]
async fn an_agent_killed_in_mid_action_finds_it_again() -> anyhow::Result<()> {
    let mut stack = Stack::start("agent-kill").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let line = "echo before; while [ ! -e go ]; do usleep 10000; done; echo after";
    let mut events = client.submit(shell("a", "t", line)).await?;
    until_output(&mut events, "before").await?;
    stack.kill_agent().await?;
    stack.start_agent().await?;
    client.run(shell("go", "t", "touch go")).await?.finished()?;
    let run = finish(events).await?;
    ensure!(run.finished()?.exit_code == Some(0), "{run:?}");
    ensure!(run.text() == "after\n", "once, and nothing twice: {:?}", run.text());
    let stored = client.run(shell("a", "t", line)).await?;
    ensure!(stored.text() == "before\nafter\n", "{stored:?}");
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn a_queue_killed_and_restarted_loses_nothing_and_runs_nothing_twice() -> anyhow::Result<()> {
    let mut stack = Stack::start("queue-kill").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let done = client.run(shell("done", "t", "echo x >> count; echo done")).await?;
    ensure!(done.text() == "done\n");
    let line = "echo x >> count; echo before; while [ ! -e go ]; do usleep 10000; done; echo after";
    let mut events = client.submit(shell("a", "t", line)).await?;
    until_output(&mut events, "before").await?;
    drop(events);
    stack.kill_queue().await?;
    stack.start_queue().await?;
    let mut client = stack.client().await?;
    let again = client.submit(shell("a", "t", line)).await?;
    client.run(shell("go", "t", "touch go")).await?.finished()?;
    let run = finish(again).await?;
    ensure!(run.finished()?.exit_code == Some(0), "{run:?}");
    ensure!(run.text() == "before\nafter\n", "{:?}", run.text());
    // What had ended is still known, and is not run again.
    let stored = client.run(shell("done", "t", "echo x >> count; echo done")).await?;
    ensure!(stored.text() == "done\n", "{stored:?}");
    let count = client.run(shell("count", "t", "wc -l < count")).await?;
    ensure!(count.text() == "2\n", "{:?}", count.text());
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn the_same_id_a_hundred_times_at_once_runs_once() -> anyhow::Result<()> {
    let stack = Stack::start("hundred").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let mut client = client.clone();
        callers.spawn(async move {
            client.run(shell("once", "t", "echo x >> count; wc -l < count")).await
        });
    }
    while let Some(run) = callers.join_next().await {
        let run = run??;
        ensure!(run.text() == "1\n", "{run:?}");
        ensure!(matches!(run.end, Some(End::Finished(_))), "{run:?}");
    }
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn a_client_that_stops_reading_harms_nobody() -> anyhow::Result<()> {
    let stack = Stack::start("no-reader").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let flood = "head -c 100m /dev/zero; echo end";
    let unread = client.submit(shell("flood", "t", flood)).await?;
    let other = stack.client().await?.run(shell("other", "t", "echo fine")).await?;
    ensure!(other.text() == "fine\n");
    // Somebody who reads gets the result of the one run.
    let read = stack.client().await?.run(shell("flood", "t", flood)).await?;
    ensure!(read.stdout.ends_with(b"end\n"), "{:?}", read.end);
    drop(unread);
    client.close("t").await?;
    stack.stop().await
}
