//! What an action's end says: exit codes, signals, memory, output.

use anyhow::ensure;
use rollwright_e2e::client::{Run, shell};
use rollwright_e2e::stack::Stack;
use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::{Argv, Command, ExecuteRequest, command::Program};

async fn in_box(name: &str, actions: &[(&str, &str)]) -> anyhow::Result<Vec<Run>> {
    let stack = Stack::start(name).await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let mut runs = Vec::new();
    for (id, line) in actions {
        runs.push(client.run(shell(id, "t", line)).await?);
    }
    client.close("t").await?;
    stack.stop().await?;
    Ok(runs)
}

#[tokio::test]
async fn exit_codes_signals_and_streams() -> anyhow::Result<()> {
    let runs = in_box(
        "exit-codes",
        &[
            ("ok", "echo out; echo err >&2"),
            ("seven", "exit 7"),
            ("self-137", "exit 137"),
            ("segv", "kill -SEGV $$"),
            ("who", "id -u; echo $ROLLWRIGHT_CPUS ${parallel_num}; pwd"),
            ("bytes", r"printf '\377\376\000\200'"),
        ],
    )
    .await?;
    ensure!(runs[0].finished()?.exit_code == Some(0));
    ensure!(
        (runs[0].stdout.as_slice(), runs[0].stderr.as_slice()) == (&b"out\n"[..], &b"err\n"[..])
    );
    ensure!(runs[1].finished()?.exit_code == Some(7));
    let by_itself = runs[2].finished()?;
    ensure!(by_itself.exit_code == Some(137) && !by_itself.out_of_memory, "{by_itself:?}");
    ensure!(runs[3].finished()?.signal == Some(11) && runs[3].finished()?.exit_code.is_none());
    ensure!(runs[4].text() == "1000\n1 1\n/workspace\n", "{:?}", runs[4].text());
    ensure!(runs[5].stdout == [0o377, 0o376, 0, 0o200]);
    Ok(())
}

#[tokio::test]
async fn a_kill_by_the_kernel_for_memory_is_told_from_exit_137() -> anyhow::Result<()> {
    let hog = "head -c 200m /dev/zero | tail -c 150m | wc -c; echo survived";
    let runs =
        in_box("oom", &[("hog", &format!("exec sh -c '{hog}'")), ("after", "echo alive")]).await?;
    let hogged = runs[0].finished()?;
    ensure!(hogged.out_of_memory, "{hogged:?}");
    let usage = hogged.usage.unwrap_or_default();
    ensure!(usage.memory_peak_bytes > 30 << 20, "{usage:?}");
    ensure!(runs[1].text() == "alive\n");
    ensure!(!runs[1].finished()?.out_of_memory, "the next action starts with a clean record");
    Ok(())
}

#[tokio::test]
async fn a_command_that_is_not_there_is_an_action_fault() -> anyhow::Result<()> {
    let stack = Stack::start("not-found").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let program = Program::Argv(Argv { args: vec!["no-such-program".to_owned()] });
    let request = ExecuteRequest {
        action_id: "missing".to_owned(),
        trajectory_id: "t".to_owned(),
        command: Some(Command { program: Some(program), ..Command::default() }),
        ..ExecuteRequest::default()
    };
    let run = client.run(request).await?;
    let fault = run.fault()?;
    ensure!(fault.kind() == Kind::Action, "{fault:?}");
    ensure!(fault.message.contains("no-such-program"), "{fault:?}");
    // A shell answers by itself.
    let run = client.run(shell("sh", "t", "no-such-program")).await?;
    ensure!(run.finished()?.exit_code == Some(127));
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn a_gibibyte_of_output_keeps_head_and_tail_and_says_what_was_cut() -> anyhow::Result<()> {
    let line = "echo first; head -c 1073741824 /dev/zero; echo; echo last";
    let runs = in_box("gibibyte", &[("flood", line)]).await?;
    let run = &runs[0];
    let usage = run.finished()?.usage.unwrap_or_default();
    let total = 6 + (1 << 30) + 1 + 5;
    ensure!(usage.output_bytes == total, "{usage:?}");
    ensure!(usage.output_dropped_bytes == run.dropped && run.dropped > 0, "{usage:?}");
    ensure!(run.stdout.len() as u64 + run.dropped == total);
    ensure!(run.stdout.len() <= 2 * (64 << 10));
    ensure!(run.stdout.starts_with(b"first\n") && run.stdout.ends_with(b"\nlast\n"));
    Ok(())
}

#[tokio::test]
async fn files_go_in_and_out() -> anyhow::Result<()> {
    let stack = Stack::start("files").await?;
    let mut client = stack.client().await?;
    client.open("t", "box").await?;
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    ensure!(
        client.put("t", "/workspace/deep/er/data.bin", false, data.clone()).await? == 3_000_000
    );
    let sum = client.run(shell("size", "t", "wc -c < deep/er/data.bin; id -u > who")).await?;
    ensure!(sum.text() == "3000000\n", "{:?}", sum.text());
    ensure!(client.get("t", "/workspace/deep/er/data.bin", false).await? == data);
    let tar = client.get("t", "/workspace/deep", true).await?;
    client.put("t", "/workspace/copy", true, tar).await?;
    let same = client
        .run(shell("cmp", "t", "find copy -name data.bin -exec cmp deep/er/data.bin {} \\; -print"))
        .await?;
    ensure!(same.text().contains("data.bin"), "{:?}", same.text());
    let missing = client.get("t", "/workspace/nothing", false).await;
    ensure!(missing.is_err_and(|status| status.message().contains("/workspace/nothing")));
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn the_plain_docker_path_gives_the_same_results() -> anyhow::Result<()> {
    let stack = Stack::start("docker-mode").await?;
    let mut client = stack.client().await?;
    client.open("t", "docker").await?;
    let run = client.run(shell("a", "t", "echo out; echo err >&2; exit 3")).await?;
    ensure!(run.finished()?.exit_code == Some(3));
    ensure!((run.stdout.as_slice(), run.stderr.as_slice()) == (&b"out\n"[..], &b"err\n"[..]));
    client.close("t").await?;
    stack.stop().await
}
