//! What a busy loop that was left behind in an idle sandbox costs an exclusive action
//! of another.

use anyhow::{Context as _, ensure};
use rollwright_e2e::client::{Client, shell};
use rollwright_e2e::stack::Stack;
use rollwright_proto::v1::Usage;

use crate::table::Row;

/// Pairs of measurements, with the loops and without.
const ROUNDS: usize = 12;
/// About half a second of work for one core.
const WORK: &str = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
/// One for each core of a small machine, so that none is left to flee to.
const LOOPS: &str = "for core in $(seq $(grep -c ^processor /proc/cpuinfo)); do \
                     setsid sh -c 'while :; do :; done' > /dev/null 2>&1 & done";

pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    eprintln!("isolation: {ROUNDS} rounds ...");
    let stack = Stack::start("bench-isolation").await?;
    let mut client = stack.client().await?;
    client.open("worker", "box").await?;
    let (mut ratios, mut waits) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let alone = work(&mut client, &format!("alone-{round}")).await?;
        let idle = format!("idle-{round}");
        client.open(&idle, "box").await?;
        client.run(shell(&format!("loops-{round}"), &idle, LOOPS)).await?.finished()?;
        let beside = work(&mut client, &format!("beside-{round}")).await?;
        client.close(&idle).await?;
        ratios.push(beside.exec_s / alone.exec_s);
        waits.push(waited(&beside) - waited(&alone));
    }
    client.close("worker").await?;
    stack.stop().await?;
    ratios.sort_by(f64::total_cmp);
    waits.sort_by(f64::total_cmp);
    let slower = (ratios[ROUNDS / 2] - 1.0) * 100.0;
    let waiting = waits[ROUNDS / 2] * 100.0;
    Ok(vec![Row {
        figure: "exclusive action beside busy loops left in an idle sandbox".to_owned(),
        ours: format!("{slower:+.2}% time ({waiting:+.2}% waiting for its core)"),
        baseline: "the same action without them".to_owned(),
        ratio: format!("{:.3} (median of {ROUNDS})", ratios[ROUNDS / 2]),
        target: "< 2%".to_owned(),
        reached: slower < 2.0,
    }])
}

/// What the program took, at its second run: during the first one Docker is still busy
/// with the container that was opened or closed just before.
async fn work(client: &mut Client, id: &str) -> anyhow::Result<Usage> {
    work_once(client, &format!("{id}-first")).await?;
    work_once(client, id).await
}

async fn work_once(client: &mut Client, id: &str) -> anyhow::Result<Usage> {
    let mut request = shell(id, "worker", WORK);
    "exclusive".clone_into(&mut request.profile);
    let run = client.run(request).await?;
    let finished = run.finished()?;
    ensure!(finished.exit_code == Some(0), "{finished:?}");
    finished.usage.context("no usage")
}

/// Part of the running time in which it did not have its core.
fn waited(usage: &Usage) -> f64 {
    1.0 - usage.cpu_s / usage.exec_s
}
