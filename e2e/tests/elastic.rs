//! The default policy on real processes: cores follow the load, and a malleable action
//! gives way while it runs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_e2e::client::{self, Client, shell};
use rollwright_e2e::docker;
use rollwright_e2e::stack::Stack;
use rollwright_proto::v1::ExecuteRequest;
use tempfile::TempDir;

/// No policy is named: elastic.
const MANIFESTS: &str = "
apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata: {name: local}
spec: {cpu: {}}
---
apiVersion: rollwright.dev/v1alpha1
kind: ActionQueue
metadata: {name: test}
spec:
  pools: [local]
  templates:
    - {name: box, image: rollwright/busybox:local, memory: 64Mi, pids: 64}
";

async fn start(name: &str) -> anyhow::Result<(Stack, Client, u32, TempDir)> {
    let dir = tempfile::Builder::new().prefix("rwe-").tempdir_in("/tmp")?;
    std::fs::write(dir.path().join("queue.yaml"), MANIFESTS)?;
    let stack = Stack::start_with(name, Path::new(docker::SOCKET), dir.path()).await?;
    let mut client = stack.client().await?;
    let cores = client.stats().await?.nodes.first().context("no node")?.cores;
    ensure!(cores >= 2, "this test needs two cores, and there is {cores}");
    Ok((stack, client, cores, dir))
}

/// Says how many cores it has, and is said to last ten seconds on one.
fn elastic(id: &str, trajectory: &str, cores: u32) -> ExecuteRequest {
    ExecuteRequest {
        cpu_units: vec![1.0, f64::from(cores)],
        expected_duration: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
        serial_fraction: Some(0.3),
        ..shell(id, trajectory, "echo $ROLLWRIGHT_CPUS")
    }
}

/// Runs until the file `go` is put beside it, then says where it ran.
fn until_told(id: &str, trajectory: &str, units: &[f64]) -> ExecuteRequest {
    let script = "until [ -e go ]; do sleep 0.05; done; grep Cpus_allowed_list /proc/self/status";
    ExecuteRequest { cpu_units: units.to_vec(), ..shell(id, trajectory, script) }
}

async fn tell(client: &mut Client, trajectory: &str) -> anyhow::Result<()> {
    client.put(trajectory, "/workspace/go", false, Vec::new()).await?;
    Ok(())
}

#[tokio::test]
async fn a_lone_action_gets_all_cores_and_many_get_one_each() -> anyhow::Result<()> {
    let (stack, mut client, cores, _dir) = start("elastic-load").await?;
    client.open("t", "box").await?;
    let alone = client.run(elastic("alone", "t", cores)).await?;
    ensure!(alone.text() == format!("{cores}\n"), "{alone:?}");

    // Somebody has all cores, so that the others come to wait together.
    let mut all = client.submit(until_told("all", "t", &[f64::from(cores)])).await?;
    client::until_started(&mut all).await?;
    let mut streams = Vec::new();
    for n in 0..4 * cores {
        streams.push(client.submit(elastic(&format!("many-{n}"), "t", cores)).await?);
    }
    tell(&mut client, "t").await?;
    let mut given = Vec::new();
    for stream in streams {
        let run = client::finish(stream).await?;
        let units = run.finished()?.cpu_units;
        ensure!(run.text() == format!("{units}\n"), "{run:?}");
        given.push(units);
    }
    client::finish(all).await?.finished()?;
    let stats = client.stats().await?;
    ensure!(stats.finished_total == u64::from(4 * cores) + 2, "{stats:?}");
    // Alike, they start as they came; the last may have all cores again.
    let first = &given[..cores as usize];
    ensure!(first.iter().all(|units| (units - 1.0).abs() < 1e-9), "one core each: {given:?}");
    client.close("t").await?;
    stack.stop().await
}

#[tokio::test]
async fn a_malleable_action_gives_way_while_it_runs() -> anyhow::Result<()> {
    let (stack, mut client, cores, _dir) = start("elastic-malleable").await?;
    client.open("large", "box").await?;
    client.open("small", "box").await?;
    let large = ExecuteRequest {
        malleable: Some(true),
        expected_duration: Some(prost_types::Duration { seconds: 100, nanos: 0 }),
        serial_fraction: Some(0.1),
        ..until_told("large", "large", &[1.0, f64::from(cores)])
    };
    let mut large = client.submit(large).await?;
    let started = client::until_started(&mut large).await?;
    ensure!(started.cores.len() == cores as usize, "{started:?}");

    // It would never start if the large one kept all cores.
    let small = ExecuteRequest {
        expected_duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..until_told("small", "small", &[1.0])
    };
    let mut small = client.submit(small).await?;
    let limit = Duration::from_mins(1);
    let started = tokio::time::timeout(limit, client::until_started(&mut small)).await??;
    let [core] = started.cores[..] else { anyhow::bail!("{started:?}") };
    tell(&mut client, "large").await?;
    let large = client::finish(large).await?;
    let where_it_ran = large.text();
    let list = where_it_ran.split_whitespace().last().context("no list")?;
    ensure!(list.parse::<u32>().is_ok_and(|other| other != core), "{list} beside {core}");
    tell(&mut client, "small").await?;
    client::finish(small).await?.finished()?;
    client.close("large").await?;
    client.close("small").await?;
    stack.stop().await
}
